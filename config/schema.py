"""Pure: settings classes become one JSON Schema of a whole document, for editors that complete and check YAML."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from config.decode import Located
from config.document import KINDS, SIGNALS, Sections, ServiceSettings
from config.dump import plain
from config.ids import ComponentId
from config.settings import IGNORED, Settings
from config.shapes import LISTS, MAPS, UNIONS, bare, choices_of, fields_of, is_settings, origin_of, section_of
from config.units import Duration, Secret, Size

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_ID: Final = r"^[a-zA-Z][0-9a-zA-Z_]{0,62}(/\S+)?$"
_SUBSTITUTION: Final[Schema] = {
    "description": "A value from elsewhere: ${env:NAME}, ${env:NAME:-default}, ${file:path} or ${yaml:text}.",
    "type": "string",
    "pattern": r"\$\{.+\}",
}
_FIELD_IN_PROSE: Final = re.compile(r"`(\w+)`: (.+?)(?= `\w+`: |$)")
_FIELD_IN_LIST: Final = re.compile(r"^ {4}([\w, ]+): (.+(?:\n {5,}.+)*)", re.MULTILINE)
_SUBSTITUTED: Final[Schema] = {"$ref": "#/$defs/substitution"}
_SCALARS: Final[dict[Any, Schema]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Secret: {"type": "string"},
    ComponentId: {"type": "string", "pattern": _ID},
}
_BOUNDS: Final = (
    ("ge", "minimum"),
    ("gt", "exclusiveMinimum"),
    ("le", "maximum"),
    ("lt", "exclusiveMaximum"),
    ("multiple_of", "multipleOf"),
    ("min_length", "minLength"),
    ("max_length", "maxLength"),
    ("pattern", "pattern"),
)


def json_schema(installed: Mapping[str, Mapping[str, type[Settings]]]) -> Schema:
    """The schema of a document.

    Args:
        installed: settings classes by kind (`receivers` …) and type.
    """
    writer = _Writer()
    document = writer.section(Sections)
    for kind in KINDS:
        components = installed.get(kind, {})
        document["properties"][kind] = {
            "description": f"The {kind} of this document, by id: `type` or `type/name`.",
            "type": ["object", "null"],
            "patternProperties": {f"^{name}(/.+)?$": writer.value(one) for name, one in sorted(components.items())},
            "additionalProperties": False,
        }
    pipelines = writer.definitions[_name_of(ServiceSettings)]["properties"]["pipelines"]
    pipelines["propertyNames"] = {"pattern": f"^({'|'.join(SIGNALS)})(/.+)?$"}
    return {
        "$schema": DIALECT,
        "title": "sidecar",
        **document,
        "$defs": {"substitution": _SUBSTITUTION, **dict(sorted(writer.definitions.items()))},
    }


class _Writer:
    """Collects one definition per settings class."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}

    def value(self, annotation: Any) -> Schema:
        """The schema of a field's type."""
        annotation, limits = bare(annotation)
        schema = self._value(annotation)
        for limit in limits:
            if isinstance(limit, msgspec.Meta):
                schema = {**schema, **_limits(limit, annotation)}
        return schema

    def _value(self, annotation: Any) -> Schema:
        origin, arguments = origin_of(annotation), typing.get_args(annotation)
        section = section_of(annotation)
        if section is not None or is_settings(annotation):
            return self._reference(section or annotation, optional=section is not None)
        if origin in UNIONS:
            return {"anyOf": [self.value(arm) for arm in arguments]}
        if origin in MAPS:
            return {"type": ["object", "null"], "additionalProperties": self.value(arguments[1] if arguments else Any)}
        if origin in LISTS:
            return {"type": ["array", "null"], "items": self.value(arguments[0] if arguments else Any)}
        return {} if annotation in {Any, Located} else _scalar(annotation)

    def _reference(self, settings_type: type[Settings], *, optional: bool) -> Schema:
        name = _name_of(settings_type, optional=optional)
        if name not in self.definitions:
            self.definitions[name] = {}  # it may contain itself
            self.definitions[name].update(self.section(settings_type, optional=optional))
        return {"$ref": f"#/$defs/{name}"}

    def section(self, settings_type: type[Settings], *, optional: bool = False) -> Schema:
        """The schema of what is written for a settings class."""
        summary, words = descriptions(settings_type)
        properties: dict[str, Schema] = {}
        if optional and "enabled" not in fields_of(settings_type):
            properties["enabled"] = {"description": "false leaves this section out.", "type": "boolean"}
        for key, field in fields_of(settings_type).items():
            schema = self.value(field.type)
            if IGNORED in bare(field.type)[1]:
                schema = {"deprecated": True, "description": "Accepted, but without effect here."}
            else:
                words_for = {"description": words[key]} if key in words else {}
                schema = {**words_for, **_default_of(field), **schema}
            properties[key] = schema
        section: Schema = {
            "description": summary,
            "type": ["object", "null"],
            "properties": properties,
            "additionalProperties": False,
        }
        required = [key for key, field in fields_of(settings_type).items() if field.required]
        return {**section, "required": required} if required else section


