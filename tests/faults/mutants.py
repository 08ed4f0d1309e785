"""Plant bugs in a copy of the source, one at a time, and require that the tests turn red: `make mutants`.

A bug is a replacement of exact text, so that a change of the source that moves it away from its place is an error and
not a bug that is never planted. Names given as arguments choose mutants by a part of their name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The tests of one mutant take seconds; a mutant that makes one hang is caught by that, and must not stop the others.
MUTANT_S_MAX = 240.0

# A single test that hangs under a mutant fails after this.
TEST_S_MAX = 60

RACES = "tests/database/test_races.py"
IN_DOUBT = "tests/database/test_in_doubt.py"
OWNERSHIP = "tests/database/test_ownership.py"
BISECT = "tests/database/test_bisect.py"
IDENTITY = "tests/database/test_identity_rules.py"
KILLS = "tests/faults/test_kills.py"
KILLS_SAMPLE = f"{KILLS}::test_killed_at_any_instant_a_run_ends_exact"
KILLS_EFFECT = f"{KILLS}::test_killed_inside_the_users_effect_the_balances_are_exact"
KILLS_ZOMBIE = f"{KILLS}::test_a_frozen_owner_that_was_taken_over_commits_nothing_more"
LOST = "tests/faults/test_lost_commits.py"
LOST_LIVE = f"{LOST}::test_a_live_run_goes_on_from_what_is_stored"
LOST_TWINS = f"{LOST}::test_another_start_under_the_same_epoch_is_not_mistaken_for_ones_own"
LOST_FINISH = f"{LOST}::test_commits_lost_between_the_last_chunk_and_the_finish_are_noticed"
LOST_DURABLE = f"{LOST}::test_no_acknowledged_chunk_is_lost_though_the_database_commits_asynchronously"

BREAK = 'transaction.connection.execute("commit")\n{indent}transaction.connection.execute("begin")\n'


@dataclass(frozen=True, slots=True)
class Edit:
    """A piece of a file under ``src/pgonce`` that stands there once, and what is put in its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug, and the tests of which at least one has to fail under it."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


MOVE = "sql/statements/move_position.sql"
POSITION, SETTLE, APPLY, RUN = "engine/position.py", "engine/settle.py", "engine/apply.py", "engine/run.py"
OWNER, TRANSACTION = "engine/ownership.py", "db/transaction.py"

