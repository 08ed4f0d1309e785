"""The embedded PostgreSQL server: find its programs, make its cluster, start it, share it, stop it.

Read in this order: ``find`` (which PostgreSQL), ``place`` (where and as whom), ``cluster`` (make and start),
``users`` (join and leave), ``watch`` (stop after the last user), ``scratch`` (throw-away servers) and ``memory`` (where
those are fastest).
"""

from __future__ import annotations

from pgonce.server.find import Binaries, find_binaries
from pgonce.server.memory import memory_folder
from pgonce.server.scratch import ScratchServer, scratch
from pgonce.server.users import Server, ServerStatus, pin, running, status, unpin

__all__ = [
    "Binaries",
    "ScratchServer",
    "Server",
    "ServerStatus",
    "find_binaries",
    "memory_folder",
    "pin",
    "running",
    "scratch",
    "status",
    "unpin",
]
