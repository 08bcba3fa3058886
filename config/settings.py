"""The base of every settings class, and the one exception by which settings are refused."""

from __future__ import annotations

from typing import Annotated, Any, Final, Self, TypeAlias, dataclass_transform

import msgspec

IGNORED: Final = "accepted and ignored"
# The type of a field that the Collector has and that means nothing here: accepted with a warning, left at its default.
Ignored: TypeAlias = Annotated[Any, IGNORED]


class _SettingsMeta(msgspec.StructMeta):
    """Makes every settings class keyword-only: msgspec does not inherit it, and required fields may follow others."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        return super().__new__(cls, name, bases, namespace, **{"kw_only": True, **options})


# For type checkers only: subclasses are frozen and keyword-only too.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Settings(msgspec.Struct, metaclass=_SettingsMeta, frozen=True, forbid_unknown_fields=True):
    """What a user writes for one component (or a part of one).

    Subclasses declare annotated fields with defaults: the document, the JSON Schema, the reference documentation and
    the checks all come from them. Settings compare by value, which is how a reload knows what has changed.
    A check that needs more than a type goes into `__post_init__`, which raises `SettingError` (or ValueError).
    """

    @classmethod
    def default(cls) -> Self:
        """The settings that a component has when nothing is written below its id."""
        return cls()


class SettingError(ValueError):
    """A setting that can't work: what is wrong and what would be right, with the path of keys below the component.

    `SettingError("the key is empty; set DD_API_KEY", "api", "key")` is reported at that key's place in the document.
    """

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path
