"""Content negotiation of a scrape: which format, which escaping of names, compressed or not.

Client text is matched against what we serve and never echoed into a header.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, get_args

from exporters.prometheus.names import Scheme


class Format(Enum):
    """The exposition formats."""

    TEXT = "text"
    OPENMETRICS = "openmetrics"
    PROTOBUF = "protobuf"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a scrape gets."""

    format: Format
    content_type: str
    scheme: Scheme = "underscores"


_TEXT: Final = "text/plain"
_OPENMETRICS: Final = "application/openmetrics-text"
_PROTOBUF: Final = "application/vnd.google.protobuf"
_PROTOBUF_PARAMETERS: Final = {"proto": "io.prometheus.client.MetricFamily", "encoding": "delimited"}
# The documentation of Prometheus spells one of them without the second hyphen.
_SCHEMES: Final[dict[str, Scheme]] = {**{scheme: scheme for scheme in get_args(Scheme)}, "allow-utf8": "allow-utf-8"}

DEFAULT: Final = Answer(Format.TEXT, "text/plain; version=0.0.4; charset=utf-8")


@dataclass(frozen=True, slots=True)
class _Clause:
    value: str
    parameters: dict[str, str]
    quality: float


@lru_cache(maxsize=64)
def negotiate(accept: str, *, openmetrics: bool = True) -> Answer:
    """The answer to an `Accept` header: the acceptable format of the highest quality, the first of equals.

    What matches nothing gets text 0.0.4, as every Prometheus server has always understood it.
    """
    clauses = sorted(_clauses(accept), key=lambda clause: -clause.quality)
    refused = {clause.value for clause in clauses if not clause.quality}
    for clause in clauses:
        answer = _answer(clause, refused, openmetrics=openmetrics) if clause.quality else None
        if answer is not None:
            return answer
    return DEFAULT


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an `Accept-Encoding` header allows gzip; the named coding counts before the wildcard."""
    qualities = {clause.value: clause.quality for clause in _clauses(accept_encoding)}
    return qualities.get("gzip", qualities.get("x-gzip", qualities.get("*", 0.0))) > 0


def _answer(clause: _Clause, refused: set[str], *, openmetrics: bool) -> Answer | None:
    asked = clause.parameters.get("escaping")
    scheme = _SCHEMES.get(asked or "", "underscores")
    suffix = f"; escaping={scheme}" if asked else ""
    if clause.value == _TEXT:
        return _text(clause, scheme)
    if clause.value == _OPENMETRICS and openmetrics:
        version = clause.parameters.get("version", "1.0.0")
        content_type = f"{_OPENMETRICS}; version={version}; charset=utf-8{suffix}"
        return Answer(Format.OPENMETRICS, content_type, scheme) if version in {"1.0.0", "0.0.1"} else None
    if clause.value == _PROTOBUF:
        fits = all(clause.parameters.get(name) == value for name, value in _PROTOBUF_PARAMETERS.items())
        content_type = f"{_PROTOBUF}; proto={_PROTOBUF_PARAMETERS['proto']}; encoding=delimited{suffix}"
        return Answer(Format.PROTOBUF, content_type, scheme) if fits else None
    return DEFAULT if clause.value in {"*/*", "text/*"} and _TEXT not in refused else None


def _text(clause: _Clause, scheme: Scheme) -> Answer | None:
    version = clause.parameters.get("version", "0.0.4")
    if version == "1.0.0":
        return Answer(Format.TEXT, f"text/plain; version=1.0.0; charset=utf-8; escaping={scheme}", scheme)
    return DEFAULT if version == "0.0.4" else None


def _clauses(header: str) -> list[_Clause]:
    return [_clause(text) for text in _split(header, ",") if text.strip()]


def _clause(text: str) -> _Clause:
    value, *rest = _split(text, ";")
    parameters = {}
    for one in rest:
        name, _, setting = one.partition("=")
        parameters[name.strip().lower()] = setting.strip().strip('"')
    try:
        quality = float(parameters.pop("q", "1"))
    except ValueError:
        quality = 0.0
    return _Clause(value.strip().lower(), parameters, quality if 0 <= quality <= 1 else 0.0)


def _split(text: str, separator: str) -> list[str]:
    """Split where no quotes are open."""
    parts, start, quoted = [], 0, False
    for position, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif character == separator and not quoted:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return parts
