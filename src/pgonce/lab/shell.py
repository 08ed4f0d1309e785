"""The lab for shell scripts: the text that ``pgonce lab shell`` prints."""

from __future__ import annotations

import shlex

FUNCTIONS = ("up", "seed", "whoami", "versions", "clean")


def shell_functions(python: str) -> str:
    """Return functions ``lab_up`` to ``lab_clean`` for a POSIX shell that call this installation of pgonce."""
    head = [
        "# The lab's functions, good under `set -euo pipefail`. Use: pgonce lab shell > lab-local.sh; . ./lab-local.sh",
        "# After lab_up, `. ./lab.env` gives LAB_DIR and a PATH with psql.",
    ]
    command = f"{shlex.quote(python)} -P -m pgonce lab"
    return "\n".join([*head, *(f'lab_{name}() {{ {command} {name} "$@"; }}' for name in FUNCTIONS)]) + "\n"
