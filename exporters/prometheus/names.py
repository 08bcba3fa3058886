"""Names: OTLP metric names, units and attribute keys to Prometheus names, and names to what a scraper can read.

Two stages, in this order: the translation strategy makes the name that a series is known by, and content negotiation
may escape that name again for one scrape (OpenTelemetry specification, "Prometheus and OpenMetrics Compatibility").
Everything here is pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

Strategy = Literal[
    "UnderscoreEscapingWithSuffixes",
    "UnderscoreEscapingWithoutSuffixes",
    "NoUTF8EscapingWithSuffixes",
    "NoTranslation",
]
Scheme = Literal["allow-utf-8", "underscores", "dots", "values"]

LEGAL_METRIC: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LEGAL_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

_NOT_METRIC: Final = re.compile(r"[^a-zA-Z0-9:]+")
_NOT_METRIC_OR_UNDERSCORE: Final = re.compile(r"[^a-zA-Z0-9:_]+")
_NOT_LABEL: Final = re.compile(r"[^a-zA-Z0-9]+")
_LEADING_UNDERSCORES: Final = re.compile(r"^__+")

# The specification's table and the spellings of the Collector's translator: `TiBy` is "tibibytes" there, and
# dashboards follow it; `kBy` is the specification's and `KBy` the Collector's.
_UNITS: Final = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds",
    "ns": "nanoseconds",
    "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes", "TiBy": "tibibytes",
    "KBy": "kilobytes", "kBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes", "TBy": "terabytes",
    "m": "meters", "V": "volts", "A": "amperes", "J": "joules", "W": "watts", "g": "grams",
    "Cel": "celsius", "Hz": "hertz", "1": "", "%": "percent",
}  # fmt: skip
_PER_UNITS: Final = {
    "s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MetricName:
    """A family's name, and the words of its unit where the name ends with them ("" where it does not)."""

    name: str
    unit: str


@dataclass(frozen=True, slots=True)
class Translator:
    """Applies one translation strategy. `namespace` is put before every metric name; it must already be legal."""

    strategy: Strategy = "UnderscoreEscapingWithSuffixes"
    namespace: str = ""

    @property
    def keeps_utf8(self) -> bool:
        """Whether names may hold characters that only `allow-utf-8` can show."""
        return self.strategy in {"NoUTF8EscapingWithSuffixes", "NoTranslation"}

    def metric(self, name: str, unit: str, kind: str) -> MetricName | None:
        """The name of a metric's family.

        Args:
            name: the OTLP name.
            unit: the OTLP unit (UCUM).
            kind: `counter`, `gauge`, or what has neither `_total` nor `_ratio` (`histogram`, `summary`, `updown` …).

        Returns:
            None when nothing of the name is left: the metric can't be shown.
        """
        if self.strategy == "UnderscoreEscapingWithSuffixes":
            tokens = [token for token in _NOT_METRIC.split(name) if token]
            final = self._prefixed("_".join(_with_suffix_tokens(tokens, unit, kind))) if tokens else ""
        elif self.strategy == "UnderscoreEscapingWithoutSuffixes":
            kept = "_".join(token for token in _NOT_METRIC_OR_UNDERSCORE.split(name) if token)
            final = self._prefixed(kept) if kept.strip("_") or kept == name else ""
        elif not name:
            final = ""
        elif self.strategy == "NoUTF8EscapingWithSuffixes":
            final = self._prefixed(_with_suffixes(name, unit, kind))
        else:
            final = self._prefixed(name)
        if not final:
            return None
        return MetricName(final, _unit_of(final, unit, kind))

    def label(self, key: str) -> str:
        """The label name of an attribute key; "" only for the empty key.

        A name in `__…__` loses that wrapper, since such names are Prometheus's own. A key without any legal character
        becomes `_`, so that its value is not lost.
        """
        if len(key) > 4 and key.startswith("__") and key.endswith("__"):
            key = key[2:-2]
        if self.keeps_utf8:
            return _LEADING_UNDERSCORES.sub("_", key)
        return legacy_label(key)

    def _prefixed(self, name: str) -> str:
        if self.namespace:
            return f"{self.namespace}_{name}"
        return f"_{name}" if not self.keeps_utf8 and name[:1].isdigit() else name


