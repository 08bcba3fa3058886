"""Markdown of measurements: printed as they come, and written into a document between two marks."""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path

from bench._contenders import versions


class Report:
    """Prints the rows of one measurement as a table, and keeps its text. A `str` is a paragraph between tables."""

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.text = ""
        self._columns: list[str] = []

    def add(self, row: dict | str) -> None:
        """Print and keep."""
        if isinstance(row, str):
            self._say(f"\n{row}\n")
            self._columns = []
            return
        if list(row) != self._columns:
            self._columns = list(row)
            self._say(f"\n| {' | '.join(self._columns)} |\n|{'---|' * len(self._columns)}")
        self.rows.append(row)
        self._say(f"| {' | '.join(shown(value) for value in row.values())} |")

    def _say(self, line: str) -> None:
        print(line, flush=True)
        self.text += line + "\n"


def shown(value) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return str(value)


def write(document: Path, name: str, text: str, plots: dict[str, str]) -> None:
    """Put a measurement's text between its marks in a Markdown document, and its plots into the folder beside it.

    Raises:
        SystemExit: the document has no such marks.
    """
    folder = document.with_suffix("")
    for file, svg in plots.items():
        folder.mkdir(exist_ok=True)
        (folder / file).write_text(svg)
        text = f"![{file.removesuffix('.svg')}]({folder.name}/{file})\n\n{text.strip()}\n"
    made = f"*Made by `python -m bench {name} --write …` on {circumstances()}*"
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before = document.read_text()
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(before):
        raise SystemExit(f"{document} has no place for {name}; write {begin} and {end} where it should stand")
    document.write_text(pattern.sub(lambda _: f"{begin}\n{made}\n\n{text.strip()}\n{end}", before))


def circumstances() -> str:
    """When, on what machine, with which versions."""
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[0]
    return (
        f"{datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores of {models[0] if models else platform.machine()}, "
        f"{memory:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}; {versions()}; "
        f"load average at the end {load:.1f}."
    )
