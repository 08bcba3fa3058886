"""Pure: a document and the settings classes of what is installed become checked settings, or all problems at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple, TypeAlias

from config.decode import Located, decode, problem_of
from config.document import KINDS, SIGNALS, Document, PipelineSettings, Sections, ServiceSettings
from config.ids import ComponentId
from config.nodes import Node
from config.problems import ConfigError, Key, Path, Place, Problem, Severity, did_you_mean, in_order
from config.settings import SettingError, Settings

# (kind, type) -> the settings class; raises LookupError with a message for the user.
SettingsOf: TypeAlias = Callable[[str, str], type[Settings]]
# (kind, type) -> the type that replaces a deprecated one.
Deprecated: TypeAlias = Callable[[str, str], str | None]
# (connector type, signal in, signal out) -> whether it makes the second from the first.
Connects: TypeAlias = Callable[[str, str, str], bool]

# The sections in which the components of a pipeline's part are looked for.
_PARTS: Final = {
    "receivers": ("receivers", "connectors"),
    "processors": ("processors",),
    "exporters": ("exporters", "connectors"),
}


@dataclass(frozen=True)
class ResolvedComponent:
    """A component's checked settings. One that is not used is checked too, and not to be started."""

    settings: Settings
    is_used: bool
    place: Place = field(compare=False)


class ResolvedPipeline(NamedTuple):
    """A pipeline whose references all lead somewhere."""

    id: ComponentId
    receivers: tuple[ComponentId, ...]
    processors: tuple[ComponentId, ...]
    exporters: tuple[ComponentId, ...]

    @property
    def signal(self) -> str:
        """`traces`, `metrics` or `logs`."""
        return self.id.type


@dataclass(frozen=True)
class Resolved:
    """A document that can be started. Compares by what it asks for, not by where that was written.

    Attributes:
        components: by kind (`receivers` …) and id, in the order of the document.
        pipelines: in the order of the document.
        service: extensions, own telemetry, the deadline of a stop.
        warnings: what works but should be changed.
    """

    components: Mapping[tuple[str, ComponentId], ResolvedComponent]
    pipelines: tuple[ResolvedPipeline, ...]
    service: ServiceSettings
    warnings: tuple[Problem, ...] = field(compare=False)
    document: Document = field(compare=False, repr=False)

    def problem_at(self, kind: str, name: ComponentId, *path: str | int, message: str) -> Problem:
        """A problem that was found later (a component refuses its settings), at its place in the document."""
        body = self.document.sections.components()[kind, name]
        return problem_of(SettingError(message, *path), body.node, body.path)

    def problem_in_service(self, *path: str | int, message: str) -> Problem:
        """As `problem_at`, below `service`: `problem_in_service("pipelines", "logs", "exporters", 0, message=…)`."""
        return problem_of(SettingError(message, "service", *path), self.document.root, ())


def resolve(
    document: Document,
    settings_of: SettingsOf,
    deprecated: Deprecated = lambda _kind, _type: None,
    connects: Connects = lambda _type, _from, _to: True,
) -> Resolved:
    """Check a document against what is installed.

    Raises:
        ConfigError: with every problem of the document.
    """
    return _Resolver(document, settings_of, deprecated, connects).resolve()


