"""The reader of the pages sees what is there: planted mistakes in a page are found."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from docs.pages import Command, anchors, blocks, commands, links, shown
from docs.running import run_console

PAGE = """# A page: with `code`

```console runnable
$ echo one
one
$ cat <<EOF
> two
> EOF
two
```

   ```csv file=a.csv
   id
   ```

[one
`thing`](docs/one.md#a-page) and `[no](link)`
"""


def test_blocks_and_commands_are_read() -> None:
    """Commands go with their output, a command may have several lines, an indented file loses its indentation."""
    console, file = blocks(PAGE)
    assert commands(console) == [
        Command("echo one", "one\n", 4),
        Command("cat <<EOF\ntwo\nEOF", "two\n", 6),
    ]
    assert (file.file_name, file.text, file.runnable) == ("a.csv", "id\n", False)


def test_anchors_and_links_are_read() -> None:
    """An anchor is made as the web pages of repositories make it."""
    assert anchors(PAGE) == {"a-page-with-code"}
    assert list(links(PAGE)) == ["docs/one.md#a-page"]


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ("applied  200\n", "applied\t200\n", True),
        ("applied  200\n", "applied\t201\n", False),
        ("at ... end\n", "at 10 past\nthe end\n", True),
        ("at ... end\n", "at 10 past\nthe end, and more\n", False),
        ("a.c\n", "abc\n", False),
    ],
)
def test_output_is_compared(expected: str, output: str, same: bool) -> None:
    """Blanks count as one, three dots as anything, every other character as itself."""
    assert shown(expected, output) is same


def test_a_wrong_page_is_found(tmp_path: Path) -> None:
    """A command that prints something else, or fails without a word, fails the test of its page."""
    (tmp_path / "page").mkdir()
    run_console([Command("false", None, 1), Command("echo $?", "1\n", 2)], tmp_path / "page", "a page")
    for wrong in (Command("echo one", "two\n", 1), Command("false", None, 1)):
        with pytest.raises(AssertionError, match="a page, line 1"):
            run_console([wrong], tmp_path / "page", "a page")


def test_a_page_sees_no_database_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever names a database outside is not in a page's environment."""
    (tmp_path / "page").mkdir()
    for name in ("DATABASE_URL", "PGONCE_DATABASE_URL", "PGHOST"):
        monkeypatch.setenv(name, "somewhere")
    run_console([Command("env | grep somewhere", "", 1), Command("echo $?", "1\n", 2)], tmp_path / "page", "a page")
    assert subprocess.run(["bash", "-c", "env | grep -c somewhere"], capture_output=True, check=True).stdout == b"3\n"
