"""The sidecar's own log: to stderr, for a person or as JSON, and never a flood."""

from __future__ import annotations

import logging
import sys
import time
from collections import defaultdict
from typing import Any, Final, Literal, TextIO

import orjson

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


class Sampling(logging.Filter):
    """Lets the first messages of a kind pass in each period, then one in many, as the Collector does.

    A kind is a logger, a level and a message before its arguments are put in. The next message that passes says how
    many were left out.
    """

    def __init__(self, period: float = 10.0, first: int = 10, thereafter: int = 100) -> None:
        super().__init__()
        self._period = period
        self._first = first
        self._thereafter = thereafter
        self._started = 0.0
        self._seen: dict[tuple[str, int, str], int] = defaultdict(int)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message passes."""
        now = time.monotonic()
        if now - self._started >= self._period:
            self._started = now
            self._seen.clear()
        key = (record.name, record.levelno, str(record.msg))
        self._seen[key] += 1
        over = self._seen[key] - self._first
        if over > 0 and over % self._thereafter == 0:
            record.left_out = self._thereafter - 1
        return over <= 0 or over % self._thereafter == 0


class ConsoleFormatter(logging.Formatter):
    """One line for a person: time, level, component, message."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ  %(levelname)-5s  %(component)s  %(message)s", "%Y-%m-%dT%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line, and below it the traceback where there is one."""
        record.component = record.name.removeprefix("sidecar.")
        if record.levelno == logging.WARNING:
            record.levelname = "WARN"
        left_out = getattr(record, "left_out", 0)
        return super().format(record) + (f" ({left_out} similar messages left out)" if left_out else "")


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The object: `ts`, `level`, `component`, `msg`, and `left_out` and `stacktrace` where there are any."""
        line: dict[str, Any] = {
            "ts": record.created,
            "level": {"WARNING": "warn"}.get(record.levelname, record.levelname.lower()),
            "component": record.name.removeprefix("sidecar."),
            "msg": record.getMessage(),
        }
        if left_out := getattr(record, "left_out", 0):
            line["left_out"] = left_out
        if record.exc_info:
            line["stacktrace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def set_up(level: str, encoding: Literal["console", "json"], stream: TextIO | None = None) -> None:
    """Write the log of everything below `sidecar` to `stream` (stderr). Replaces what an earlier call set up."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if encoding == "json" else ConsoleFormatter())
    handler.addFilter(Sampling())
    for name in ("sidecar", "aiohttp", "grpc", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(LEVELS[level] if name == "sidecar" else logging.WARNING)
