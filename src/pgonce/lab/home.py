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
    """A lab that is up: the folder with its socket, the one with its data, and its server to be stopped and crashed.

    The two are one folder, except for root: root's server runs as another account, which may do as it likes in the
    folder of its socket, so nothing that root trusts lies there.
    """

    folder: Path
    home: Path
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
        argv = [str(self.programs.program("psql")), "-X", "-q", "-w", "-At", "-d", self.dsn(name, database)]
        argv += ["-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", "-c", sql]
        environment = dict(os.environ)
        envfile.isolate(environment)
        return argv, environment | {"PGPASSFILE": str(self.home / "no-pass"), "PGSERVICEFILE": os.devnull}


def up(asked: Path | None = None, *, env_file: Path = Path(envfile.NAME)) -> Lab:
    """Make a lab that stays up from shell to shell until ``clean``, and the file that leads to it.

    ``asked`` is its folder, which must be empty or missing; without it, a short new one is made. Raises
    ConfigurationError if there is a lab already, if the folder does not do, or if there is no PostgreSQL 18.6.
    Safe to re-run: after a failure or Ctrl-C nothing is left; what a SIGKILL left is removed by ``clean``.
    """
    account, programs = _means()
    env_file = Path(os.path.abspath(env_file))
    folder = _chosen(asked, account)
    place, nonce = _place(folder, account), secrets.token_hex(8)
    envfile.write(env_file, folder, place.folder / "bin", nonce)
    try:
        _make(place, env_file, programs, nonce)
        lab = _start(place, programs)
        if envfile.read(env_file) != folder:
            raise ConfigurationError(
                f"{str(env_file)!r} was taken away while the lab was made, so the lab was removed. Run again."
            )
    except BaseException:
        if marker.noted(folder) == (str(folder), str(env_file)):
            with contextlib.suppress(Exception):
                _remove(place)
        envfile.remove(env_file, folder)
        raise
    return lab


@contextlib.contextmanager
def throw_away() -> Iterator[Lab]:
    """Make a lab for the length of the block; it vanishes with this process, however that ends."""
    account, programs = _means()
    place = _place(_chosen(None, account), account)
    try:
        _make(place, None, programs, secrets.token_hex(8))
        with scratch(binaries=programs, place=place) as server:
            lab = Lab(_sockets(place), place.folder, server, programs)
            _make_schema(lab)
            yield lab
    finally:
        watch.remove_place(_sockets(place))
        if not watch.is_up(place.folder):
            watch.remove_place(place.folder)


def find(environment: Mapping[str, str] = os.environ, *, env_file: Path = Path(envfile.NAME)) -> Lab | None:
    """Find the lab of ``lab.env``, or of LAB_DIR; None if there is none. Its server is started if it is down.

    Raises ConfigurationError if that folder is no lab of ours, or if the two name different labs.
    Safe to re-run: a running server is left alone, and what a killed ``up`` left out is done.
    """
    folder = _named(environment, env_file)
    if folder is None:
        gone = envfile.read(env_file)
        if gone is not None:
            raise ConfigurationError(
                f"{str(env_file)!r} names the lab in {str(gone)!r}, which is gone. `pgonce lab clean` removes what is "
                "left of it, that file too."
            )
        return None
    account, programs = _means()
    place = _place(folder, account)
    marker.check(folder, place.folder)
    if not place.pgdata.exists():
        raise ConfigurationError(
            f"the lab in {str(folder)!r} has no data: its making was killed, or somebody removed them. Remove it with "
            "`pgonce lab clean`, then run `pgonce lab up` again."
        )
    return _start(place, programs)


def clean(environment: Mapping[str, str] = os.environ, *, env_file: Path = Path(envfile.NAME)) -> Path | None:
    """Stop the lab's server and remove its folder and ``lab.env``; return the folder, None if there was nothing.

    Raises ConfigurationError, and touches nothing, if the folder has no marker, is another user's, or points to a
    server that is not its own. Safe to re-run: without a lab there is nothing to do, and one that was interrupted is
    finished, since the file that leads to the lab goes last.
    """
    folder = _named(environment, env_file)
    written = envfile.read(env_file)
    if folder is not None:
        place = _place(folder, places.server_account())
        marker.check(folder, place.folder)
        leads_here = Path(marker.noted(folder)[1] or env_file)
        _remove(place)
        envfile.remove(leads_here, folder)
    elif written is not None:
        place = _place(written, places.server_account())
        _remove_unborn(place, envfile.nonce_of(env_file))
        if place.folder != written:
            _remove(place)
    envfile.remove(env_file, written)
    return folder or written


def _means() -> tuple[places.Account | None, Binaries]:
    account = places.server_account()
    return account, places.reachable_binaries(find_version(VERSION), account)


