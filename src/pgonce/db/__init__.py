"""The only room that talks to the driver: connections, guarded transactions, the schema, statements by name."""
