"""Decide where a cluster lives and as whom it runs.

An ordinary user's cluster lies in the data folder and runs as that user. PostgreSQL refuses to run as root: then it
runs as an existing account without privileges, and everything which that account cannot reach from root's folders
lies under ``/var/lib/pgonce``. No folder made by others is opened up, chowned or chmodded.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgonce.errors import ConfigurationError
from pgonce.server import watch
from pgonce.server.find import Binaries

USER = DATABASE = "pgonce"
"""The superuser of the user's own cluster, and the database that is made in it."""
ROOTS_BASE = Path("/var/lib/pgonce")
"""Where clusters and binaries lie that root's server account cannot reach elsewhere."""
ACCOUNTS = ("postgres", "nobody", "daemon")
"""Accounts that may run root's server, the most fitting first; none is ever created."""
SOCKET_PATH_BYTES_MAX = 107
"""``sun_path`` of a Unix socket address has 108 bytes, the last one is NUL."""
SESSION_S_MAX = 10.0
"""A program that is told to end cleans up within a second."""
COMMAND_S_MAX = 120.0
"""initdb takes half a second; two minutes are for a machine that is drowning."""


@dataclass(frozen=True, slots=True)
class Account:
    """The account that runs the server when we are root."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with everything of one cluster, the account of its server (None: our own), and who is its superuser.

    ``sockets`` is the socket's folder where it was made already; else it is made when the server starts.
    """

    folder: Path
    account: Account | None
    user: str = USER
    database: str = DATABASE
    sockets: Path | None = None

    @property
    def pgdata(self) -> Path:
        """Return PostgreSQL's data folder."""
        return self.folder / watch.PGDATA

    @property
    def log(self) -> Path:
        """Return the server's log file."""
        return self.pgdata / "server.log"


def default_data_dir() -> Path:
    """Return the user's data folder: $PGONCE_HOME, else pgonce in the XDG data folder."""
    named = os.environ.get("PGONCE_HOME")
    if named:
        return Path(named)
    shared = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(shared):
        return Path(shared) / "pgonce"
    try:
        return Path.home() / ".local" / "share" / "pgonce"
    except RuntimeError as error:
        raise ConfigurationError("the user has no home folder; set PGONCE_HOME to a folder for the data.") from error


def locate(data_dir: Path | None) -> Place:
    """Return the place of a data folder's cluster without making anything."""
    asked = Path(os.path.realpath(data_dir if data_dir is not None else default_data_dir()))
    if "\n" in str(asked) or "\r" in str(asked):
        raise ConfigurationError(
            f"the data folder {str(asked)!r} has a line break in its path, which PostgreSQL cannot take. "
            "Set PGONCE_HOME to another folder."
        )
    _refuse_foreign(asked)
    if os.geteuid() != 0:
        return Place(asked, None)
    for folder in (asked, ROOTS_BASE / key_of(asked)):
        with contextlib.suppress(OSError):
            return Place(folder, account_of((folder / watch.PGDATA).stat().st_uid))
    account = server_account()
    assert account is not None
    reachable = can_reach(account, nearest_existing(asked))
    return Place(asked if reachable else ROOTS_BASE / key_of(asked), account)


def make(place: Place) -> None:
    """Make the place's folders if they are missing. Raises ConfigurationError when the disk does not let us."""
    with explained(place.folder):
        if place.folder.is_relative_to(ROOTS_BASE):
            ROOTS_BASE.mkdir(mode=0o755, parents=True, exist_ok=True)
        make_folder(place.folder, 0o700 if place.account is None else 0o711)
        make_folder(place.folder / watch.USERS, 0o700)


def make_folder(folder: Path, mode: int, *, owner: Account | None = None) -> None:
    """Make a folder, and those above it, with exactly this mode; leave existing ones as they are."""
    if folder.is_dir():
        return
    make_folder(folder.parent, mode)
    try:
        folder.mkdir(mode=mode)
    except FileExistsError:
        if folder.is_dir():
            return
        raise
    if owner is not None:
        os.chown(folder, owner.uid, owner.gid)
    folder.chmod(mode)


