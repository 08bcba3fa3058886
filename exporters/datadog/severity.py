"""Severities as Datadog's log status."""

from __future__ import annotations

from typing import Final

# The words that senders use, and Datadog's word for each.
WORDS: Final = {
    "trace": "trace",
    "verbose": "trace",
    "debug": "debug",
    "info": "info",
    "information": "info",
    "informational": "info",
    "notice": "notice",
    "warn": "warn",
    "warning": "warn",
    "err": "error",
    "error": "error",
    "severe": "error",
    "crit": "critical",
    "critical": "critical",
    "alert": "alert",
    "fatal": "fatal",
    "panic": "fatal",
    "emerg": "emergency",
    "emergency": "emergency",
    "ok": "ok",
    "success": "ok",
}
# By SeverityNumber, four of each (OpenTelemetry logs data model, "Severity Fields").
_BY_NUMBER: Final = ("trace", "debug", "info", "warn", "error", "fatal")
_UNKNOWN: Final = "info"
_MAX_CACHED: Final = 1024

RANKS: Final = {
    "debug": ("debug", "info", "ok", "notice", "warn", "error", "critical", "alert", "fatal", "emergency"),
    "info": ("info", "ok", "notice", "warn", "error", "critical", "alert", "fatal", "emergency"),
    "warn": ("warn", "error", "critical", "alert", "fatal", "emergency"),
    "error": ("error", "critical", "alert", "fatal", "emergency"),
    "fatal": ("fatal", "emergency"),
}
"""For each lowest severity, the statuses that reach it."""


def status_of_word(word: str) -> str | None:
    """The status for a severity word; None when it is not one (`404`, `shipped`)."""
    return WORDS.get(word.strip().lower())


def status_of(number: int, text: str) -> str:
    """The status of a record: its severity word if that is one, else its number, else `info`."""
    word = status_of_word(text) if text else None
    # error2, WARN3: the short names of OpenTelemetry's finer steps.
    if word is None and text[-1:] in {"2", "3", "4"}:
        word = status_of_word(text[:-1])
    if word is not None:
        return word
    return _BY_NUMBER[(number - 1) // 4] if 1 <= number <= 24 else _UNKNOWN


class Severities:
    """What a log says of its severity, remembered: senders use a handful of pairs of number and text."""

    def __init__(self) -> None:
        self._cache: dict[tuple[int, str], dict[str, str]] = {}

    def members(self, number: int, text: str) -> dict[str, str]:
        """The members of a log for that SeverityNumber and SeverityText. Not to be changed."""
        members = self._cache.get((number, text))
        if members is None:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            members = {"status": status_of(number, text)}
            if number:
                members["otel.severity_number"] = str(number)
            if text:
                members["otel.severity_text"] = text
            self._cache[number, text] = members
        return members