class _Resolver:
    def __init__(self, document: Document, settings_of: SettingsOf, deprecated: Deprecated, connects: Connects) -> None:
        self.document = document
        self.sections: Sections = document.sections
        self.settings_of = settings_of
        self.deprecated = deprecated
        self.connects = connects
        self.bodies = document.sections.components()
        self.problems = list(document.problems)
        self.used: dict[str, set[ComponentId]] = {kind: set() for kind in KINDS}

    def resolve(self) -> Resolved:
        settings = {key: self.settings(*key, body) for key, body in self.bodies.items()}
        pipelines = tuple(self.pipeline(name, parts) for name, parts in self.sections.service.pipelines.items())
        self.extensions()
        self.connectors(pipelines)
        self.circles(pipelines)
        if not self.sections.service.pipelines and not self.written("service", "pipelines"):
            self.error(("service", "pipelines"), "a document needs at least one pipeline, for example logs")
        if any(problem.severity == "error" for problem in self.problems):
            raise ConfigError(self.problems)
        self.unused()
        components = {
            (kind, name): ResolvedComponent(made, name in self.used[kind], self.bodies[kind, name].place)
            for (kind, name), made in settings.items()
            if made is not None
        }
        return Resolved(components, pipelines, self.sections.service, in_order(self.problems), self.document)

    def settings(self, kind: str, name: ComponentId, body: Located) -> Settings | None:
        try:
            settings_type = self.settings_of(kind, name.type)
        except LookupError as error:
            self.problems.append(Problem(body.place, body.path, str(error.args[0])))
            return None
        newer = self.deprecated(kind, name.type)
        if newer is not None:
            right = ComponentId(newer, name.name)
            self.warn(body, f"{name.type!r} is the deprecated name of this {KINDS[kind]}; write {str(right)!r}")
        return decode(settings_type, body.node, self.problems, body.path)

    def pipeline(self, name: ComponentId, parts: PipelineSettings) -> ResolvedPipeline:
        keys = self.document.root.at(("service", "pipelines"))[0].value
        path: Path = ("service", "pipelines", next(key for key in keys if _reads_as(key, name)))
        if name.type not in SIGNALS:
            self.error(path, f"{name.type!r} is not a signal{did_you_mean(name.type, SIGNALS, 'signals')}")
        for part, kinds in _PARTS.items():
            names: tuple[ComponentId, ...] = getattr(parts, part)
            if not names and part != "processors" and not self.written(*path, part):
                self.error(path, f"has no {part}; write {part}: […] with at least one")
            self.references((*path, part), names, kinds)
        # Twice the same receiver or exporter does no harm, and the Collector takes it.
        once = [tuple(dict.fromkeys(names)) for names in (parts.receivers, parts.exporters)]
        return ResolvedPipeline(name, once[0], parts.processors, once[1])

    def extensions(self) -> None:
        self.references(("service", "extensions"), self.sections.service.extensions, ("extensions",))

    def references(self, path: Path, names: tuple[ComponentId, ...], kinds: tuple[str, ...]) -> None:
        # What is no id has been left out of the names, so that they count differently than the document does.
        nodes = enumerate(self.document.root.at(path)[0].value or ()) if names else iter(())
        for position, name in enumerate(names):
            index = next(index for index, node in nodes if _reads_as(node, name))
            self.reference((*path, index), name, kinds)
            if name in names[:position]:
                message = f"{str(name)!r} is written twice in this list; write it once"
                self.error((*path, index), message, "error" if kinds == ("processors",) else "warning")

    def reference(self, path: Path, name: ComponentId, kinds: tuple[str, ...]) -> None:
        defined = [kind for kind in KINDS if name in getattr(self.sections, kind)]
        for kind in kinds:
            if kind in defined:
                self.used[kind].add(name)
                return
        node = self.document.root.at(path)[0]
        if defined:
            right = " and ".join(kinds)
            self.error(path, f"{node.shown()} is defined in {defined[0]}, and only {right} can be used here")
            return
        known = sorted(str(known) for kind in kinds for known in getattr(self.sections, kind))
        if node.origins:
            self.error(path, f"{node.origin()} does not name a defined {KINDS[kinds[0]]}; defined: {', '.join(known)}")
        else:
            advice = did_you_mean(str(name), known, "defined")
            self.error(path, f"no {KINDS[kinds[0]]} {node.shown()} is defined{advice}")

    def connectors(self, pipelines: tuple[ResolvedPipeline, ...]) -> None:
        for name, body in self.sections.connectors.items():
            for kind in ("receivers", "exporters"):
                if name in getattr(self.sections, kind):
                    message = f"{str(name)!r} is defined in {kind} too; rename one of them, for example {name.type}/2"
                    self.problems.append(Problem(body.place, body.path, message))
            ends = [pipeline.id for pipeline in pipelines if name in pipeline.exporters]
            starts = [pipeline.id for pipeline in pipelines if name in pipeline.receivers]
            if ends and not starts:
                message = f"ends {ends[0]} and starts no pipeline; name it among the receivers of another one"
                self.problems.append(Problem(body.place, body.path, message))
            if starts and not ends:
                message = f"starts {starts[0]} and ends no pipeline; name it among the exporters of another one"
                self.problems.append(Problem(body.place, body.path, message))

    def circles(self, pipelines: tuple[ResolvedPipeline, ...]) -> None:
        """Find pipelines that feed themselves through connectors."""
        links = {
            (source.id, target.id): connector
            for source in pipelines
            for target in pipelines
            for connector in source.exporters
            if connector in target.receivers and connector in self.sections.connectors
            if self.connects(connector.type, source.signal, target.signal)
        }
        while True:
            sorter: TopologicalSorter[ComponentId] = TopologicalSorter()
            for source, target in links:
                sorter.add(target, source)
            try:
                sorter.prepare()
            except CycleError as error:
                circle: list[ComponentId] = error.args[1]
                steps = list(itertools.pairwise(circle))
                chain = "".join(f"{source} → {links[source, target]} → " for source, target in steps) + str(circle[-1])
                self.error(("service", "pipelines", str(circle[0])), f"feeds itself: {chain}; break the circle")
                del links[steps[0]]
            else:
                return

    def unused(self) -> None:
        for (kind, name), body in self.bodies.items():
            if name not in self.used[kind]:
                where = "service.extensions does not list it" if kind == "extensions" else "no pipeline uses it"
                self.warn(body, f"{where}: it is checked but not started")

    # Reporting.

    def written(self, *path: str | int) -> bool:
        """Whether a list or map is there with something in it, be it invalid."""
        node, steps = self.document.root.at(path)
        return steps == len(path) and bool(node.value)

    def error(self, path: Path, message: str, severity: Severity = "error") -> None:
        problem = problem_of(SettingError(message, *path), self.document.root, ())
        self.problems.append(replace(problem, severity=severity))

    def warn(self, body: Located, message: str) -> None:
        self.problems.append(Problem(body.place, body.path, message, "warning"))


def _reads_as(written: Node | Key, name: ComponentId) -> bool:
    text = written if isinstance(written, Key) else written.value if written.text is None else written.text
    try:
        return ComponentId.parse(str(text)) == name
    except ValueError:
        return False
