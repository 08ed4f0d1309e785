"""Faults for any program that talks to PostgreSQL: the wire protocol, and a proxy that fails it at a chosen point."""
