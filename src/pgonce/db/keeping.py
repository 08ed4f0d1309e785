"""Keep the session of a run alive while others do the work: by its backend is judged whether the run has an owner."""

from __future__ import annotations

import time

from pgonce.db.session import Session
from pgonce.errors import Unreachable
from pgonce.model.deadline import Deadline

# A connection that is only kept is not waited for longer.
WAIT_S_MAX = 2.0

# So often the server is asked whether a connection still leads to it, and for one where there was none.
ASK_EVERY_S = 30.0


class Keeper:
    """Keeps one session, which idles: the server does not end it for that, and another one takes its place."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ask_again_s = 0.0

    def look(self) -> None:
        """See that there is a connection, where one can be had within moments; most times that costs a system call.

        Behind a pooler no backend is anybody's, and there is nothing to keep. Safe to re-run: yes.
        """
        session = self._session
        if session.backend_pid is None:
            return
        session.idles = True
        was_connected = session.is_connected
        is_due = time.monotonic() >= self._ask_again_s
        if session.is_alive(WAIT_S_MAX if is_due else 0.0) and not is_due:
            return
        if is_due or was_connected:
            self._ask_again_s = time.monotonic() + ASK_EVERY_S
            try:
                session.connect(Deadline.after(WAIT_S_MAX, time.monotonic))
            except Unreachable:
                return
