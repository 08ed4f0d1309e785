"""A state that is cloned on the server of the original itself: nothing there is written, crashed, ended or left."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from crashtest.hosted import CUTS, DOUBLED, crash, ours
from crashtest.programs import INSERT_THEN_MARK_SQL, PSQL, SCHEMA, crash_psql, crash_python, plan, unsafe_of
from pgonce import server as embedded
from pgonce.crashtest import astext
from pgonce.crashtest.conduct import conduct
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.peer import terminate
from pgonce.errors import ConfigurationError, Inconclusive
from pgonce.server import find
from server.processes import until

OLDEST = Path("/usr/lib/postgresql/15/bin")


@pytest.mark.parametrize("jobs", [1, 2])
def test_clones_show_what_a_scratch_server_shows(shop: str, folder: Path, jobs: int) -> None:
    """Every fault but a crash is tried, in as many clones as there are jobs; the report says where."""
    report = crash(folder, shop, faults=(), jobs=jobs)
    assert report.faults == tuple(fault for fault in Fault if fault is not Fault.CRASH)
    assert unsafe_of(report) >= DOUBLED
    assert {blow.split()[0] for _, blow, _ in unsafe_of(report)} == {
        "cut-before",
        "cut-after",
        "serialization",
        "kill",
        "terminate",
    }
    assert not report.unreached
    name = conninfo_to_dict(shop)["dbname"]
    assert any(line.startswith(f"tested in clones of {name!r} on its own server") for line in astext.lines(report))


def test_a_test_on_clones_goes_on_where_it_was_stopped(shop: str, folder: Path, tmp_path: Path) -> None:
    """The clones have other names at every start, and the points the same."""
    kept = tmp_path / "tried.jsonl"
    first = crash(folder, shop, faults=CUTS, resume=kept)
    lines = kept.read_text().splitlines()
    kept.write_text("\n".join(lines[:-2]) + "\n")
    second = crash(folder, shop, faults=CUTS, resume=kept)
    assert len(kept.read_text().splitlines()) == len(lines)
    assert unsafe_of(second) == unsafe_of(first) == DOUBLED


def test_the_oldest_server_can_be_a_host(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> None:
    """PostgreSQL 15, with the programs of a newer release on our side, also where it has to be dumped."""
    version = find.version_of(OLDEST)
    if version is None:
        pytest.skip(f"there is no PostgreSQL 15 in {OLDEST}")
    binaries = embedded.Binaries(OLDEST, version, "the test")
    with embedded.scratch(settings={"fsync": "off"}, binaries=binaries, parent=embedded.memory_folder()) as server:
        dsn = server.dsn
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create database shop")
        shop = make_conninfo(dsn, dbname="shop")
        with psycopg.connect(shop, autocommit=True) as connection:
            connection.execute(SCHEMA.encode())
        report = crash(folder, shop, faults=CUTS)
        assert unsafe_of(report) == DOUBLED
        assert report.server.startswith("15.")
        with psycopg.connect(shop):
            report = crash(folder, shop, faults=CUTS)
        assert unsafe_of(report) == DOUBLED
        assert "dumped and restored, not cloned" in " ".join(report.baseline.notes)
        assert ours(dsn) == []


def test_a_database_that_is_read_only_for_others_is_cloned_all_the_same(
    make_database: Callable[..., str], folder: Path
) -> None:
    """The clones have its setting, so the program meets it, and the making of databases does not."""
    dsn = make_database()
    name = sql.Identifier(str(conninfo_to_dict(dsn)["dbname"]))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SCHEMA.encode())
        connection.execute(sql.SQL("alter database {} set default_transaction_read_only = on").format(name))
    with pytest.raises(Inconclusive, match="in a read-only transaction"):
        crash(folder, dsn, faults=CUTS)
    report = crash(folder, dsn, f"set default_transaction_read_only = off;{INSERT_THEN_MARK_SQL}", faults=CUTS)
    assert unsafe_of(report) == DOUBLED
    assert ours(dsn) == []


def test_a_crash_of_a_server_that_serves_others_is_refused(folder: Path) -> None:
    """Asked for by name, before anything is made; and there has to be a database to clone."""
    with pytest.raises(ConfigurationError, match="'crash' ends the whole server, and that of --dsn serves others"):
        crash(folder, "host=127.0.0.1 port=1", faults=(Fault.KILL, Fault.CRASH))
    with pytest.raises(ConfigurationError, match="name it with --dsn or --database"):
        crash_psql(folder, "select 1", on_server=True, faults=())


def test_an_original_in_use_is_dumped_and_nobody_is_thrown_out(shop: str, folder: Path) -> None:
    """A session in the original makes a clone impossible; it stays, and another way leads to the same verdict."""
    with psycopg.connect(shop) as somebody:
        somebody.execute("insert into done values ('not committed')")
        report = crash(folder, shop, faults=CUTS, jobs=2)
        somebody.execute("select 1")
        somebody.rollback()
    assert unsafe_of(report) == DOUBLED
    name = conninfo_to_dict(shop)["dbname"]
    assert f"others were connected to {name!r}, so it was dumped and restored, not cloned" in report.baseline.notes


@pytest.fixture
def as_clerk(shop: str) -> Iterator[Callable[[str], str]]:
    """A role with the attributes that a test gives it; return the original's address as that role."""

    def make(attributes: str) -> str:
        with psycopg.connect(shop, autocommit=True) as connection:
            connection.execute(f"create role crash_guest login {attributes}".encode())
        return make_conninfo(shop, user="crash_guest")

    yield make
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("drop owned by crash_guest")
        connection.execute("drop role crash_guest")


