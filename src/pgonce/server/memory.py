"""A place in memory for throw-away servers, where there is one with room.

A database that is cloned and dropped again and again makes and removes some hundred files each time. ext4 does not use
the number of a removed file again for a minute or more, and steps over each of them for every file that is made: after
a few hundred clones one takes half a second instead of ten milliseconds. A file system in memory has no such cost.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 (each server makes a folder of its own there, which nobody else can open)
"""Where Linux has a file system in memory that everybody may use."""
ROOM_BYTES_MIN = 1 << 30
"""A small server takes about 200 MB with its log; several may be at work at once."""

_MEMINFO = Path("/proc/meminfo")
_LIMITS = Path("/sys/fs/cgroup")


def memory_folder() -> Path | None:
    """Return a folder in memory for a throw-away server; None where there is none, or not enough room.

    Who names a temporary folder by TMPDIR gets it, also for this. Safe to re-run: yes, nothing is made.
    """
    if os.environ.get("TMPDIR") or not os.access(MEMORY, os.W_OK | os.X_OK):
        return None
    with contextlib.suppress(OSError, ValueError, KeyError):
        about = os.statvfs(MEMORY)
        can_run_programs = not about.f_flag & os.ST_NOEXEC
        if can_run_programs and min(about.f_bavail * about.f_frsize, _free_bytes()) >= ROOM_BYTES_MIN:
            return MEMORY
    return None


def _free_bytes() -> int:
    """Return how much memory may still be used, by the machine's count or that of a container."""
    lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if ":" in line)
    free = int(lines["MemAvailable"].split()[0]) << 10
    with contextlib.suppress(OSError, ValueError):
        limit, used = (int((_LIMITS / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, limit - used)
    return free