MUTANTS = (
    Mutant(
        "state committed before the effect, in two transactions",
        (
            Edit(
                APPLY,
                "    if settled.applied:\n        effect(settled.applied)\n",
                "    if settled.applied:\n        " + BREAK.format(indent=" " * 8) + "        effect(settled.applied)\n",
            ),
        ),
        (KILLS_EFFECT,),
    ),
    Mutant(
        "position moved in a transaction of its own, after the effect's",
        (
            Edit(
                SETTLE,
                "                    settled, to = body(transaction)\n",
                "                    settled, to = body(transaction)\n"
                + " " * 20
                + BREAK.format(indent=" " * 20),
            ),
        ),
        (RACES,),
    ),
    Mutant(
        "position saved before the chunk commits, outside its transaction",
        (
            Edit(
                POSITION,
                '    found = transaction.row(\n        "move_position",',
                "    import psycopg\n    other = psycopg.connect(session.target.conninfo, autocommit=True)\n"
                '    found = Transaction(other, transaction.schema).row(\n        "move_position",',
            ),
            Edit(POSITION, "    if found is None:\n        raise PositionLost\n", "    other.close()\n"),
        ),
        (KILLS_SAMPLE,),
    ),
    Mutant(
        "no row lock on a pending event",
        (Edit("sql/statements/lock_events.sql", "for no key update of e\n", "\n"),),
        (RACES,),
    ),
    Mutant(
        "a lost insert race taken for won",
        (Edit(APPLY, "    if found is None or found[0] != len(judged):\n        raise Redo\n", ""),),
        (RACES,),
    ),
    Mutant(
        "tag of COMMIT unchecked, failed statement before it ignored",
        (
            Edit(TRANSACTION, '        if tag != "COMMIT":\n', "        if tag is None:\n"),
            Edit(TRANSACTION, "                self._refuse_if_failed(connection)\n", "                pass\n"),
        ),
        (IN_DOUBT,),
    ),
    Mutant(
        "COMMIT in doubt done again without looking",
        (Edit(SETTLE, "                if committed(self.clerk, self.held, deadline):\n", "                if False:\n"),),
        (IN_DOUBT,),
    ),
    Mutant(
        "COMMIT in doubt taken for done",
        (Edit(SETTLE, "                if committed(self.clerk, self.held, deadline):\n", "                if True:\n"),),
        (IN_DOUBT,),
    ),
    Mutant(
        "COMMIT in doubt looked up without a lock",
        (
            Edit(
                POSITION,
                '                row = transaction.row("lock_start", run_id=held.run_id, epoch=held.epoch)\n            return',
                '                row = transaction.row("read_start", run_id=held.run_id, epoch=held.epoch)\n            return',
            ),
        ),
        (IN_DOUBT,),
    ),
    Mutant(
        "position moved without compare-and-set",
        (Edit(MOVE, "    and s.chunks = %(chunks)s::bigint and s.position = %(from_position)s::bigint and", "    and"),),
        (LOST_LIVE,),
    ),
    Mutant(
        "a start that was ended moves on",
        (
            Edit(MOVE, " and s.ended_at is null\n", "\n"),
        ),
        (KILLS_ZOMBIE,),
    ),
    Mutant(
        "one position for two starts: the token is not looked at",
        (
            Edit(MOVE, " and s.token = %(token)s::uuid\n", "\n"),
            Edit(POSITION, "    if row is None or row[0] != held.token:\n        _moved", "    if row is None:\n        _moved"),
            Edit(POSITION, "(row[0], row[1], row[4]) != (held.token, held.position.offset", "(row[1], row[4]) != (held.position.offset"),
            Edit(POSITION, "    if row is None or row[0] != held.token:\n        raise LeaseLost", "    if row is None:\n        raise LeaseLost"),
        ),
        (LOST_TWINS,),
    ),
    Mutant(
        "the finish believes the remembered position",
        (Edit(RUN, "        require_stored(transaction, held)\n", ""),),
        (LOST_FINISH,),
    ),
    Mutant(
        "payload not compared when the event is completed",
        (Edit(APPLY, "        if reason is not None:\n", '        if reason is not None and event.status != "completed":\n'),),
        (IDENTITY,),
    ),
    Mutant(
        "attempts not stored",
        (
            Edit(
                "sql/statements/refuse_event.sql",
                "attempts = e.attempts + %(attempts)s::integer",
                "attempts = e.attempts + 0 * %(attempts)s::integer",
            ),
        ),
        (BISECT,),
    ),
    Mutant(
        "release without token",
        (Edit("sql/statements/end_start.sql", "\n    and s.token = %(token)s::uuid\n", "\n"),
         Edit("sql/statements/end_start.sql", "where s.run_id = %(run_id)s::bigint and s.epoch = %(epoch)s::integer and", "where s.run_id = %(run_id)s::bigint and")),
        (OWNERSHIP,),
    ),
    Mutant(
        "an error behind the commit turns success into failure",
        (Edit(SETTLE, "        except Exception:  # noqa: BLE001 - who looks on cannot break a job\n            return\n", "        except ZeroDivisionError:\n            return\n"),),
        (OWNERSHIP,),
    ),
    Mutant(
        "counts kept in memory",
        (
            Edit(SETTLE, "    refused_events: int = 0\n", "    refused_events: int = 0\n    seen: Settled = field(default_factory=Settled)\n    applied: list[Row] = field(default_factory=list)\n"),
            Edit(SETTLE, "from dataclasses import dataclass\n", "from dataclasses import dataclass, field\n"),
            Edit(SETTLE, "                    settled, to = body(transaction)\n", "                    settled, to = body(transaction)\n                    self.seen.include(settled)\n                    self.applied += settled.applied\n"),
            Edit(RUN, "        return count_start(transaction, order.job, held.run_id, held.epoch), whole\n", "        from pgonce.model.outcome import Tally\n        seen, applied = settler.seen, Tally(len(settler.applied), sum(row.amount_cents for row in settler.applied))\n        return Counts(read=Tally(seen.rows, seen.cents), applied=applied, already=seen.already), whole\n"),
        ),
        (IN_DOUBT,),
    ),
    Mutant(
        "owner never considered gone",
        (Edit(OWNER, "started=backend_start) is not None\n", "started=backend_start) is not False\n"),),
        (OWNERSHIP,),
    ),
    Mutant(
        "owner always considered gone",
        (Edit(OWNER, "started=backend_start) is not None\n", "started=backend_start) is False\n"),),
        (OWNERSHIP,),
    ),
    Mutant(
        "commits are not made durable",
        (Edit("sql/statements/set_local.sql", "set_config('synchronous_commit', 'on', true)", "current_setting('synchronous_commit')"),),
        (LOST_DURABLE,),
    ),
)  # fmt: skip


