"""Transactions of workers begin in input order (E8): time does not go back from one chunk to the next."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import patch

from database.jobs import Desk, Watching
from database.working import waiting_in_turn
from pgonce.db.session import Session
from pgonce.engine.workers import Ahead, Workers

NOTED = "insert into noted select event_id, now() from chunk;"


def time_went_on(desk: Desk) -> bool:
    """Say whether ``now()`` of every chunk was later than that of the chunks before it."""
    times = [time for (time,) in desk.sql("select min(at) from noted group by at order by min(event_id)")]
    assert len(times) > 1
    return times == sorted(times) and len(set(times)) == len(times)


def test_time_goes_on_although_a_later_chunk_is_ready_first(desk: Desk) -> None:
    """The worker of the first chunk gets its connection last of all."""
    desk.sql("create table noted (event_id text, at timestamptz)")
    connect, may_begin = Session.connect, Workers._may_begin
    asked, others = set[int](), threading.Event()
    first = list[Session]()

    def connect_first_last(self: Session, *arguments: Any) -> Any:
        if threading.current_thread().name == "pgonce-worker":
            first.append(self)
            if self is first[0] and not others.is_set():
                assert others.wait(30.0)
        return connect(self, *arguments)

    def may(self: Workers, ahead: Ahead) -> bool:
        asked.add(ahead.applying.part.begin.position.lines)
        if len(asked) == 3:
            others.set()
        return may_begin(self, ahead)

    path = desk.csv([(f"{number:02}", 1, "") for number in range(40)])
    with patch.object(Session, "connect", connect_first_last), patch.object(Workers, "_may_begin", may):
        desk.run(path, clerk=desk.make_clerk(), effect=NOTED, chunk_rows=2, workers=4)
    assert time_went_on(desk)


def test_time_goes_on_where_a_chunk_is_begun_anew(desk: Desk) -> None:
    """Those behind it had begun before it; they begin again."""
    desk.sql("create table noted (event_id text, at timestamptz)")
    desk.sql("create sequence tried")
    desk.sql(
        """create function fail_once() returns void language plpgsql as
        $$ begin if nextval('public.tried') = 4 then raise exception 'no' using errcode = '40001'; end if; end $$"""
    )

    def after(number: int) -> None:
        if number == 3:
            waiting_in_turn(desk, 3)

    path = desk.csv([(f"{number:02}", 1, "") for number in range(40)])
    watching = Watching(after)
    effect = f"{NOTED} select fail_once();"
    desk.run(path, clerk=desk.make_clerk(), effect=effect, chunk_rows=2, workers=4, observer=watching)
    assert watching.retries == ["40001"]
    assert time_went_on(desk)
