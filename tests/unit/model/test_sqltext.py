"""The user's SQL is cut where PostgreSQL would cut it, and what would leave the transaction is refused."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgonce.errors import ConfigurationError
from pgonce.model.sqltext import SQL_CHARACTERS_MAX, Statement, refuse_transaction_control, split_statements


def texts(sql: str) -> list[str]:
    return [statement.text for statement in split_statements(sql)]


def test_statements_carry_their_text_line_and_first_word() -> None:
    sql = "\n-- balances\nUPDATE a\n  set x = 1;\n\n/* then */ (select 1);\n delete from b"
    assert split_statements(sql) == (
        Statement(text="UPDATE a\n  set x = 1", line=3, keyword="update"),
        Statement(text="(select 1)", line=6, keyword="select"),
        Statement(text="delete from b", line=7, keyword="delete"),
    )


@pytest.mark.parametrize("sql", ["", "  \n", ";", ";;\n ; ", "-- only this", "/* a; */ ; -- b;\n;", "\ufeff"])
def test_empty_statements_are_dropped(sql: str) -> None:
    assert split_statements(sql) == ()


def test_a_byte_order_mark_does_not_hide_the_first_word() -> None:
    assert split_statements("\ufeffcommit")[0].keyword == "commit"


# Each is one statement for PostgreSQL, whatever it holds.
WHOLE = [
    "select 'a;b'",
    "select 'it''s; fine'",
    r"select 'a\'",
    r"select E'a\';b'",
    r"select e'\\'",
    "select E'a''b;'",
    r"select E'a''b\';c'",
    "select E'a'\n  'b\\';c'",
    "select E'a' -- note\n  'b\\';c'",
    "select 'a'\n'b;c'",
    "select U&'d\\0061t;'",
    'select U&"d;" from t',
    "select N'a;', b'01', X'1F'",
    'select "a;b", "c""d;"',
    "select $$a;b$$",
    "select $body$ a; $$ b; $$ $ $body$",
    "do $_1$ begin; end $_1$",
    "select $é$ ; $é$",
    "select a$b$ from t",
    "select $1, $2 from t",
    "select 1 -- note; with 'quote\n + 1",
    "select 1 /* a; /* b; */ c; */ + 1",
    "select 4 /* -- */ + 1",
    "select 3--2;\n + 1",
    "create rule r as on insert to t do also (insert into a values (1); insert into b values (2))",
    "select ((1) + (2))",
    "select a[1:2], b::text, c ->> 'x', d @> '{}' from t",
    "select 'ключ;' as ключ",
    "create function f() returns int language sql begin atomic; select 1; select 2; end",
    "create or replace procedure p() begin atomic insert into t values (1); insert into t values (2); end",
    "CREATE FUNCTION f() BEGIN ATOMIC select CASE a when 1 then 1 END; select (case a when 1 then 2 end); END",
    "create function f() returns int begin atomic select case when a then case b when 1 then 2 end end; select 1; end",
    "create function f() returns int begin atomic select 1 as end, t.end, 2 as case from t; select 3; end",
    "create function f() returns int as $$ begin; end $$ language plpgsql",
]
# Each is one statement too, and looks like the start of something that it is not.
PLAIN = [
    "select 1",
    "update account set balance = balance + 1",
    "create table begin (atomic int)",
    "select case when a then b end from t",
    "create view begin_atomic as select 1",
    "drop function begin",
    "select begin atomic from t",
    "create function atomic() returns int as $$ select 1 $$ language sql",
    "create function f(begin atomic) returns int as $$ select 1 $$ language sql",
    "1 + 1",
]


@pytest.mark.parametrize("sql", [*WHOLE, *PLAIN])
def test_one_statement_stays_whole_and_the_next_one_is_cut_off(sql: str) -> None:
    assert texts(sql) == [sql]
    assert texts(f"{sql};commit") == [sql, "commit"]
    assert texts(f"select 0;{sql}\n;\ncommit ;") == ["select 0", sql, "commit"]


@given(
    st.lists(st.sampled_from([*WHOLE, *PLAIN]), max_size=6),
    st.lists(
        st.sampled_from([";", " ;\n", ";;", "; -- a 'note;\n", "\n;/* $$ ; /* */ */", ";\t\r\n"]),
        min_size=6,
        max_size=6,
    ),
    st.sampled_from(["", ";", " \n", "-- end"]),
)
@example(["select a$b$ from t", "select c$b$ from t"], [";"] * 6, "")
def test_joined_statements_split_back(statements: list[str], separators: list[str], ending: str) -> None:
    sql = "".join(a + b for a, b in zip(statements, separators, strict=False))
    sql = sql if ending != "" or not statements else sql.rstrip(";")
    assert texts(sql + ending) == statements


@given(st.text(alphabet="aeE'\"$;()/*-\\\n .1_\u00e9begincasatomd", max_size=60))
def test_any_text_is_split_or_refused_and_nothing_but_comments_and_space_is_lost(sql: str) -> None:
    try:
        statements = split_statements(sql)
    except ConfigurationError:
        return
    at = 0
    for statement in statements:
        start = sql.index(statement.text, at)
        at = start + len(statement.text)
        assert statement.text == statement.text.strip(" \t\n\r\f\v")
    for statement in statements:
        assert texts(statement.text) == [statement.text], "a statement is one statement when it is read again"


@given(st.text(alphabet=st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=40))
def test_no_content_of_a_quote_is_ever_read_as_sql(content: str) -> None:
    quoted = [
        "'" + content.replace("'", "''") + "'",
        '"' + content.replace('"', '""') + '"',
        "E'" + content.replace("\\", "\\\\").replace("'", "\\'") + "'",
        "$q$" + content.replace("$", "") + "$q$",
    ]
    for literal in quoted:
        assert texts(f"select {literal};commit") == [f"select {literal}", "commit"]


@pytest.mark.parametrize(
    ("sql", "line", "says"),
    [
        ("select 1;\n\\copy t from 'x'", 2, "command of psql"),
        ("select 1 \\gexec", 1, "command of psql"),
        ("\\.", 1, "command of psql"),
        ("select\n'abc", 2, "string opened here is never closed"),
        ("select E'abc\\'", 1, "string opened here is never closed"),
        ("select E'a'\n'b\\'", 1, "string opened here is never closed"),
        ('select\n\n"abc', 3, "quoted name opened here is never closed"),
        ("select $a$ $b$", 1, "dollar-quoted string opened here is never closed"),
        ("select 1;\n/* /* */", 2, "comment opened here is never closed"),
        ("select (\n(1;\nselect 2", 2, "parenthesis opened here is never closed"),
        ("create function f() begin atomic select 1;\nselect 2;", 1, "block (begin atomic or case)"),
        ("copy t from stdin;\n1\n", 1, "moves data through the client"),
        ("select 1;\nCOPY (select 1) /* x */ TO STDOUT", 2, "moves data through the client"),
        ("select 1;\nselect '\n' || \x00", 3, "NUL character"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_line(sql: str, line: int, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        split_statements(sql)
    assert f"line {line}:" in str(caught.value)
    assert says in str(caught.value)


def test_copy_between_the_server_and_its_files_is_one_statement() -> None:
    assert texts("copy t from '/srv/a.csv'; copy t to program 'cat'") == [
        "copy t from '/srv/a.csv'",
        "copy t to program 'cat'",
    ]


def test_a_text_beyond_the_limit_is_refused() -> None:
    assert split_statements("-" * SQL_CHARACTERS_MAX) == ()
    with pytest.raises(ConfigurationError, match="more than the 1,000,000 allowed"):
        split_statements("-" * (SQL_CHARACTERS_MAX + 1))


CONTROL = """
begin | begin isolation level serializable | start transaction | commit | commit and chain | end | end work | rollback
rollback to savepoint a | abort | savepoint a | release a | release savepoint a | prepare transaction 'x'
commit prepared 'x' | rollback prepared 'x' | set transaction isolation level serializable
set local transaction read only | set session characteristics as transaction read only | set transaction snapshot 'x'
"""
SESSION = """
set search_path = x | set session search_path to x | set role r | set session authorization r | set time zone 'UTC'
reset all | reset role | discard all | discard temp
"""
SESSION_OBJECT = """
listen c | unlisten * | prepare p as select 1 | deallocate all | load 'x' | declare c cursor with hold for select 1
"""
NO_BLOCK = """
vacuum | vacuum full t | create database d | drop database d | create tablespace s location 'x' | alter system set a = b
create index concurrently i on t (a) | create unique index concurrently i on t (a) | drop index concurrently i | cluster
reindex table concurrently t | reindex (concurrently) table t | reindex database d | reindex schema s
alter table p detach partition c concurrently
"""
GUARDED = """
set local synchronous_commit = off | set local "Synchronous_Commit" to off
set local session_replication_role = replica
set local transaction_isolation = serializable | set local transaction_read_only = on
"""
ALLOWED = """
select 1 | update a set b = 1 | with x as (select 1) insert into t select * from x | lock table t in share mode
do $$ begin commit; end $$ | call p() | notify c, 'x' | set local work_mem = '64MB' | set local role r
set constraints all deferred | set local time zone 'UTC' | create index i on t (a) | reindex table t | cluster t using i
alter table p detach partition c | declare c cursor for select 1 | values (1)
create temp table x (a int) on commit drop
select 'commit' | "commit" | delete from "end" | select end_of from begin_of | truncate t | analyze t
refresh materialized view concurrently v | explain analyze select 1
merge into a using b on true when matched then delete
"""


def cases(block: str) -> list[str]:
    return [sql.strip() for line in block.strip().splitlines() for sql in line.split(" | ")]


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        *((sql, "is transaction control") for sql in cases(CONTROL)),
        *((sql, "changes the session") for sql in cases(SESSION)),
        *((sql, "leaves something behind in the session") for sql in cases(SESSION_OBJECT)),
        *((sql, "cannot run inside a transaction block") for sql in cases(NO_BLOCK)),
        *((sql, "changes a setting that the checkpoint depends on") for sql in cases(GUARDED)),
    ],
)
def test_what_would_leave_the_transaction_is_refused_in_any_spelling(sql: str, says: str) -> None:
    commented = "/* a */ -- b\n" + sql.replace(" ", " /* x */\n", 1)
    for spelling in (sql, sql.upper(), f"\t{sql} ;", commented):
        with pytest.raises(ConfigurationError) as caught:
            refuse_transaction_control(split_statements(f"select 1;\n{spelling}"))
        assert says in str(caught.value)
        assert f"line {3 if spelling is commented else 2}: " in str(caught.value)


@pytest.mark.parametrize("sql", cases(ALLOWED))
def test_what_stays_inside_the_transaction_is_allowed(sql: str) -> None:
    refuse_transaction_control(split_statements(sql))
    refuse_transaction_control(split_statements(sql.upper()))


def test_the_message_quotes_the_start_of_a_long_statement() -> None:
    with pytest.raises(ConfigurationError, match=r"^line 1: 'commit  ?and .*\.\.\.' is transaction control"):
        refuse_transaction_control(split_statements("commit and\n" + "chain " * 40))


def test_keywords_are_folded_as_the_server_does_it() -> None:
    """U+212A KELVIN SIGN is a letter of its own for the server, so this is a call of nothing, not ROLLBACK."""
    refuse_transaction_control(split_statements("rollbac\u212a"))
