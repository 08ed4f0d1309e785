"""How fast pgonce is, beside what the server can do at all: `make bench`."""
