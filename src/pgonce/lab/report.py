"""The page of the lab: scenario by scenario, the right worker beside the wrong one, each with its time line.

One file without script and without anything from elsewhere: it can be sent, kept, and read in ten years.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from pgonce.errors import ConfigurationError
from pgonce.lab.play import Played
from pgonce.lab.stage import Step

Pair = tuple[Played, Played | None]

LANES = ("worker", "A", "B", "again", "gate", "server", "monitor")
"""The order of those who take part; each has a colour of its own in the style."""


def page(pairs: Sequence[Pair], versions: Mapping[str, str]) -> str:
    """Return the page, HTML in UTF-8."""
    style = files("pgonce.lab").joinpath("report.css").read_text("utf-8")
    index = "".join(_index_row(right, wrong) for right, wrong in pairs)
    sections = "".join(_section(right, wrong) for right, wrong in pairs)
    made_of = ", ".join(f"{escape(name)} {escape(version)}" for name, version in versions.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>pgonce lab: is it safe to run again?</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>Is it safe to run again?</h1>
<p>A worker wrote the effect and never received the answer. What follows was played on a real server, with real
connections, and nothing was left to luck: each step began only when the one before it had been seen. On the left a
worker that does it right, on the right one that does it wrong, and the money that is there in the end.</p>
<p class="made-of">{made_of}</p>
</header>
<nav aria-label="Scenarios">
<div class="scroll" tabindex="0" role="group" aria-label="All scenarios">
<table><thead><tr><th scope="col">scenario</th><th scope="col">done right</th><th scope="col">done wrong</th></tr>
</thead><tbody>{index}</tbody></table>
</div>
</nav>
<main>{sections}</main>
</body>
</html>
"""


@contextlib.contextmanager
def written(path: Path) -> Iterator[list[str]]:
    """Write what the block puts into the list; an older page stays whole until the new one is.

    Whether it can be written is found out before the block. Raises ConfigurationError if it cannot be, and what the
    block raises.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    with _writable(path):
        if path.exists() and not path.is_file():
            raise ConfigurationError(f"{str(path)!r} is no regular file. Name another one with --output.")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    parts: list[str] = []
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            yield parts
            with _writable(path):
                file.writelines(parts)
                file.flush()
        with _writable(path):
            os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{str(path)!r} cannot be written: {error.strerror}. Name another file with --output."
        ) from error


def _index_row(right: Played, wrong: Played | None) -> str:
    scenario = right.scenario
    link = f'<a href="#{scenario.name}">{escape(scenario.title)}</a>'
    return f"<tr><th scope=row>{link}</th><td>{_verdict(right)}</td><td>{_verdict(wrong) if wrong else ''}</td></tr>\n"


def _section(right: Played, wrong: Played | None) -> str:
    scenario = right.scenario
    columns = _column("Done right", scenario.right_way, right)
    if wrong is not None:
        columns += _column("Done wrong", scenario.wrong_way, wrong)
    return f"""
<section id="{scenario.name}">
<h2>{escape(scenario.title)} <code>{scenario.name}</code></h2>
<p class="question">{escape(scenario.question)}</p>
<div class="pair">{columns}</div>
</section>
"""


def _column(title: str, way: str, played: Played) -> str:
    lines = "".join(
        f'<li class="{"bad" if line.damage else "good"}">{escape(line.text(played.scenario.name))}</li>'
        for line in played.lines
    )
    return f"""
<article class="{"wrong" if played.wrong else "right"}">
<h3>{title} {_verdict(played)}</h3>
<p>{escape(way)}</p>
<ul class="lines">{lines}</ul>
{_time_line(played.steps)}
</article>
"""


def _verdict(played: Played) -> str:
    if played.exact:
        return '<span class="verdict good">exact</span>'
    damages = ", ".join(dict.fromkeys(line.damage for line in played.lines if line.damage))
    return f'<span class="verdict bad">{escape(damages)}</span>'


def _time_line(steps: Sequence[Step]) -> str:
    """Draw a column for everyone who takes part, and a row for every step, downwards in time."""
    actors = sorted({step.actor for step in steps}, key=LANES.index)
    heads = "".join(f'<th scope="col">{escape(actor)}</th>' for actor in actors)
    rows = "".join(
        f'<tr><td class="at">{step.at_s * 1000:.0f}</td>'
        + "<td></td>" * actors.index(step.actor)
        + f'<td class="lane-{LANES.index(step.actor)}">{escape(step.text)}</td>'
        + "<td></td>" * (len(actors) - 1 - actors.index(step.actor))
        + "</tr>\n"
        for step in steps
    )
    return f"""<details open><summary>Time line, {len(steps)} steps</summary>
<div class="scroll" tabindex="0" role="group" aria-label="Time line">
<table class="steps"><thead><tr><th scope="col">ms</th>{heads}</tr></thead>
<tbody>{rows}</tbody></table>
</div></details>"""
