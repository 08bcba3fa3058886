"""Trace and span ids in the forms that Datadog reads.

A trace id is written in 32 hexadecimal digits, or in decimal where its upper 64 bits are zero, which is what Datadog's
tracers do; a span id is written in decimal.
"""

from __future__ import annotations

from typing import Final

_NO_HIGH: Final = "0" * 16
_LOW: Final = (1 << 64) - 1


def trace_id_text(digits: str) -> str:
    """A trace id of 32 hexadecimal digits for `dd.trace_id`."""
    return str(int(digits, 16)) if digits.startswith(_NO_HIGH) else digits


def parse_trace_id(text: str) -> int:
    """A trace id from either form; 0, which is no trace, for anything else."""
    return _parse(text, 32)


def parse_span_id(text: str) -> int:
    """A span id from 16 hexadecimal digits or from decimal; 0 for anything else."""
    return _parse(text, 16)


def _parse(text: str, digits: int) -> int:
    text = text.strip()
    if not text.isascii():
        return 0
    try:
        # Decimal ids have up to 20 digits. Sixteen digits without a letter could be either: conventions say hex.
        if len(text) == digits:
            return int(text, 16)
        if text.isdigit() and len(text) <= 20:
            number = int(text)
            return number if number <= _LOW else 0
    except ValueError:
        pass
    return 0
