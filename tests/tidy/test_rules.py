"""Each house rule finds what it is there for, at the right line, and leaves what is in order alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidy import rules, sqlrules
from tidy.source import File, Rule, project_files

GOOD_PYTHON = '"""Do one job."""\n\nimport datetime\n\n\ndef day(at: datetime.date) -> int:\n    return at.day\n'
LONG_FUNCTION = '"""Doc."""\n\ndef long():\n' + "    x = 1\n" * rules.FUNCTION_LINES_MAX
GOOD_SQL = """\
-- Lock an event and read what is stored of it; a SELECT by key.
-- Lock: the event's row, for no key update.
-- Zero rows: nobody has taken this event yet.
with wanted as materialized (select 'FROM x' as id), given (id) as (values (1))
select e.status, extract(epoch from e.taken_at), e.a is distinct from e.b
from pgonce.event as e, pgonce.effect f, lateral (select 1) as one
join wanted w on w.id = e.event_id
left join unnest(%(IDS)s::text[]) as ids (id) using (id)
where exists (select from only pgonce.run) and e.job in (select id from given)
for no key update of e
"""
UPSERT = """\
-- Register an event that is new.
-- Lock: the row's, until the end of the transaction; waits for another inserter of the same key.
-- Zero rows: it is known already.
insert into pgonce.event as e (job, a) select job, %(a)s from pg_temp.chunk
on conflict (job) do update set job = excluded.job returning *
"""


@pytest.mark.parametrize(
    ("rule", "file", "line", "says"),
    [
        (rules.long_modules, File("a.py", "x = 1\n" * 401), 401, "401 lines"),
        (rules.long_functions, File("a.py", LONG_FUNCTION), 3, "long has 71 lines"),
        (rules.vague_names, File("src/pgonce/db/utils.py", ""), 1, "'utils' says nothing"),
        (rules.vague_names, File("src/pgonce/common/lock.py", ""), 1, "'common' says nothing"),
        (rules.vague_names, File("tests/_helpers.py", ""), 1, "'helpers' says nothing"),
        (rules.undocumented_modules, File("a.py", "x = 1\n"), 1, "no docstring"),
        (rules.impure_model, File("a.py", "import datetime as d\n\nx = d.datetime.now(d.UTC)\n"), 3, "d.datetime.now"),
        (rules.impure_model, File("a.py", "x = open('y')\n"), 1, "open reads or writes"),
        (rules.working_asserts, File("a.py", "x = 1\nassert lock.take(x), 'taken'\n"), 2, "calls lock.take"),
        (rules.unfinished_work, File("a.md", "one\n# TO" + "DO later\n"), 2, "marks unfinished work"),
        (rules.unfinished_work, File("a.md", "FIX" + "ME"), 1, "marks unfinished work"),
        (rules.foreign_words, File("a.md", "ok\nsee https://py" + "pi.org/x"), 2, "package registry"),
        (rules.foreign_words, File("a.md", "pip --inde" + "x-url x"), 1, "package index"),
        (rules.foreign_words, File("a.md", "cd /wor" + "k/main"), 1, "somebody's machine"),
        (rules.foreign_words, File("a.md", "`/hom" + "e/ann/x`"), 1, "somebody's machine"),
        (rules.loose_pins, File("constraints.txt", "# ok\na==1.0\nb>=2\n"), 3, "'b>=2'"),
        (rules.loose_pins, File("constraints.txt", "a @ file:///x\n"), 1, "name==version"),
        (sqlrules.headless_statements, File("a.sql", "select 1"), 1, "does not begin with"),
        (sqlrules.headless_statements, File("a.sql", "-- Read.\n-- Lock: none.\nselect 1"), 1, "'-- Zero rows:'"),
        (sqlrules.headless_statements, File("a.sql", "-- Read.\n-- Zero rows: x.\nselect 1"), 1, "'-- Lock:'"),
        (
            sqlrules.headless_statements,
            File("a.sql", "-- Lock: none.\n-- Zero rows: x.\nselect 1"),
            1,
            "does not begin",
        ),
        (sqlrules.several_statements, File("a.sql", "select 1; select 2"), 1, "2 statements"),
        (sqlrules.several_statements, File("a.sql", "select 'x"), 1, "never closed"),
        (sqlrules.shouted_keywords, File("a.sql", "-- A SELECT\nselect 'OK'\nFROM x"), 3, "FROM is in capitals"),
        (sqlrules.unqualified_tables, File("a.sql", "select 1\nfrom event"), 2, "event is not qualified"),
        (sqlrules.unqualified_tables, File("a.sql", "select from pgonce.event e,\nrun"), 2, "run is not"),
        (sqlrules.unqualified_tables, File("a.sql", "select from pgonce.event\njoin run r on true"), 2, "run is not"),
        (sqlrules.unqualified_tables, File("a.sql", "insert into event (a) values (1)"), 1, "event is not"),
        (sqlrules.unqualified_tables, File("a.sql", "\nupdate event set a = 1"), 2, "event is not"),
        (sqlrules.unqualified_tables, File("a.sql", "delete from other.event"), 1, "other.event is not"),
    ],
)
def test_rule_finds_it(rule: Rule, file: File, line: int, says: str) -> None:
    found = list(rule([file]))
    assert len(found) >= 1
    assert any(finding.startswith(f"{file.path}:{line}: ") and says in finding for finding in found), found


@pytest.mark.parametrize(
    "rule",
    [
        rules.long_modules,
        rules.long_functions,
        rules.vague_names,
        rules.undocumented_modules,
        rules.impure_model,
        rules.working_asserts,
        rules.unfinished_work,
        rules.foreign_words,
    ],
)
def test_rule_leaves_good_python_alone(rule: Rule) -> None:
    at_the_limit = GOOD_PYTHON + "\n" * (rules.MODULE_LINES_MAX - GOOD_PYTHON.count("\n"))
    assert list(rule([File("src/pgonce/model/day.py", at_the_limit)])) == []


@pytest.mark.parametrize(
    "rule",
    [
        sqlrules.headless_statements,
        sqlrules.several_statements,
        sqlrules.shouted_keywords,
        sqlrules.unqualified_tables,
    ],
)
def test_rule_leaves_good_sql_alone(rule: Rule) -> None:
    assert list(rule([File("lock_event.sql", GOOD_SQL), File("register_event.sql", UPSERT)])) == []


def test_public_names_without_docstring_or_rerun_line_are_found() -> None:
    def bare() -> None: ...

    def half() -> None:
        """Do it."""

    def whole() -> None:
        """Do it.

        Safe to re-run: yes.
        """

    found = list(rules.undocumented_names({"bare": bare, "half": half, "whole": whole, "LIMIT": 3}))
    assert found == [
        "pgonce.bare: the public name has no docstring",
        "pgonce.half: the docstring has no 'Safe to re-run:' line",
    ]


def test_an_export_without_git_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("x = 1\n")
    (tmp_path / "src" / "b.bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "c.py").write_text("x = 1\n")
    assert [file.path for file in project_files(tmp_path)] == ["src/a.py"]
