"""From the names in the document to classes: built-ins and plugins alike, by entry point, imported only when named."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from config import Settings
from config.problems import did_you_mean
from sidecar.component import Component, Connector, Exporter, Extension, Kind, Processor, Receiver

_BASES: dict[Kind, type[Component[Any]]] = {
    Kind.RECEIVER: Receiver,
    Kind.PROCESSOR: Processor,
    Kind.EXPORTER: Exporter,
    Kind.CONNECTOR: Connector,
    Kind.EXTENSION: Extension,
}


class Registry:
    """Every component that is installed. `points` replaces the entry points of the environment."""

    def __init__(self, points: Iterable[EntryPoint] | None = None) -> None:
        self._points: dict[Kind, dict[str, EntryPoint]] = {kind: {} for kind in Kind}
        self._classes: dict[tuple[Kind, str], type[Component[Any]]] = {}
        installed = [point for kind in Kind for point in entry_points(group=f"sidecar.{kind.value}")]
        for point in installed if points is None else points:
            prefix, _, kind = point.group.partition(".")
            if prefix == "sidecar" and kind in {one.value for one in Kind}:
                self._points[Kind(kind)].setdefault(point.name, point)

    def types(self, kind: Kind) -> list[str]:
        """The installed types of a kind, sorted; nothing is imported."""
        return sorted(self._points[kind])

    def package(self, kind: Kind, type_name: str) -> str:
        """The distribution and version that an installed type comes from."""
        distribution = self._points[kind][type_name].dist
        return f"{distribution.name} {distribution.version}" if distribution else "unknown"

    def load(self, kind: Kind, type_name: str) -> type[Component[Any]]:
        """The class of a type, imported on first use.

        Raises:
            LookupError: it is not installed, its package can't be imported, or it isn't a component of that kind. The
                message says which, and what to do.
        """
        found = self._classes.get((kind, type_name))
        if found is None:
            found = self._classes[kind, type_name] = self._import(kind, type_name)
        return found

    def settings_of(self, kind: str, type_name: str) -> type[Settings]:
        """The settings class of a type. Raises LookupError as `load` does."""
        return self.load(Kind(kind), type_name).settings_type()

    def deprecated(self, kind: str, type_name: str) -> str | None:
        """The type that replaces a deprecated one; None when the type is not deprecated."""
        cls = self.load(Kind(kind), type_name)
        if type_name not in cls.deprecated_types:
            return None
        target = self._points[Kind(kind)][type_name].value
        same = (name for name, point in self._points[Kind(kind)].items() if point.value == target)
        return next((name for name in sorted(same) if name not in cls.deprecated_types), None)

    def _import(self, kind: Kind, type_name: str) -> type[Component[Any]]:
        word = kind.name.lower()
        point = self._points[kind].get(type_name)
        if point is None:
            raise LookupError(
                f"no {word} {type_name!r} is installed{did_you_mean(type_name, self.types(kind), 'installed')}"
            )
        try:
            loaded = point.load()
        except AttributeError as error:
            raise LookupError(
                f"{word} {type_name!r}: package {self.package(kind, type_name)} has no {point.value!r} ({error}); "
                "its entry point is wrong: update or remove the package"
            ) from None
        except Exception as error:  # whatever a foreign module does while it is imported
            raise LookupError(
                f"{word} {type_name!r}: package {self.package(kind, type_name)} can't be imported: "
                f"{type(error).__name__}: {error}; install what is missing, or remove the package"
            ) from error
        if not (isinstance(loaded, type) and issubclass(loaded, _BASES[kind])):
            raise LookupError(
                f"{word} {type_name!r}: {point.value!r} ({self.package(kind, type_name)}) is not of kind {word}; "
                f"it must derive from sidecar.{_BASES[kind].__name__}"
            )
        return loaded