def legacy_label(key: str) -> str:
    """A key with each run of characters outside `[A-Za-z0-9]` as one underscore."""
    label = _NOT_LABEL.sub("_", key)
    return f"key_{label}" if label[:1].isdigit() else label


def legal_namespace(namespace: str) -> str:
    """A namespace as it may stand before a metric name."""
    words = "_".join(token for token in _NOT_METRIC_OR_UNDERSCORE.split(namespace) if token)
    return f"_{words}" if words[:1].isdigit() else words


def unit_words(unit: str) -> tuple[str, str]:
    """The words of a UCUM unit: the main part, and `per_…` (each "" where there is none).

    A part in braces is an annotation and says nothing. Values are never scaled: `ms` stays milliseconds.
    """
    main, _, per = unit.partition("/")
    main, per = main.strip(), per.strip()
    main = "" if "{" in main or "}" in main else _UNITS.get(main, main)
    per = "" if "{" in per or "}" in per else _PER_UNITS.get(per, per)
    return main, f"per_{per}" if per else ""


def _clean(words: str) -> str:
    return _NOT_METRIC.sub("_", words).removeprefix("_")


def _with_suffix_tokens(tokens: list[str], unit: str, kind: str) -> list[str]:
    main, per = map(_clean, unit_words(unit))
    per = per.removesuffix("_")
    for words in (main, per):
        if words and words != "per" and words not in tokens:
            tokens = [*tokens, words]
    last = _type_suffix(unit, kind)
    return [*(token for token in tokens if token != last), last] if last else tokens


def _with_suffixes(name: str, unit: str, kind: str) -> str:
    suffixes = [words for words in (*unit_words(unit), _type_suffix(unit, kind)) if words]
    for words in reversed(suffixes):
        # What the name already ends with is taken off with the one character before it, and put back below.
        if name.endswith(words) and len(name) > len(words) + 1:
            name = name[: -len(words) - 1]
    return "_".join([name, *suffixes])


def _type_suffix(unit: str, kind: str) -> str:
    if kind == "counter":
        return "total"
    return "ratio" if kind == "gauge" and unit == "1" else ""


def _unit_of(final: str, unit: str, kind: str) -> str:
    # OpenMetrics: a UNIT line is legal only where the family's name ends with it; elsewhere it fails the scrape.
    main, per = map(_clean, unit_words(unit))
    words = "_".join(filter(None, (main, per.removesuffix("_")))) or (
        "" if kind == "counter" else _type_suffix(unit, kind)
    )
    base = final.removesuffix("_total") if kind == "counter" else final
    return words if words and base.endswith(f"_{words}") else ""


def is_legal(name: str, *, metric: bool) -> bool:
    """Whether a name can be shown without quotes."""
    return (LEGAL_METRIC if metric else LEGAL_LABEL).fullmatch(name) is not None


def escape(name: str, scheme: Scheme, *, metric: bool) -> str:
    """A name as a scraper that asked for `escaping=<scheme>` gets it."""
    if scheme == "allow-utf-8":
        return name
    if scheme == "dots":
        return _by_character(name, metric, lambda character: "_dot_" if character == "." else "__", underscore="__")
    if is_legal(name, metric=metric):
        return name
    if scheme == "underscores":
        escaped = _by_character(name, metric, lambda _: "_", underscore="_")
        # Two underscores at the start of a label name are Prometheus's own.
        return escaped if metric else _LEADING_UNDERSCORES.sub("_", escaped)
    return "U__" + _by_character(name, metric, _code_point, underscore="__")


def _by_character(name: str, metric: bool, illegal: Callable[[str], str], *, underscore: str) -> str:  # noqa: FBT001
    out = []
    for position, character in enumerate(name):
        if character == "_":
            out.append(underscore)
        elif is_legal(f"a{character}" if position else character, metric=metric):
            out.append(character)
        else:
            out.append(illegal(character))
    return "".join(out)


def _code_point(character: str) -> str:
    # A lone surrogate is no character: the scheme shows it as the replacement character.
    return "_FFFD_" if "\ud800" <= character <= "\udfff" else f"_{ord(character):x}_"
