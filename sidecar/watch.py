"""Notices when a file of the document has changed, also when a mounted ConfigMap's symbolic link is switched."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeAlias

Stamp: TypeAlias = tuple[str, int, int, int] | None


def stamp(path: str) -> Stamp:
    """What a file is now: where its links lead, inode, size, and time of change. None where there is none."""
    try:
        real = Path(path).resolve(strict=True)
        status = real.stat()
    except OSError:
        return None
    return str(real), status.st_ino, status.st_size, status.st_mtime_ns


async def watch(paths: Iterable[str], changed: Callable[[], Awaitable[None]], interval: float = 1.0) -> None:
    """Call `changed` after each change of any of the files. Runs until it is cancelled."""
    files = list(paths)
    known = seen = [stamp(path) for path in files]
    while True:
        await asyncio.sleep(interval / 2)
        now = [stamp(path) for path in files]
        # Editors write in several steps, and an orchestrator switches several links: wait until it is over.
        is_settled = now == seen
        seen = now
        if is_settled and now != known and None not in now:
            known = now
            await changed()
