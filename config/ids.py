"""Component ids: `type` or `type/name`, by the Collector's rules."""

from __future__ import annotations

import re
import unicodedata
from typing import Final, NamedTuple, Self

_TYPE: Final = re.compile(r"[a-zA-Z][0-9a-zA-Z_]{0,62}")
_LONGEST_NAME: Final = 1024


class ComponentId(NamedTuple):
    """`otlp` is type `otlp` without a name; `otlp/edge` is another component of that type."""

    type: str
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an id. Blanks around both parts are trimmed.

        Raises:
            ValueError: not an id, with what would be right.
        """
        kind, slash, name = (part.strip() for part in text.partition("/"))
        if not _TYPE.fullmatch(kind):
            raise ValueError(f"{text!r} is not a component id; write `type` or `type/name`, for example otlp/edge")
        if slash and not _is_name(name):
            raise ValueError(f"{text!r} has a slash without a usable name; write `{kind}` or `{kind}/name`")
        return cls(kind, name)

    def __str__(self) -> str:
        return f"{self.type}/{self.name}" if self.name else self.type


def _is_name(text: str) -> bool:
    # As the Collector's: neither separators (Z), nor control characters (C), nor symbols (S).
    return 0 < len(text) <= _LONGEST_NAME and not any(unicodedata.category(letter)[0] in "ZCS" for letter in text)
