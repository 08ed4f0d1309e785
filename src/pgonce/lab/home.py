"""Where a lab lies: a private folder with a server of its own; ``up`` makes it, ``clean`` removes it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from pgonce.errors import ConfigurationError, Unreachable
from pgonce.lab import envfile, marker
from pgonce.server import ScratchServer, cluster, scratch, users, watch
from pgonce.server import place as places
from pgonce.server.find import Binaries, find_version
from pgonce.server.place import Place, explained

VERSION = (18, 6)
"""The release on which the lab's lines were written down; another one might lock, wait or fail elsewhere."""
USER, DATABASE, SCHEMA = "lab", "postgres", "wiki_lab"
PATH_BYTES_MAX = 80
"""The socket's name and the quotes of those who copy the path still fit into the 107 bytes of a socket address."""
STATEMENT_MS_MAX, LOCK_MS_MAX = 7000, 5000
"""A race of the lab holds a lock for 3 s; whoever waits longer than this was not meant to."""


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab that is up: its folder, and its server to be connected to, stopped and crashed."""

    folder: Path
    server: ScratchServer
    programs: Binaries

    def dsn(self, name: str, database: str = DATABASE) -> str:
        """Return the connection string for a session of this application name."""
        options = (
            f"-c statement_timeout={STATEMENT_MS_MAX} -c lock_timeout={LOCK_MS_MAX} -c client_min_messages=warning"
        )
        return make_conninfo(self.server.dsn, dbname=database, application_name=name, options=options)

    def psql(self, name: str, sql: str, database: str = DATABASE) -> tuple[list[str], dict[str, str]]:
        """Return the arguments and the environment of a psql process that runs ``sql`` and prints bare rows."""
        argv = [str(self.folder / "bin" / "psql"), "-X", "-q", "-w", "-At", "-d", self.dsn(name, database)]
        argv += ["-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", "-c", sql]
        environment = dict(os.environ)
        envfile.isolate(environment)
        return argv, environment | {"PGPASSFILE": str(self.folder / "no-pass"), "PGSERVICEFILE": os.devnull}


def up(asked: Path | None = None, *, env_file: Path = Path(envfile.NAME)) -> Lab:
    """Make a lab that stays up from shell to shell until ``clean``, and the file that leads to it.

    ``asked`` is its folder, which must be empty or missing; without it, a short new one is made. Raises
    ConfigurationError if there is a lab already, if the folder does not do, or if there is no PostgreSQL 18.6.
    Safe to re-run: after a failure or Ctrl-C nothing is left; what a SIGKILL left is removed by ``clean``.
    """
    account, programs = _means()
    env_file = Path(os.path.abspath(env_file))
    folder = _chosen(asked, account)
    envfile.write(env_file, folder)
    try:
        place = _make(folder, env_file, account, programs)
        lab = _lab(place, programs)
        with users.control(place), users.user_of(place):
            users.ensure_watcher(place, scratch=False)
            cluster.build(place, programs, throw_away=True)
            cluster.start(place, programs, {})
            _make_schema(lab)
            (folder / watch.PINNED).touch(mode=0o600)
        if envfile.read(env_file) != folder:
            raise ConfigurationError(
                f"{str(env_file)!r} was taken away while the lab was made. Run `pgonce lab up` again."
            )
    except BaseException:
        with contextlib.suppress(Exception):
            _remove(folder, env_file)
        raise
    return lab


@contextlib.contextmanager
def throw_away() -> Iterator[Lab]:
    """Make a lab for the length of the block; it vanishes with this process, however that ends."""
    account, programs = _means()
    folder = _chosen(None, account)
    place = _make(folder, None, account, programs)
    with scratch(binaries=programs, place=place) as server:
        lab = Lab(folder, server, programs)
        _make_schema(lab)
        yield lab


def find(environment: Mapping[str, str] = os.environ, *, env_file: Path = Path(envfile.NAME)) -> Lab | None:
    """Find the lab of ``lab.env``, or of LAB_DIR; None if there is none. Its server is started if it is down.

    Raises ConfigurationError if that folder is no lab of ours, or if the two name different labs.
    Safe to re-run: a running server is left alone.
    """
    folder = _named(environment, env_file)
    if folder is None:
        return None
    marker.check(folder)
    account, programs = _means()
    place = _place(folder, account)
    if not place.pgdata.exists():
        raise ConfigurationError(
            f"the lab in {str(folder)!r} was not finished: its making was killed. Remove it with `pgonce lab clean`, "
            "then run `pgonce lab up` again."
        )
    with users.control(place), users.user_of(place):
        users.ensure_watcher(place, scratch=False)
        cluster.start(place, programs, {})
    return _lab(place, programs)


def clean(environment: Mapping[str, str] = os.environ, *, env_file: Path = Path(envfile.NAME)) -> Path | None:
    """Stop the lab's server and remove its folder and ``lab.env``; return the folder, None if there was no lab.

    Raises ConfigurationError, and touches nothing, if the folder has no marker, is another user's, or points to a
    server that is not its own. Safe to re-run: without a lab there is nothing to do.
    """
    folder = _named(environment, env_file)
    if folder is None:
        written = envfile.read(env_file)
        if written is not None:
            _remove(written, env_file)
        return None
    marker.check(folder)
    noted = marker.env_file_of(folder)
    if noted is not None and _names(noted, folder):
        noted.unlink(missing_ok=True)
    _remove(folder, env_file)
    return folder


def _means() -> tuple[places.Account | None, Binaries]:
    account = places.server_account()
    return account, places.reachable_binaries(find_version(VERSION), account)


def _place(folder: Path, account: places.Account | None) -> Place:
    return Place(folder, account, USER, DATABASE, sockets=folder)


def _lab(place: Place, programs: Binaries) -> Lab:
    return Lab(place.folder, ScratchServer(place, programs, {}, None), programs)


def _chosen(asked: Path | None, account: places.Account | None) -> Path:
    """Return the path of the lab's folder, which does not exist yet or is empty."""
    if asked is None:
        bases = [Path(tempfile.gettempdir()), Path("/tmp"), places.ROOTS_BASE]  # noqa: S108 (a new 0700 folder below it)
        fitting = [base for base in bases if _does(Path(os.path.realpath(base)), account)]
        if not fitting:
            raise ConfigurationError(
                "no folder for the lab was found: the temporary folder has a long path, blanks or odd letters in it. "
                "Set TMPDIR to a short one, or name one: pgonce lab up --dir /short/path"
            )
        return Path(os.path.realpath(fitting[0])) / f"pgonce-lab-{secrets.token_hex(4)}"
    folder = Path(os.path.realpath(asked))
    if marker.USABLE.fullmatch(str(folder)) is None:
        raise ConfigurationError(
            f"the lab's folder cannot be {str(folder)!r}: its path has a blank, a comma or another letter that a "
            "socket's folder cannot have. Name another one."
        )
    if len(os.fsencode(folder)) > PATH_BYTES_MAX:
        raise ConfigurationError(
            f"the lab's folder cannot be {str(folder)!r}: the path is longer than {PATH_BYTES_MAX} bytes, and a socket "
            "has to fit below it. Name a shorter one, for instance below /tmp."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(
            f"{str(folder)!r} is not an empty folder, and a lab gets one of its own. Name a new one."
        )
    return folder


def _does(base: Path, account: places.Account | None) -> bool:
    is_short = len(os.fsencode(base)) <= PATH_BYTES_MAX - len("/pgonce-lab-00000000")
    if not is_short or marker.USABLE.fullmatch(str(base)) is None or not base.is_dir():
        return False
    return account is None or places.can_reach(account, base)


def _make(folder: Path, env_file: Path | None, account: places.Account | None, programs: Binaries) -> Place:
    """Make the folder with its marker, before anything else is in it."""
    with explained(folder):
        if account is not None and not places.can_reach(account, places.nearest_existing(folder.parent)):
            raise ConfigurationError(
                f"root's server runs as {account.name!r}, who cannot reach {str(folder.parent)!r}. "
                "Name a folder below /tmp."
            )
        new = _unborn(folder)
        new.mkdir(mode=0o700)
        marker.write(new, folder, env_file or Path(os.devnull))
        if account is not None:
            os.chown(new, account.uid, account.gid)
        new.rename(folder)
        (folder / watch.USERS).mkdir(mode=0o700)
        (folder / "bin").symlink_to(programs.bin_dir)
    return _place(folder, account)


def _unborn(folder: Path) -> Path:
    """Name the folder as it is called until its marker is in it, so that no lab is ever without."""
    return folder.with_name(folder.name + ".new")


def _make_schema(lab: Lab) -> None:
    with psycopg.connect(lab.dsn("lab-up"), autocommit=True) as connection:
        connection.execute(f"create schema if not exists {SCHEMA}")


def _named(environment: Mapping[str, str], env_file: Path) -> Path | None:
    """Return the folder that the file or the environment names, if it exists."""
    written = envfile.read(env_file)
    exported = environment.get("LAB_DIR")
    found = {Path(folder) for folder in (written, exported) if folder and os.path.lexists(folder)}
    if len(found) > 1:
        raise ConfigurationError(
            f"LAB_DIR is {exported!r}, but {str(env_file)!r} names {str(written)!r}: two labs. "
            "Read that file (`. ./lab.env`) or `unset LAB_DIR`, then run again. Nothing was changed."
        )
    return found.pop() if found else None


def _names(noted: Path, folder: Path) -> bool:
    with contextlib.suppress(ConfigurationError):
        return envfile.read(noted) == folder
    return False


def _remove(folder: Path, env_file: Path) -> None:
    """Stop the server and remove everything; the folder is a lab, or does not exist, or not yet."""
    unborn = _unborn(folder)
    with contextlib.suppress(OSError):
        if not unborn.is_symlink() and {file.name for file in unborn.iterdir()} <= {marker.NAME}:
            (unborn / marker.NAME).unlink(missing_ok=True)
            unborn.rmdir()
    if (folder / marker.NAME).exists():
        place = _place(folder, None)
        users.let_go(place, now=True)
        if watch.is_up(folder) and not watch.stop_server(folder, throw_away=True):
            raise Unreachable(f"the lab's server in {str(folder)!r} does not stop; its log is {str(place.log)!r}.")
        watch.remove_place(folder)
        if folder.exists():
            with explained(folder):
                shutil.rmtree(folder)
    env_file.unlink(missing_ok=True)
