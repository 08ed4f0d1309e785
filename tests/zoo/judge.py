"""Fail programs of the zoo everywhere and say where the verdict is not the expected one.

PYTHONPATH=tests python -m zoo.judge [--faults cut-before,kill] [--all] [NAME ...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

import psycopg
from psycopg.conninfo import make_conninfo

from pgonce import server as embedded
from zoo.catalogue import FAULTS, Program, programs
from zoo.failing import Cage

SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "50"}


def main() -> int:
    """Judge the programs that are named, all if none is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--faults", default=",".join(FAULTS), help="which faults, with commas between them")
    parser.add_argument("--all", action="store_true", help="print every point, not only the unexpected ones")
    parser.add_argument("--real", action="store_true", help="start Python programs as processes of their own")
    parser.add_argument("--sample", type=int, help="of the points expected to be safe, try only so many")
    parser.add_argument("--points", choices=("statement", "message"), default="statement", help="what a point is")
    options = parser.parse_args()
    faults = tuple(options.faults.split(","))
    wrong = 0
    with embedded.scratch(settings=SETTINGS) as server:
        for program in programs(*options.names):
            if missing := program.missing():
                print(f"{program.name}: skipped, {missing} is not there")
                continue
            wrong += judge(
                program,
                server,
                faults,
                is_forked=not options.real,
                prints_all=options.all,
                points=options.points,
                sample=options.sample,
            )
    print(f"{wrong} unexpected")
    return 3 if wrong else 0


def judge(
    program: Program,
    server: embedded.ScratchServer,
    faults: tuple[str, ...],
    *,
    is_forked: bool = True,
    prints_all: bool = False,
    points: Literal["statement", "message"] = "statement",
    sample: int | None = None,
) -> int:
    """Try the faults at every point of a program, print what is not as expected, and return how many are."""

    def crash() -> None:
        server.crash()
        server.start()

    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("drop database if exists zoo with (force)")
        connection.execute("create database zoo")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        dsn = make_conninfo(server.dsn, dbname="zoo")
        count = wrong = 0
        with Cage(program, dsn, Path(folder), crash=crash, is_forked=is_forked, points=points) as cage:
            for tried in cage.try_all(faults, sample=sample):
                expected = cage.expected(tried.fault, tried.when, tried.place)
                count += 1
                wrong += tried.verdict not in expected
                if prints_all or tried.verdict not in expected:
                    print(f"  {tried} (expected {' or '.join(expected)})", flush=True)
    took_s = time.monotonic() - begun
    print(f"{program.name}: {count} tried at {len(cage.points)} points, {wrong} unexpected, {took_s:.1f} s", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