class NotPlanted(Exception):
    """The text of an edit does not stand in its file exactly once: the mutant has to follow the source."""


def plant(mutant: Mutant, package: Path) -> None:
    """Carry out the edits of a mutant in a copy of the package. Raises NotPlanted."""
    for edit in mutant.edits:
        path = package / edit.file
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise NotPlanted(f"{edit.file} holds this text {text.count(edit.old)} times:\n{edit.old}")
        path.write_text(text.replace(edit.old, edit.new))


def run_tests(source: Path, tests: tuple[str, ...], limit_s: float) -> tuple[int | None, str]:
    """Run tests against a copy of the source; return pytest's exit code (None: it hung) and its output."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    where = "import pgonce, sys; sys.exit(not pgonce.__file__.startswith(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", where, str(source)], env=environment, cwd=ROOT, check=True)
    options = ("-x", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_S_MAX}", "--color=no", "--tb=line")
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        return None if (output := _output(process, limit_s)) is None else process.returncode, output or ""
    finally:
        process.kill()
        process.wait()


def _output(process: subprocess.Popen[str], limit_s: float) -> str | None:
    try:
        return process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        return None


def try_out(mutant: Mutant, folder: Path) -> str:
    """Run the tests of a mutant; return which test caught it, empty if none did."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    try:
        plant(mutant, source / "pgonce")
        code, output = run_tests(source, mutant.tests, MUTANT_S_MAX)
    finally:
        shutil.rmtree(source)
    if code is None:
        return f"hung for {MUTANT_S_MAX:.0f} s"
    failed = re.search(r"^FAILED \S+::(\S+)", output, re.MULTILINE)
    if code == 0:
        return ""
    if code != 1 or failed is None:
        raise RuntimeError(f"pytest ended with {code} and no failed test:\n{output[-3000:]}")
    return failed.group(1)


def main(names: list[str]) -> int:
    """Try the mutants; return 0 if every one was caught."""
    chosen = [mutant for mutant in MUTANTS if not names or any(name in mutant.name for name in names)]
    survived = []
    with tempfile.TemporaryDirectory(prefix="pgonce-mutants-") as folder:
        tests = tuple(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
        code, output = run_tests(ROOT / "src", tests, MUTANT_S_MAX * 2)
        if code != 0:
            print(f"these tests are red without any mutant:\n{output[-3000:]}")
            return 1
        print(f"{'mutant':<64}  {'seconds':>7}  caught by", flush=True)
        for mutant in chosen:
            began_s = time.monotonic()
            caught = try_out(mutant, Path(folder))
            print(f"{mutant.name:<64}  {time.monotonic() - began_s:7.1f}  {caught or 'NOTHING'}", flush=True)
            if not caught:
                survived.append(mutant.name)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} mutants caught")
    return 1 if survived or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