def _place(folder: Path, account: places.Account | None) -> Place:
    home = folder if account is None else places.ROOTS_BASE / f"lab-{places.key_of(folder)}"
    return Place(home, account, USER, DATABASE, sockets=folder)


def _sockets(place: Place) -> Path:
    return place.sockets or place.folder


def _chosen(asked: Path | None, account: places.Account | None) -> Path:
    """Return the path of the lab's folder, which does not exist yet or is empty."""
    if asked is None:
        return _short_base(account) / f"pgonce-lab-{secrets.token_hex(4)}"
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
    with explained(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigurationError(
                f"{str(folder)!r} is not an empty folder, and a lab gets one of its own. Name a new one."
            )
    return folder


def _short_base(account: places.Account | None) -> Path:
    bases = [Path("/tmp"), places.ROOTS_BASE]  # noqa: S108 (a new 0700 folder below it)
    with contextlib.suppress(OSError):
        bases.insert(0, Path(os.path.realpath(tempfile.gettempdir())))
    for base in bases:
        is_short = len(os.fsencode(base)) <= PATH_BYTES_MAX - len("/pgonce-lab-00000000")
        is_plain = is_short and marker.USABLE.fullmatch(str(base)) is not None
        usable = is_plain and base.is_dir() and os.access(base, os.W_OK | os.X_OK)
        if usable and (account is None or places.can_reach(account, base)):
            return base
    raise ConfigurationError(
        "no folder for the lab was found: the temporary folder is missing, cannot be written, or has a long path, "
        "blanks or odd letters in it. Set TMPDIR to a short one, or name one: pgonce lab up --dir /short/path"
    )


def _make(place: Place, env_file: Path | None, programs: Binaries, nonce: str) -> None:
    """Make the folders; that of a lab that stays is given its name when the marker is in it, so none is ever without.

    What fails before that leaves nothing, and touches nothing that was there before.
    """
    folder = _sockets(place)
    with explained(folder):
        if place.account is not None and not places.can_reach(place.account, places.nearest_existing(folder.parent)):
            raise ConfigurationError(
                f"root's server runs as {place.account.name!r}, who cannot reach {str(folder.parent)!r}. "
                "Name a folder below /tmp."
            )
        new = _unborn(folder, nonce)
        new.mkdir(mode=0o700)
        try:
            new.chmod(0o700)
            if env_file is not None:
                marker.write(new, folder, env_file)
            if place.account is not None:
                os.chown(new, place.account.uid, place.account.gid)
            new.rename(folder)
        except BaseException:
            shutil.rmtree(new)
            raise
        if place.folder != folder:
            places.ROOTS_BASE.mkdir(mode=0o755, parents=True, exist_ok=True)
            place.folder.mkdir(mode=0o711)
        (place.folder / watch.USERS).mkdir(mode=0o700)
        (place.folder / "bin").symlink_to(programs.bin_dir)


def _start(place: Place, programs: Binaries) -> Lab:
    """Start the server of a lab that stays, making its cluster first if there is none."""
    lab = Lab(_sockets(place), place.folder, ScratchServer(place, programs, {}, None), programs)
    with users.control(place), users.user_of(place):
        users.ensure_watcher(place, scratch=False)
        if not place.pgdata.exists():
            cluster.build(place, programs, throw_away=True)
        cluster.start(place, programs, {})
        _make_schema(lab)
        (place.folder / watch.PINNED).touch(mode=0o600)
    return lab


def _unborn(folder: Path, nonce: str) -> Path:
    """Name the folder as it is called until its marker is in it; nobody else's is ever called so."""
    return folder.with_name(f"{folder.name}.{nonce}")


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


def _remove_unborn(place: Place, nonce: str) -> None:
    """Remove what a killed ``up`` left of a folder that did not have its name yet."""
    if nonce:
        unborn = _unborn(_sockets(place), nonce)
        with contextlib.suppress(OSError):
            (unborn / marker.NAME).unlink(missing_ok=True)
            unborn.rmdir()


def _remove(place: Place) -> None:
    """Stop the server and remove everything of the lab, the folder with the marker last. Safe to re-run: yes."""
    try:
        _stop(place)
    except (ConfigurationError, FileNotFoundError):
        if place.folder.exists():  # else another `lab clean` was faster
            raise
    for folder in (place.folder, _sockets(place)):
        watch.remove_place(folder)
        if folder.exists():
            raise ConfigurationError(
                f"{str(folder)!r} could not be removed whole. Look at what is in it, then run `pgonce lab clean` again."
            )


def _stop(place: Place) -> None:
    if place.folder.exists():
        users.let_go(place, now=True)
        if watch.is_up(place.folder) and not watch.stop_server(place.folder, throw_away=True):
            raise Unreachable(
                f"the lab's server in {str(place.folder)!r} does not stop; its log is {str(place.log)!r}."
            )