def test_a_role_without_createdb_is_told_what_it_lacks(as_clerk: Callable[[str], str], folder: Path) -> None:
    """And what to do."""
    with pytest.raises(ConfigurationError, match=r"may not make databases on this server. Give it the right \(ALTER"):
        crash(folder, as_clerk(""), faults=CUTS)


def test_a_role_that_may_not_clone_is_told_what_it_lacks(as_clerk: Callable[[str], str], folder: Path) -> None:
    """It may make databases, and the original is another's."""
    with pytest.raises(ConfigurationError, match=r"may not clone(.|\n)*Name its owner or a superuser in --dsn"):
        crash(folder, as_clerk("createdb"), faults=CUTS)


def test_rows_that_a_policy_hides_are_never_taken_for_rows_that_are_not_there(
    make_database: Callable[..., str], folder: Path
) -> None:
    """The owner of the database that may not see every row cannot compare, and is told."""
    shop = make_database()
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("drop role if exists crash_owner")
        connection.execute("create role crash_owner login createdb")
        connection.execute(SCHEMA.encode())
        connection.execute("grant all on all tables in schema public to crash_owner")
        connection.execute("alter table ledger enable row level security")
        connection.execute("create policy own on ledger using (payment_id = 'none') with check (true)")
        name = sql.Identifier(str(conninfo_to_dict(shop)["dbname"]))
        connection.execute(sql.SQL("alter database {} owner to crash_owner").format(name))
    with pytest.raises(ConfigurationError, match=r"row-level security policy(.|\n)*may read every table"):
        crash(folder, make_conninfo(shop, user="crash_owner"), faults=CUTS)
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("alter table ledger disable row level security")
    report = crash(folder, make_conninfo(shop, user="crash_owner"), faults=(Fault.CUT_AFTER, Fault.TERMINATE))
    assert ("insert into ledger", "cut-after", "DOUBLED") in unsafe_of(report)
    assert ours(shop) == []
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute(sql.SQL("alter database {} owner to current_user").format(name))
        connection.execute("drop owned by crash_owner")
        connection.execute("drop role crash_owner")


def test_only_the_original_s_name_leads_anywhere_and_only_to_a_clone(shop: str, folder: Path) -> None:
    """A program with another database's name in it is told so, and nothing of it reaches that one."""
    program = "import psycopg\npsycopg.connect('').execute('select 1')\npsycopg.connect('dbname=postgres')"
    with pytest.raises(Inconclusive, match=r"leads to the database '[^']+' only, not elsewhere"):
        crash_python(folder, program, schema="select 1", original_dsn=shop, on_server=True, faults=CUTS)
    name = conninfo_to_dict(shop)["dbname"]
    program = f"import psycopg\nwith psycopg.connect('dbname={name}') as c:\n"
    program += "    assert c.execute('select current_database()').fetchone()[0].startswith('pgonce_crashtest_')\n"
    program += "    c.execute(\"insert into done values ('x') on conflict do nothing\")"
    report = crash_python(folder, program, schema="select 1", original_dsn=shop, on_server=True, faults=CUTS)
    assert report.is_safe, report.sentence


