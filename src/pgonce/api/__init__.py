"""The Python calls behind the commands: choose the database, open a session, hand over to the engine."""
