"""Runs the measurements of this folder, each a module, and prints a Markdown table for each.

A module's docstring is its heading. It has either `rows`, an asynchronous generator of dictionaries, which become the
rows of its table, or `main`, which prints by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
import time
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent
# The measurements start the same peers as the tests.
sys.path.insert(0, str(FOLDER.parent / "tests"))


def main() -> int:
    names = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(names)}; all by default")
    chosen = parser.parse_args().names or names
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    for name in chosen:
        started = time.monotonic()
        module = importlib.import_module(f"bench.{name}")
        print(f"## {name}\n\n{(module.__doc__ or '').strip()}\n")
        run(module)
        print(f"\n{name} took {time.monotonic() - started:.0f} s\n", flush=True)
    return 0


def run(module: ModuleType) -> None:
    if hasattr(module, "rows"):
        asyncio.run(print_table(module.rows()))
    else:
        module.main()


async def print_table(rows) -> None:
    """Print each row as soon as it is there."""
    columns = None
    async for row in rows:
        if columns is None:
            columns = list(row)
            print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        print(f"| {' | '.join(shown(row.get(column, '')) for column in columns)} |", flush=True)


def shown(value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
