"""Call one function of a module in a process of its own. Standard library only; this file is run by its path."""

from __future__ import annotations

import asyncio
import base64
import importlib
import importlib.util
import inspect
import json
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def write(file: Path, call: dict[str, Any]) -> None:
    """Write down what is to be called."""
    file.write_text(json.dumps(call), encoding="utf-8")


def load(name: str, file: str | None) -> ModuleType:
    """Import a module by its name, or where that leads nowhere (a test file) from its file."""
    if name not in ("__main__", "conftest"):
        try:
            found = importlib.import_module(name)
        except ImportError:
            found = None
        if found is not None and (file is None or getattr(found, "__file__", None) == file):
            return found
    spec = importlib.util.spec_from_file_location(name if name != "__main__" else "__called__", file or "")
    if spec is None or spec.loader is None:
        raise ImportError(f"the module {name!r} cannot be loaded from {file!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Call what the file named first says, with the connection string that comes second."""
    call = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.path[:] = call["path"]
    function: Any = load(call["module"], call["file"])
    for part in call["name"].split("."):
        function = getattr(function, part)
    arguments, named = pickle.loads(base64.b64decode(call["arguments"]))  # noqa: S301 (our own, a moment ago)
    arguments = [_with_dsn(value) for value in arguments]
    result = function(*arguments, **{name: _with_dsn(value) for name, value in named.items()})
    if inspect.isawaitable(result):
        asyncio.run(_awaited(result))


async def _awaited(result: Any) -> Any:
    return await result


def _with_dsn(value: Any) -> Any:
    return value.replace("{dsn}", sys.argv[2]) if isinstance(value, str) else value


if __name__ == "__main__":
    main()
