"""The edge of the lab: what goes wrong inside comes out as a sentence with a remedy, never as a traceback."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from pgonce.errors import ConfigurationError, Retryable, Unreachable


@contextmanager
def in_words() -> Iterator[None]:
    """Turn errors of the driver, of the operating system and of programs into exceptions of pgonce."""
    try:
        yield
    except BrokenPipeError:
        raise
    except psycopg.OperationalError as error:
        raise Unreachable(
            f"the lab's server went away: {_first_line(error)}. If nobody cleaned the lab meanwhile, look with "
            "`pgonce lab whoami`; then run again."
        ) from error
    except psycopg.Error as error:
        raise Retryable(
            f"the lab's server refused a statement: {_first_line(error)}. Run `pgonce lab clean`, then again."
        ) from error
    except subprocess.SubprocessError as error:
        raise Retryable(f"a program of the lab failed: {_first_line(error)}. Run again.") from error
    except OSError as error:
        where = f" {error.filename!r}" if error.filename else ""
        raise ConfigurationError(
            f"the lab cannot go on: {error.strerror or error}{where}. Put it right, `pgonce lab clean`, then run again."
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
