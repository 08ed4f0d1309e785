"""`python -m pgonce` is the command."""

from __future__ import annotations

from pgonce.cli.main import main

main()
