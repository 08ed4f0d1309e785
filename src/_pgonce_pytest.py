"""pytest plugin: fail a function or a command of yours at each statement boundary, as one test.

::

    @pytest.mark.pgonce_crash(setup="schema.sql")
    def test_settle(pgonce_crash):
        pgonce_crash(settle, "payments.csv")

Light to load: pgonce itself is imported when a test uses the fixture.
"""

from __future__ import annotations

import base64
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pgonce.crashtest.plan import Plan
    from pgonce.crashtest.report import Report

HOW = (
    "all, sample:N (N occurrences of a statement), or point:P (a point, or a point and a fault, as the report names it)"
)

_OPTIONS = frozenset(
    {"setup", "workdir", "env", "faults", "tables", "ignore", "log_tables", "compare_files", "invariants", "ok_exits"}
    | {"limit_s", "isolate", "jobs", "seed", "dsn", "database", "on_server"}
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--pgonce-crash``."""
    group = parser.getgroup("pgonce")
    group.addoption("--pgonce-crash", default="sample:4", metavar="HOW", help=f"How thorough pgonce_crash is: {HOW}")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and look at the option."""
    config.addinivalue_line(
        "markers", f"pgonce_crash({', '.join(sorted(_OPTIONS))}): what the fixture pgonce_crash is to work with"
    )
    _thoroughness(config)


@pytest.fixture
def pgonce_crash(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CrashTest:
    """Return what tests a function (``pgonce_crash(function, *arguments)``) or a ``pgonce_crash.command([...])``."""
    return CrashTest(request, tmp_path_factory)


class CrashTest:
    """Tests functions and commands; a test fails where they are not safe to run again, or could not be tested."""

    def __init__(self, request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> None:
        self._request = request
        self._folders = folders

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Report:
        """Test a function of a module, sync or async; ``{dsn}`` in a text argument is the database's address.

        It is called in a process of its own, where PG* and DATABASE_URL name the database. Safe to re-run: yes.
        """
        from pgonce.crashtest import calling

        if "<locals>" in function.__qualname__ or not hasattr(function, "__module__"):
            raise pytest.UsageError(
                "pgonce_crash needs a function that stands in a module: others cannot be called anew"
            )
        module = sys.modules[function.__module__]
        call = {
            "module": function.__module__,
            "file": getattr(module, "__file__", None),
            "name": function.__qualname__,
            "path": list(sys.path),
            "arguments": base64.b64encode(pickle.dumps((arguments, named))).decode(),
        }
        file = self._folders.mktemp("pgonce-crash") / "call.json"
        calling.write(file, call)
        return self.command([sys.executable, calling.__file__, str(file), "{dsn}"])

    def command(self, argv: Sequence[str]) -> Report:
        """Test a command. Safe to re-run: yes; it works on a throw-away server and a copy of the test's folder."""
        from pgonce.crashtest.conduct import conduct
        from pgonce.errors import Inconclusive

        try:
            report = conduct(self._plan(tuple(argv)), tell=lambda _: None, on_result=lambda *_: None)
        except Inconclusive as error:
            pytest.fail(f"it could not be tested: {error}", pytrace=False)
        if report.stopped_by:
            raise KeyboardInterrupt
        self._judge(report)
        return report

    def _plan(self, argv: tuple[str, ...]) -> Plan:
        from pgonce.crashtest.baseline import Rules
        from pgonce.crashtest.faults import Fault
        from pgonce.crashtest.lane import Command
        from pgonce.crashtest.plan import Plan

        given: dict[str, Any] = {}
        for marker in reversed(list(self._request.node.iter_markers("pgonce_crash"))):
            given |= marker.kwargs
        unknown = given.keys() - _OPTIONS
        if unknown:
            raise pytest.UsageError(f"pgonce_crash has no option {', '.join(sorted(unknown))}")
        here = self._request.path.parent
        setup = [given["setup"]] if isinstance(given.get("setup"), str | Path) else given.get("setup", ())
        how, value = _thoroughness(self._request.config)
        return Plan(
            command=Command(
                argv=argv,
                folder=here / given.get("workdir", ""),
                assignments=tuple(f"{name}={text}" for name, text in given.get("env", {}).items()),
                isolate=given.get("isolate", True),
            ),
            setup=tuple(here / script for script in setup),
            original_dsn=given.get("dsn"),
            original_database=given.get("database"),
            on_server=given.get("on_server", False),
            rules=Rules(
                tables=frozenset(given.get("tables", ())),
                ignore=frozenset(given.get("ignore", ())),
                log_tables=frozenset(given.get("log_tables", ())),
                files=tuple(given.get("compare_files", ())),
                invariants=tuple(given.get("invariants", ())),
                ok_exits=frozenset({0, *given.get("ok_exits", ())}),
            ),
            faults=tuple(Fault(name) for name in given.get("faults", ())),
            limit_s=given.get("limit_s"),
            jobs=given.get("jobs", 1),
            seed=given.get("seed", 0),
            per_statement=int(value) if how == "sample" else None,
            only=frozenset({value}) if how == "point" else frozenset(),
        )

    def _judge(self, report: Report) -> None:
        """Tell each point as a result of its own where pytest can, and fail with the sentence."""
        from pgonce.crashtest import astext

        try:
            subtests = self._request.getfixturevalue("subtests")
        except pytest.FixtureLookupError:
            subtests = None
        for point_id, results in report.points.items() if subtests is not None else ():
            with subtests.test(msg=f"{point_id} {report.met(point_id).words}"):
                told = [line for one in results if one.verdict.is_unsafe for line in astext.detail(report, one)]
                if told:
                    pytest.fail("\n".join([*told, self._replay(point_id)]), pytrace=False)
        if report.is_safe:
            return
        told = list(astext.lines(report))
        if report.results and (report.unsafe or report.unreached):
            told.append(self._replay((report.unsafe or report.unreached)[0].trial.name))
        pytest.fail("\n".join(told), pytrace=False)

    def _replay(self, name: str) -> str:
        return f"to see it again: pytest '{self._request.node.nodeid}' --pgonce-crash=point:{name}"


def _thoroughness(config: pytest.Config) -> tuple[str, str]:
    text = str(config.getoption("--pgonce-crash"))
    how, _, value = text.partition(":")
    if (
        (how == "all" and not value)
        or (how == "point" and value)
        or (how == "sample" and value.isdigit() and value != "0")
    ):
        return how, value
    raise pytest.UsageError(f"--pgonce-crash={text} is none of: {HOW}")
