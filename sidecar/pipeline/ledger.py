"""What an outbox holds, and what became of what it took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True)
class Held:
    """How much an outbox holds: waiting, under way and reserved."""

    requests: int = 0
    items: int = 0
    bytes: int = 0

    def add(self, items: int, size: int, requests: int = 1) -> None:
        """So much more."""
        self.requests += requests
        self.items += items
        self.bytes += size

    def remove(self, items: int, size: int) -> None:
        """One request less."""
        self.requests -= 1
        self.items -= items
        self.bytes -= size

    def of(self, sizer: Literal["requests", "items", "bytes"]) -> int:
        """As much as it is in a queue's unit."""
        return {"requests": self.requests, "items": self.items, "bytes": self.bytes}[sizer]


@dataclass(slots=True)
class Balance:
    """What became of the items that an outbox took: taken = delivered + stored + dropped when it holds nothing.

    Attributes:
        taken: accepted from senders, and found on disk at the start.
        stored: left on disk at the end.
    """

    taken: int = 0
    delivered: int = 0
    stored: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str, items: int) -> None:
        """Count items that will not arrive."""
        self.dropped[reason] = self.dropped.get(reason, 0) + items

    def add(self, other: Balance) -> None:
        """Count what became of another outbox's items too."""
        self.taken += other.taken
        self.delivered += other.delivered
        self.stored += other.stored
        for reason, items in other.dropped.items():
            self.drop(reason, items)

    def __str__(self) -> str:
        reasons = ", ".join(f"{reason} {items}" for reason, items in sorted(self.dropped.items()))
        return (
            f"received {self.taken} = delivered {self.delivered} + stored {self.stored} "
            f"+ dropped {sum(self.dropped.values())}{f' ({reasons})' if reasons else ''}"
        )
