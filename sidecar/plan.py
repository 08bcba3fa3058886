"""Pure: which components a new document keeps, makes and retires."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from config import ComponentId, Settings
from config.resolve import Resolved
from sidecar.component import Kind


class Key(NamedTuple):
    """One running component. Processors exist once per pipeline, all others once."""

    kind: Kind
    id: ComponentId
    pipeline: ComponentId | None = None

    def __str__(self) -> str:
        return f"{self.kind.value}/{self.id}{f' in {self.pipeline}' if self.pipeline else ''}"


@dataclass(frozen=True)
class Plan:
    """What changes between two documents, each in the order of its document.

    A changed component is retired and made: the new one succeeds the old one of the same key.
    """

    keep: tuple[Key, ...]
    make: tuple[Key, ...]
    retire: tuple[Key, ...]

    def __str__(self) -> str:
        made = [f"{'~' if key in self.retire else '+'}{key}" for key in self.make]
        gone = [f"-{key}" for key in self.retire if key not in self.make]
        return ", ".join([*made, *gone]) or "nothing changed"


def plan(
    old: Resolved | None,
    new: Resolved,
    uses: Callable[[Key], frozenset[ComponentId]] = lambda _key: frozenset(),
    holds: Callable[[Key], bool] = lambda _key: False,
) -> Plan:
    """Compare two documents by value.

    Args:
        old: what runs; None when nothing does.
        new: what shall run.
        uses: the extensions that a running component has asked for. It can't outlive them.
        holds: whether a running processor may hold data. Those go where they were accepted for, so that it is not kept
            when what follows in its pipeline changes.
    """
    before, after = _components(old) if old else {}, _components(new)
    changed = {key.id for key, settings in before.items() if key.kind is Kind.EXTENSION and after.get(key) != settings}
    keep = tuple(
        key
        for key, settings in after.items()
        if key in before
        and before[key] == settings
        and not (uses(key) & changed)
        and not (old and key.pipeline and holds(key) and _behind(key, old) != _behind(key, new))
    )
    kept = frozenset(keep)
    return Plan(
        keep=keep,
        make=tuple(key for key in after if key not in kept),
        retire=tuple(key for key in before if key not in kept),
    )


def _behind(key: Key, resolved: Resolved) -> tuple[object, ...]:
    """What follows a processor in its pipeline."""
    pipeline = next(one for one in resolved.pipelines if one.id == key.pipeline)
    return (*pipeline.processors[pipeline.processors.index(key.id) :], *pipeline.exporters)


def _components(resolved: Resolved) -> Mapping[Key, Settings]:
    """Everything that runs for a document, with its settings."""
    kinds = (Kind.EXPORTER, Kind.CONNECTOR, Kind.RECEIVER)
    keys = [Key(Kind.EXTENSION, name) for name in resolved.service.extensions]
    keys += [
        Key(Kind(kind), name)
        for (kind, name), component in resolved.components.items()
        if Kind(kind) in kinds and component.is_used
    ]
    keys += [Key(Kind.PROCESSOR, name, pipeline.id) for pipeline in resolved.pipelines for name in pipeline.processors]
    return {key: resolved.components[key.kind.value, key.id].settings for key in keys}
