"""Runs the measurements of this folder, each a module, and prints a Markdown table for each.

A module's docstring is its heading. It has `rows`, an asynchronous generator of dictionaries, which become the rows of
its table, and of paragraphs; it may take the options of the command line. A module that has `main` prints by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import sys
import time
from pathlib import Path
from types import ModuleType

from bench._report import Report, write

FOLDER = Path(__file__).parent
# What answers "how fast and how small is it?" within five minutes.
DEFAULT = ("idle", "matrix", "saturation", "latency")


def main() -> int:
    names = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    options = parser(names).parse_args()
    chosen = options.names or DEFAULT
    if unknown := set(chosen) - set(names):
        parser(names).error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    failed = False
    for name in chosen:
        started = time.monotonic()
        module = importlib.import_module(f"bench.{name}")
        print(f"## {name}\n\n{(module.__doc__ or '').strip()}")
        if hasattr(module, "rows"):
            report = asyncio.run(table(module, options))
            if options.write:
                write(options.write, name, report.text, module.plots(report.rows) if hasattr(module, "plots") else {})
        else:
            failed |= bool(module.main())
        print(f"\n{name} took {time.monotonic() - started:.0f} s\n", flush=True)
    return int(failed)


def parser(names: list[str]) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    made.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; default: {', '.join(DEFAULT)}")
    made.add_argument("--full", action="store_true", help="every case of matrix: 45 minutes; growth up to ten million")
    made.add_argument("--minutes", type=float, default=2, help="of soak; default: 2")
    made.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this document, plots beside it")
    made.add_argument("--record", action="store_true", help="make this run of quick the baseline")
    return made


async def table(module: ModuleType, options: argparse.Namespace) -> Report:
    """The rows, each printed as soon as it is there."""
    report = Report()
    takes_options = inspect.signature(module.rows).parameters
    async for row in module.rows(options) if takes_options else module.rows():
        report.add(row)
    return report


if __name__ == "__main__":
    sys.exit(main())
