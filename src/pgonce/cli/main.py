"""The command ``pgonce``: its groups, its options for all commands, and what it does with errors."""

from __future__ import annotations

import errno
import sys
from typing import NoReturn

import click

from pgonce import __version__
from pgonce.cli.exits import COMPLETE, CONFIGURATION, INCONCLUSIVE, exit_code_of
from pgonce.cli.lazy import LazyGroup
from pgonce.cli.signals import received_signal
from pgonce.cli.streams import say, silence
from pgonce.errors import Interrupted, PgonceError

COMMANDS = {
    "adopt": "pgonce.cli.run:adopt",
    "crashtest": "pgonce.cli.crashtest:crashtest",
    "db": "pgonce.cli.db:db",
    "errors": "pgonce.cli.errors:errors",
    "events": "pgonce.cli.events:events",
    "job": "pgonce.cli.job:job",
    "lab": "pgonce.cli.lab:lab",
    "plan": "pgonce.cli.plan:plan",
    "quarantine": "pgonce.cli.quarantine:quarantine",
    "reconcile": "pgonce.cli.reconcile:reconcile",
    "resolve": "pgonce.cli.resolve:resolve",
    "retry": "pgonce.cli.retry:retry",
    "run": "pgonce.cli.run:run",
    "runs": "pgonce.cli.status:runs",
    "status": "pgonce.cli.status:status",
}


# Standard output that cannot be written to: full, broken, closed.
UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EBADF)


@click.group(cls=LazyGroup, commands_by_name=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pgonce")
def cli() -> None:
    """Apply batches of events to PostgreSQL so that every event counts once, whatever fails and however often you
    run it again."""


def main() -> NoReturn:
    """Run the command and end the process with its exit code."""
    try:
        code = cli.main(prog_name="pgonce", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except PgonceError as error:
        say(str(error))
        sys.exit(_signal_code(error) or exit_code_of(error))
    except UnicodeEncodeError:
        say("an argument holds bytes that are not UTF-8 and cannot be stored or looked up; write it in UTF-8")
        sys.exit(CONFIGURATION)
    except BrokenPipeError:
        silence(sys.stdout)
        sys.exit(COMPLETE)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        silence(sys.stdout)
        say(f"what was found could not be written ({error}); nothing was changed by that. Make room, then ask again")
        sys.exit(INCONCLUSIVE)
    sys.exit(code if isinstance(code, int) else 0)


def _signal_code(error: PgonceError) -> int | None:
    number = received_signal()
    return 128 + number if isinstance(error, Interrupted) and number else None
