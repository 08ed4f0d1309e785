"""What becomes of a run does not depend on whether anybody listens to its command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from database.jobs import Desk, until
from pgonce.api.run import order
from pgonce.errors import ConfigurationError
from pgonce.model.limits import Limits

END_S_MAX = 60


def command(desk: Desk, path: Path, *options: str) -> list[str]:
    """Write the command that runs a file on the desk's database."""
    arguments = ["run", str(path), "--job", "pay", "--key", "id", "--amount", "amount", "--dsn", desk.dsn]
    return [sys.executable, "-m", "pgonce", *arguments, *options]


def closed_pipe() -> int:
    """Give the writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize("both", [False, True])
def test_the_exit_code_is_the_runs_own_when_nobody_reads_its_output(
    desk: Desk, options: tuple[str, ...], both: bool
) -> None:
    """FAILURES 2.1: what goes wrong after COMMIT never turns success into failure."""
    out = closed_pipe()
    path = desk.csv([(1, 10, "x"), (2, 20, "y")])
    done = subprocess.run(
        command(desk, path, *options), stdout=out, stderr=out if both else subprocess.PIPE, timeout=END_S_MAX
    )
    os.close(out)
    assert done.returncode == 0
    assert both or b"could not be printed" in done.stderr
    assert desk.effects() == {"1": 10, "2": 20}


def test_a_signal_ends_the_run_between_two_chunks_when_nobody_hears_it(desk: Desk) -> None:
    """L6: the handler says what it does, and goes on if that cannot be said."""
    heard, err = os.pipe()
    path = desk.csv([(number, 1, "x") for number in range(20_000)])
    with subprocess.Popen(command(desk, path, "--chunk-rows", "5"), stdout=subprocess.DEVNULL, stderr=err) as run:
        os.close(err)
        until(lambda: desk.one("select count(*) from pgonce.effect") > 0, "a committed chunk")
        os.close(heard)
        run.send_signal(signal.SIGINT)
        assert run.wait(END_S_MAX) == 130
    assert desk.one("select ended_how from pgonce.start") == "stopped: Interrupted"


@pytest.mark.parametrize("name", ["chunk_seconds", "chunk_deadline_s", "deadline_s"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_time_that_is_no_number_above_zero_is_refused(name: str, value: float) -> None:
    """HOUSE: every limit is one."""
    with pytest.raises(ConfigurationError, match="a number above zero"):
        Limits(**{name: value})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"wait_s": float("nan")}, "--wait nan"),
        ({"job": "a\udcff"}, "cannot be the name of a job"),
        ({"source": " x"}, "begins or ends with a blank"),
        ({"source": "\udcff"}, "lone surrogate"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_refused_before_a_database_is_asked(
    options: dict[str, object], reason: str
) -> None:
    """ECOSYSTEM: a mistake in the command is told as one."""
    with pytest.raises(ConfigurationError, match=reason):
        order(**({"job": "pay", "key": "id"} | options))


def test_a_source_is_the_same_in_every_normal_form() -> None:
    """I1: a source is NFC text, like an id."""
    assert order(job="pay", key="id", source="e\u0301").source == "\u00e9"


@pytest.mark.parametrize("arguments", [("status", "--job"), ("job", "show"), ("reconcile", "--job")])
def test_an_argument_that_is_not_utf8_is_told_as_a_mistake(desk: Desk, arguments: tuple[str, ...]) -> None:
    """ECOSYSTEM: a mistake in the command ends with 78 and a sentence, not with a traceback."""
    asked = [sys.executable, "-m", "pgonce", *arguments, "a\udcff", "--dsn", desk.dsn]
    done = subprocess.run(asked, capture_output=True, timeout=END_S_MAX)
    assert done.returncode == 78
    assert done.stderr.splitlines()[-1].startswith(b"pgonce: an argument holds bytes that are not UTF-8")