def _name_of(settings_type: type[Settings], *, optional: bool = False) -> str:
    name = re.sub(r"[^\w.]", "_", f"{settings_type.__module__}.{settings_type.__qualname__}")
    return f"{name}.optional" if optional else name


def _default_of(field: msgspec.structs.FieldInfo) -> Schema:
    """The default of a field, where it says something in one line."""
    default = field.default if field.default_factory is msgspec.NODEFAULT else None
    if default is msgspec.NODEFAULT or default is None or isinstance(default, Settings | Secret):
        return {}
    return {"default": plain(default)}


def _scalar(annotation: Any) -> Schema:
    choices = choices_of(annotation)
    if annotation is types.NoneType:
        return {"type": "null"}
    if choices is not None:
        return {"anyOf": [{"enum": [plain(choice) for choice in choices.values()]}, _SUBSTITUTED]}
    if annotation in {str, Secret}:
        return _SCALARS[annotation]
    if annotation in _SCALARS:
        return {"anyOf": [_SCALARS[annotation], _SUBSTITUTED]}
    text: Schema = {"type": "string", "description": getattr(annotation, "form", f"{annotation.__name__}, as text")}
    if hasattr(annotation, "pattern"):
        text["pattern"] = annotation.pattern
    numbers: list[Schema] = []
    if getattr(annotation, "takes_numbers", False):
        numbers = [{"type": "number"}]
    elif issubclass(annotation, Size):
        numbers = [{"type": "integer", "minimum": 0}]
    elif issubclass(annotation, Duration):
        numbers = [{"const": 0}]
    return {"anyOf": [text, *numbers, _SUBSTITUTED]}


def _limits(limit: msgspec.Meta, annotation: Any) -> Schema:
    schema: Schema = {"description": limit.description} if limit.description else {}
    bounds = {word: getattr(limit, name) for name, word in _BOUNDS if getattr(limit, name) is not None}
    if bounds and annotation in {int, float, str}:
        schema["anyOf"] = [{**_SCALARS[annotation], **bounds}, _SUBSTITUTED]
    return schema


def descriptions(settings_type: type[Settings]) -> tuple[str, dict[str, str]]:
    """What a settings class says of itself, and of its fields.

    Fields are described where the docstring of the class or of a base says `name`: …, or below "Attributes:".
    """
    prose = ""
    words: dict[str, str] = {}
    for one in reversed(settings_type.__mro__):
        if is_settings(one) and one.__doc__:
            text, _, attributes = inspect.cleandoc(one.__doc__).partition("\nAttributes:\n")
            prose = " ".join(text.split())
            words.update(_FIELD_IN_PROSE.findall(prose))
            for names, described in _FIELD_IN_LIST.findall(attributes):
                words |= dict.fromkeys(re.split(r",\s*", names), " ".join(described.split()))
    return prose, {name: described[0].upper() + described[1:] for name, described in words.items()}