def test_a_backend_of_another_database_is_never_ended(shop: str, make_database: Callable[..., str]) -> None:
    """Its number may have been a clone's a moment ago."""
    other = make_database()
    with psycopg.connect(other, autocommit=True) as bystander, psycopg.connect(shop, autocommit=True) as client:
        terminate(shop, bystander.info.backend_pid, str(conninfo_to_dict(shop)["dbname"]))
        bystander.execute("select 1")
        terminate(other, client.info.backend_pid, str(conninfo_to_dict(shop)["dbname"]))
        with pytest.raises(psycopg.errors.AdminShutdown):
            client.execute("select 1")


def test_a_password_is_handed_on_and_shown_to_nobody(folder: Path, tmp_path: Path) -> None:
    """Over TCP with SCRAM: the program logs in with the role's own password, and no command line holds it."""
    (folder / "job.sh").write_text(f"exec '{PSQL}' -Xq -v ON_ERROR_STOP=1 \"$DATABASE_URL\" -f job.sql\n")
    (folder / "job.sql").write_text("insert into done values ('x') on conflict do nothing")
    seen = tmp_path / "seen"
    looks = f"\\! tr '\\0' ' ' < /proc/$PPID/cmdline > {seen}\n"
    with embedded.scratch(settings={"fsync": "off"}, tcp=True, parent=embedded.memory_folder()) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(SCHEMA.encode())
        made = plan(
            folder,
            ["sh", "job.sh"],
            schema=looks,
            original_dsn=server.tcp_dsn,
            on_server=True,
            faults=(Fault.CUT_AFTER, Fault.TERMINATE),
        )
        report = conduct(made, tell=lambda _: None, on_result=lambda *_: None)
        assert report.is_safe, report.sentence
        assert all("ended by the time limit" not in result.exits for result in report.results)
        assert "psql" in seen.read_text()
        assert str(conninfo_to_dict(server.tcp_dsn)["password"]) not in seen.read_text()
        assert ours(server.dsn) == []


def test_a_connection_that_is_encrypted_is_not_made_another_in_silence(folder: Path, tmp_path: Path) -> None:
    """The proxy's connection to the server could not be encrypted, so the user has to say that it need not be."""
    version, openssl = find.version_of(OLDEST), shutil.which("openssl")
    if version is None or openssl is None:
        pytest.skip(f"a server with TLS is the one of {OLDEST}, and openssl makes its certificate")
    binaries = embedded.Binaries(OLDEST, version, "the test")
    with embedded.scratch(tcp=True, binaries=binaries, parent=embedded.memory_folder()) as server:
        key, certificate = server.pgdata / "key", server.pgdata / "certificate"
        argv: list[str | Path] = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
        subprocess.run([*argv, "-keyout", key, "-out", certificate], capture_output=True, check=True)
        owner = server.pgdata.stat()
        for file in (key, certificate):
            file.chmod(0o600)
            os.chown(file, owner.st_uid, owner.st_gid)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(SCHEMA.encode())
            for setting in ("ssl_cert_file = 'certificate'", "ssl_key_file = 'key'", "ssl = on"):
                connection.execute(f"alter system set {setting}".encode())
            connection.execute("select pg_reload_conf()")
        secret = make_conninfo(server.tcp_dsn, sslmode="require")
        until(lambda: takes_tls(secret))
        with pytest.raises(ConfigurationError, match=r"encrypted by TLS(.|\n)*sslmode=disable in --dsn"):
            crash(folder, secret, faults=CUTS)
        report = crash(folder, make_conninfo(secret, sslmode="disable"), faults=(Fault.CUT_AFTER,))
        assert ("insert into ledger", "cut-after", "DOUBLED") in unsafe_of(report)


def takes_tls(dsn: str) -> bool:
    """Say whether a server that has just been told to take TLS does."""
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_prepared_transaction_in_a_clone_does_not_keep_it(shop: str, folder: Path) -> None:
    """It would hold the clone for ever."""
    script = "select not exists (select from pg_prepared_xacts) as fresh \\gset\n\\if :fresh\nbegin;\n"
    script += "insert into done values ('x') on conflict do nothing;\nprepare transaction 'left';\n"
    script += "commit prepared 'left';\n\\endif\n"
    report = crash(folder, shop, script, faults=(Fault.CUT_BEFORE,))
    assert any(result.evidence.leftovers for result in report.results)
