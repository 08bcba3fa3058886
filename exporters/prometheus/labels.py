"""Labels: attribute values as text, and label sets in the one written form by which a series is known.

A series is identified by what a scraper will see, never by what was sent: two senders whose names translate to the same
series must meet in it, or the page shows it twice.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate as glob_to_regex
from typing import Any, Final

import orjson

from exporters.prometheus.names import LEGAL_LABEL, Translator, legacy_label

IDENTIFYING: Final = frozenset({"service.namespace", "service.name", "service.instance.id"})
# What text needs to be escaped between quotes. A server that meets NUL refuses the page.
ESCAPED: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\0": "\ufffd"})
_UNESCAPED: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_ESCAPE: Final = re.compile(r'\\[\\"n]')
_PAIR: Final = re.compile(r'(?:"((?:[^"\\]|\\.)*)"|([^"=,]+))="((?:[^"\\]|\\.)*)"', re.DOTALL)

Pairs = list[tuple[str, str]]
"""Original key and value, before the key is a label name."""


def value_text(value: Any) -> str:
    """An OTLP AnyValue as a label value (specification, "Attribute values"): text as it is, the rest as JSON."""
    which = value.WhichOneof("value")
    if which == "string_value":
        return str(value.string_value)
    if which is None:
        return ""
    if which == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    if which == "double_value" and not math.isfinite(value.double_value):
        return _SPECIAL.get(value.double_value, "NaN")
    return orjson.dumps(_plain(value)).decode()


_SPECIAL: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


def _plain(value: Any) -> Any:
    which = value.WhichOneof("value")
    if which == "array_value":
        return [_plain(one) for one in value.array_value.values]
    if which == "kvlist_value":
        return {pair.key: _plain(pair.value) for pair in value.kvlist_value.values}
    if which == "double_value":
        number = value.double_value
        if not math.isfinite(number):
            return _SPECIAL.get(number, "NaN")
        # As JSON numbers are usually written: 1, not 1.0.
        return int(number) if number.is_integer() and abs(number) < 2**53 else number
    if which == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return getattr(value, which) if which else None


def attribute_pairs(attributes: Iterable[Any]) -> Pairs:
    """The keys and values of KeyValue messages. One without a key or a value is absent (OpenMetrics, "Labels")."""
    pairs = [(one.key, value_text(one.value)) for one in attributes]
    return [(key, value) for key, value in pairs if key and value]


@dataclass(frozen=True, slots=True)
class LabelRules:
    """How attributes become labels.

    Attributes:
        translator: makes label names.
        distinct: equal values of keys that meet in one label are written once (the specification repeats them).
        max_value_length: longer values are cut, in characters.
        constant: labels for every series that has no label of that name.
    """

    translator: Translator
    distinct: bool = False
    max_value_length: int = 4096
    constant: tuple[tuple[str, str], ...] = ()

    def merged(self, pairs: Pairs, generated: Mapping[str, str], reserved: str = "") -> dict[str, str]:
        """Label names and values.

        Args:
            pairs: attributes. Several that meet in one label are joined with `;` in the order of their original keys.
            generated: labels that the exporter makes. An attribute that meets one moves to `exported_<name>`, as a
                scrape with honor_labels=false would move it.
            reserved: a label name that the exporter will add later (`le`, `quantile`), treated as generated.
        """
        limit = self.max_value_length
        found: dict[str, list[tuple[str, str]]] = {}
        for key, value in pairs:
            name = self.translator.label(key)
            if name in generated or (reserved and name == reserved):
                name = f"exported_{name}"
            found.setdefault(name, []).append((key, value[:limit]))
        labels = {name: self._joined(values) for name, values in found.items()}
        labels.update(generated)
        for name, value in self.constant:
            labels.setdefault(name, value)
        return labels

    def _joined(self, values: list[tuple[str, str]]) -> str:
        if len(values) == 1:
            return values[0][1]
        texts = [value for _, value in sorted(values)]
        return ";".join(dict.fromkeys(texts) if self.distinct else texts)


def written(labels: Mapping[str, str]) -> str:
    """A label set as it stands between the braces: sorted by name, names that are not legal in quotes."""
    return ",".join(
        [
            f'{name if LEGAL_LABEL.fullmatch(name) else quote(name)}="{value.translate(ESCAPED)}"'
            for name, value in sorted(labels.items())
        ]
    )


def quote(name: str) -> str:
    """A name in quotes, for those that the classic grammar does not allow."""
    return f'"{name.translate(ESCAPED)}"'


def read(text: str) -> Pairs:
    """The label names and values of what `written` has made."""
    return [(_unescaped(in_quotes or bare), _unescaped(value)) for in_quotes, bare, value in _PAIR.findall(text)]


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _UNESCAPED[match[0]], text) if "\\" in text else text


@dataclass(frozen=True, slots=True)
class Selection:
    """Chooses keys by globs. Nothing included but something excluded means all but those."""

    included: tuple[re.Pattern[str], ...] = ()
    excluded: tuple[re.Pattern[str], ...] = ()

    @classmethod
    def of(cls, included: Iterable[str], excluded: Iterable[str]) -> Selection:
        """From globs as a user writes them."""
        wanted, unwanted = tuple(map(_glob, included)), tuple(map(_glob, excluded))
        return cls(wanted or ((_glob("*"),) if unwanted else ()), unwanted)

    def __call__(self, key: str) -> bool:
        """Whether a key is chosen."""
        return any(one.match(key) for one in self.included) and not any(one.match(key) for one in self.excluded)


def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(glob_to_regex(pattern))


@dataclass(frozen=True, slots=True)
class ResourceLabels:
    """What a resource gives to each of its series, and to `target_info`.

    Attributes:
        identity: `job` and `instance`, as its series carry them.
        promoted: the attributes that its series carry too.
        described: the attributes that identify nothing, for `target_info`.
    """

    identity: Mapping[str, str]
    promoted: Pairs
    described: Pairs


def resource_labels(attributes: Iterable[Any], promote: Selection, job: str, instance: str) -> ResourceLabels:
    """Specification, "Resource attributes": job from service.namespace and service.name, instance from its id.

    `instance` is written even when it is empty: without it the scraper would put the address of this process there.

    Args:
        attributes: of the resource.
        promote: chooses those that its series carry.
        job: the name of the label; "" for none.
        instance: as `job`.
    """
    pairs = attribute_pairs(attributes)
    known = dict(pairs)
    identity = {}
    if job and (service := known.get("service.name")):
        namespace = known.get("service.namespace")
        identity[job] = f"{namespace}/{service}" if namespace else service
    if instance:
        identity[instance] = known.get("service.instance.id", "")
    return ResourceLabels(
        identity=identity,
        promoted=[pair for pair in pairs if promote(pair[0])],
        described=[pair for pair in pairs if pair[0] not in IDENTIFYING],
    )


def scope_pairs(name: str, version: str, schema_url: str, attributes: Iterable[Any]) -> Pairs:
    """Specification, "Instrumentation scope": attributes named like one of the three are dropped."""
    pairs = [("otel_scope_name", name), ("otel_scope_version", version), ("otel_scope_schema_url", schema_url)]
    taken = {"name", "version", "schema_url"}
    pairs += [
        (f"otel_scope_{key}", value) for key, value in attribute_pairs(attributes) if legacy_label(key) not in taken
    ]
    return [pair for pair in pairs if pair[1]]
