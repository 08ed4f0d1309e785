"""The SQL of pgonce: migrations, and one statement a file."""