def socket_folder(place: Place) -> Path:
    """Make and return the socket's folder: the place's own, one in it, or a short one elsewhere."""
    folder = place.sockets or _fitting(place)
    with explained(folder):
        make_folder(folder, 0o700, owner=place.account)
    found = folder.lstat()
    uid = os.geteuid() if place.account is None else place.account.uid
    if found.st_uid != uid or found.st_mode & 0o170777 != 0o040700:
        raise ConfigurationError(
            f"the socket folder {str(folder)!r} is not a folder of mode 0700 owned by uid {uid}, so somebody else may "
            "have made it. Remove it, then run again."
        )
    return folder


def _fitting(place: Place) -> Path:
    folder = place.folder / "sock"
    text = str(folder)
    length = len(os.fsencode(text)) + len("/.s.PGSQL.65535")
    if length <= SOCKET_PATH_BYTES_MAX and not any(letter in text for letter in ",\"'\\\n"):
        return folder
    return _short_base(place) / f"pgonce-{key_of(place.folder)}"


def reachable_binaries(binaries: Binaries, account: Account | None) -> Binaries:
    """Return binaries that the account can run, copied below /var/lib/pgonce if root alone reaches the originals."""
    if account is None or can_reach(account, binaries.bin_dir / "postgres"):
        return binaries
    if binaries.origin != "wheel":
        raise ConfigurationError(
            f"root's server runs as {account.name!r}, who cannot reach {str(binaries.bin_dir)!r}. "
            "Open the folders above it to others, or name another installation with PGONCE_PG_BIN."
        )
    package = binaries.bin_dir.parent.parent
    stamp = (binaries.bin_dir / "postgres").stat()
    key = f"postgresql-{binaries.version[0]}.{binaries.version[1]}-{key_of(package, stamp.st_size, stamp.st_mtime_ns)}"
    target = ROOTS_BASE / key
    with explained(ROOTS_BASE):
        ROOTS_BASE.mkdir(mode=0o755, parents=True, exist_ok=True)
        with _locked(ROOTS_BASE / "binaries.lock"):
            if not target.is_dir():
                _copy_wheel(package, target)
    return Binaries(target / package.name / "pginstall" / "bin", binaries.version, binaries.origin)


def server_account() -> Account | None:
    """Return the account that will run a new server of root's, None when we are not root."""
    if os.geteuid() != 0:
        return None
    for name in ACCOUNTS:
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            if found.pw_uid != 0:
                return Account(name, found.pw_uid, found.pw_gid)
    raise ConfigurationError(
        f"PostgreSQL does not run as root, and none of the accounts {', '.join(ACCOUNTS)} exists to run it. "
        "Run pgonce as an ordinary user, or name a database with --dsn."
    )


