"""Batch jobs on PostgreSQL that are safe to run again after a failure half-way."""
