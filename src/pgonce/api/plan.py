"""``pgonce plan``: what a run would do, found by reading only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pgonce.api.database import opened
from pgonce.db.statements import DEFAULT_SCHEMA
from pgonce.engine.plan import FINDINGS_SHOWN, Plan
from pgonce.engine.plan import plan as plan_order
from pgonce.engine.run import Order
from pgonce.sources import ReadingOptions, open_input


def plan(
    input: str | Path,  # noqa: A002 - the word users say
    what: Order,
    *,
    reading: ReadingOptions | None = None,
    dsn: str | None = None,
    embedded: bool = False,
    schema: str = DEFAULT_SCHEMA,
    findings_max: int = FINDINGS_SHOWN,
    interrupted: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] = lambda _text: None,
) -> Plan:
    """Say what a run of an order over an input would do. ``what`` is put together by ``pgonce.api.run.order``.

    Raises what the run would raise before its first chunk.
    Safe to re-run: it only reads, and the effect is not run.
    """
    with (
        open_input(input, reading) as source,
        opened(
            dsn,
            embedded=embedded,
            schema=schema,
            application=f"pgonce/plan/{what.job}",
            tell=tell,
            interrupted=interrupted,
        ) as clerk,
    ):
        return plan_order(clerk, source, what, findings_max=findings_max, interrupted=interrupted)