def run(
    argv: list[str | Path],
    account: Account | None,
    *,
    text: str | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end in a session of its own, as the account, with an environment free of PG*.

    If we are interrupted, or it takes too long, the whole session is ended first: what a program like initdb has
    started would otherwise go on, and keep its shared memory.
    """
    process: subprocess.Popen[str] = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE if text is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        start_new_session=True,
        env=clean_environment(os.environ),
        **(_identity(account) | options),
    )
    with process:
        try:
            out, err = process.communicate(text, timeout=COMMAND_S_MAX)
        except BaseException:
            _end_session(process)
            raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def _end_session(process: subprocess.Popen[str]) -> None:
    """End a program and what it has started, politely at first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + SESSION_S_MAX
        while time.monotonic() < until:
            process.poll()
            try:
                os.killpg(process.pid, number)
            except (ProcessLookupError, PermissionError):
                return
            time.sleep(0.05)


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without PG* and locale: a server must not depend on who starts it."""
    kept = {name: value for name, value in environment.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


def can_reach(account: Account, path: Path) -> bool:
    """Tell whether the account may enter a folder or run a program, by trying it as that account."""
    try:
        return run(["/bin/sh", "-c", 'test -x "$0"', path], account).returncode == 0
    except (PermissionError, subprocess.SubprocessError) as error:
        raise ConfigurationError(
            f"root may not become {account.name!r} here ({error}), and PostgreSQL does not run as root. "
            "Run pgonce as an ordinary user, or name a database with --dsn."
        ) from error


def nearest_existing(path: Path) -> Path:
    """Return the path itself or the first folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an OSError into a ConfigurationError that names the path and the way out."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"cannot use {str(path)!r} for the embedded server: {advice(error)}") from error


def advice(error: OSError) -> str:
    """Say what an error of the file system means and what to do about it."""
    what = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{what}. Free some, or set PGONCE_HOME (TMPDIR, a lab: --dir) to one on another disk, then run again."
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST):
        return f"{what}. Set PGONCE_HOME (TMPDIR, a lab: --dir) to one that you may write, then run again."
    return f"{what} ({error}). Set PGONCE_HOME (TMPDIR, a lab: --dir) to another folder, then run again."


def _identity(account: Account | None) -> dict[str, Any]:
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def _refuse_foreign(folder: Path) -> None:
    """Refuse a data folder that is none, that belongs to somebody else, or into which everybody may write."""
    above = nearest_existing(folder)
    if not above.is_dir():
        raise ConfigurationError(f"{str(above)!r} is not a folder. Set PGONCE_HOME to a folder, then run again.")
    us = os.geteuid()
    for path in (folder, folder / watch.PGDATA):
        try:
            found = path.stat()
        except OSError:
            return
        if found.st_uid != us and (us != 0 or path == folder):
            raise ConfigurationError(
                f"the data folder {str(path)!r} belongs to {_name_of(found.st_uid)}, and you are {_name_of(us)}. "
                "Run as its owner, or set PGONCE_HOME to a folder of your own."
            )
        if found.st_mode & 0o002:
            raise ConfigurationError(
                f"everybody may write into the data folder {str(path)!r}, so its server could be replaced by anybody. "
                "Set PGONCE_HOME to a folder of your own, for instance one inside it."
            )


def account_of(uid: int) -> Account:
    """Return the account of a user id, named by the number if it has no name."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return Account(f"uid {uid}", uid, uid)
    return Account(found.pw_name, uid, found.pw_gid)


def _name_of(uid: int) -> str:
    return account_of(uid).name


def _short_base(place: Place) -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if place.account is None and os.path.isabs(runtime) and len(runtime) < SOCKET_PATH_BYTES_MAX // 2:
        with contextlib.suppress(OSError):
            if Path(runtime).stat().st_uid == os.geteuid() and "," not in runtime:
                return Path(runtime)
    return Path("/tmp")  # noqa: S108 (a 0700 folder below it, whose owner and mode are checked)


def key_of(path: Path, *more: object) -> str:
    """Return sixteen letters that stand for a path, and for more if that is given."""
    return hashlib.sha256(b"\0".join([os.fsencode(path), *(str(part).encode() for part in more)])).hexdigest()[:16]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = watch.open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _copy_wheel(package: Path, target: Path) -> None:
    """Copy the wheel's programs and, beside them, the libraries they look for, and show them only when complete."""
    for old in ROOTS_BASE.glob(".copy-*"):
        shutil.rmtree(old)
    building = Path(tempfile.mkdtemp(prefix=".copy-", dir=ROOTS_BASE))
    for part in ("bin", "lib", "share"):
        shutil.copytree(package / "pginstall" / part, building / package.name / "pginstall" / part, symlinks=True)
    libraries = package.with_name(package.name + ".libs")
    shutil.copytree(libraries, building / libraries.name, symlinks=True)
    for folder, _, _ in os.walk(building):
        Path(folder).chmod(0o755)
    building.rename(target)
