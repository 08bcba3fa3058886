"""Which attribute keys pass: names and patterns, decided once per key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

# How many keys, and keys of which length, are remembered: senders choose them, and must not fill the memory.
_MAX_REMEMBERED: Final = 10_000
_MAX_LENGTH: Final = 256


class KeyRule:
    """The keys that pass in one kind of place.

    Attributes:
        names: keys that pass, without those that patterns let pass.
        passing: keys that pass and need no further look, to test a whole record at once. Grows by the keys that a
            pattern has let pass.
    """

    def __init__(self, allowed: Iterable[str], watched: Iterable[str] = ()) -> None:
        """Make the rule.

        Args:
            allowed: names and patterns; in a pattern, `*` matches any run of characters.
            watched: keys that never enter `passing`, since their values need a look.
        """
        allowed = set(allowed)
        patterns = sorted(name for name in allowed if "*" in name)
        self.names = frozenset(allowed.difference(patterns))
        self._watched = frozenset(watched)
        self._pattern = re.compile("|".join(map(_expression, patterns)), re.DOTALL) if patterns else None
        self._denied: set[str] = set()
        self._room = _MAX_REMEMBERED
        self.passing = set(self.names - self._watched)

    def allows(self, key: str) -> bool:
        """Whether the key passes."""
        if key in self.passing or key in self.names:
            return True
        if self._pattern is None or key in self._denied:
            return False
        allowed = self._pattern.fullmatch(key) is not None
        if self._room and len(key) <= _MAX_LENGTH and key not in self._watched:
            self._room -= 1
            (self.passing if allowed else self._denied).add(key)
        return allowed


def _expression(pattern: str) -> str:
    return ".*".join(map(re.escape, pattern.split("*")))
