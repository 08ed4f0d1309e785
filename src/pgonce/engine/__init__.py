"""What pgonce is for: events applied once, chunk by chunk, with a position that never leads."""
