"""`sidecar` as ever, and a thread that writes the number of its tasks into the file `tasks`: for measurements alone."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from pathlib import Path

from sidecar.cli import main

SECONDS = 2.0


def count() -> None:
    while True:
        tasks = sum(isinstance(each, asyncio.Task) and not each.done() for each in gc.get_objects())
        Path("tasks").write_text(str(tasks))
        time.sleep(SECONDS)


if __name__ == "__main__":
    threading.Thread(target=count, daemon=True).start()
    sys.exit(main())
