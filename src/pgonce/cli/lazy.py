"""A group whose commands are imported when they are called: ``pgonce --help`` should not load a database driver."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A click group that knows its commands by ``module:name``."""

    def __init__(self, *args: Any, commands_by_name: dict[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._homes = commands_by_name

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands, in order."""
        return sorted(self._homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command by its name."""
        home = self._homes.get(cmd_name)
        if home is None:
            return None
        module, name = home.split(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command
