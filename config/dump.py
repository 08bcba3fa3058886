"""The document that is in effect: defaults filled in, sources merged, secrets hidden."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Literal

import msgspec
import yaml

from config.document import KINDS
from config.ids import ComponentId
from config.nodes import reads_as_text
from config.resolve import Resolved
from config.settings import IGNORED, Settings
from config.shapes import arms_of, bare, fields_of, section_of
from config.units import Secret, Size, Url, without_password

_LEFT_OUT: Final = object()


def dump(resolved: Resolved, format: Literal["yaml", "json"] = "yaml") -> str:  # noqa: A002 (as the option is called)
    """The effective document. Without secrets it reads as the same document again."""
    document = effective(resolved)
    if format == "json":
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def effective(resolved: Resolved) -> dict[str, Any]:
    """The effective document as plain dicts, lists and scalars."""
    document: dict[str, Any] = {}
    for kind in KINDS:
        section = {str(key[1]): plain(made.settings) for key, made in resolved.components.items() if key[0] == kind}
        if section:
            document[kind] = section
    return {**document, "service": plain(resolved.service)}


def plain(value: Any) -> Any:
    """A setting as it is written in a document."""
    if isinstance(value, Settings):
        fields = fields_of(type(value)).items()
        parts = {key: _field(field, getattr(value, field.name)) for key, field in fields}
        return {key: part for key, part in parts.items() if part is not _LEFT_OUT}
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, list | tuple) and not isinstance(value, ComponentId):
        return [plain(part) for part in value]
    return _scalar(value.value if isinstance(value, Enum) else value)


def _scalar(value: Any) -> Any:
    if value is None or type(value) in {bool, int, float}:
        return value
    if isinstance(value, Secret):
        return "[REDACTED]" if value else ""
    if isinstance(value, Size) and str(value).isdecimal():
        return int(value)
    text = without_password(value) if isinstance(value, Url) else str(value)
    return text.replace("$", "$$")  # a document's texts are substituted when it is read


def _field(field: msgspec.structs.FieldInfo, value: Any) -> Any:
    if IGNORED in bare(field.type)[1]:
        return _LEFT_OUT
    if value is not None:
        return plain(value)
    if section_of(field.type) is None:
        # A null where the type has no use for it is read as "not written".
        return None if types.NoneType in arms_of(field.type) else _LEFT_OUT
    # Null would turn the section on, with its defaults.
    return _LEFT_OUT if field.default is None else {"enabled": False}


class _Dumper(yaml.SafeDumper):
    """Quotes whatever our reader, or another one, would not read as a text."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (the base's signature)
        """Write equal parts in full."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if reads_as_text(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
