"""What each command does."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import TypeAlias

from config.document import load
from config.dump import dump
from config.problems import ConfigError, Place, Problem
from config.resolve import Resolved, resolve
from sidecar import run as process
from sidecar.component import Connector, Kind
from sidecar.control import ask_to_reload
from sidecar.graph import GraphBuilder, Host
from sidecar.registry import Registry
from sidecar.signals import Signal

Command: TypeAlias = Callable[[argparse.Namespace, Registry], int]


def run(options: argparse.Namespace, registry: Registry) -> int:
    """Run until a signal says stop."""
    watched = [*map(_file, options.config)] if options.watch else []
    return process.run(
        process.Options(
            load=lambda: _resolved(options, registry),
            watched=[name for name in watched if name],
            control=options.control,
        ),
        registry,
    )


def reload(options: argparse.Namespace, _registry: Registry) -> int:
    """Have the running sidecar read its document again, and say how that went."""
    try:
        succeeded, report = ask_to_reload(options.control)
    except OSError as error:
        sys.stderr.write(f"no sidecar answers at {options.control}: {error}; name its socket by --control\n")
        return process.CAN_NOT_START
    (sys.stdout if succeeded else sys.stderr).write(f"{report}\n")
    return process.OK if succeeded else process.WRONG_DOCUMENT


def validate(options: argparse.Namespace, registry: Registry) -> int:
    """Check the document, and make its components without starting them."""
    resolved = _resolved(options, registry)
    GraphBuilder(resolved, registry, Host()).build()
    _warn(resolved)
    print(f"valid: {len(resolved.pipelines)} pipelines, {len(resolved.components)} components")
    return process.OK


def print_config(options: argparse.Namespace, registry: Registry) -> int:
    """Print the effective document."""
    resolved = _resolved(options, registry)
    _warn(resolved)
    sys.stdout.write(dump(resolved, options.format))
    return process.OK


def components(_options: argparse.Namespace, registry: Registry) -> int:
    """List what is installed, with the package of each."""
    for kind in Kind:
        print(f"{kind.value}:")
        for name in registry.types(kind):
            try:
                component = registry.load(kind, name)
            except LookupError as error:
                print(f"  {name}: {error.args[0]}")
                continue
            newer = registry.deprecated(kind.value, name)
            signals = "" if kind is Kind.EXTENSION else ", ".join(sorted(signal.value for signal in component.signals))
            summary = (component.__doc__ or "").partition("\n")[0]
            print(f"  {name:<18} {f'deprecated: write {newer}' if newer else summary}")
            print(f"  {'':<18} {'; '.join(filter(None, [signals, registry.package(kind, name)]))}")
    return process.OK


def schema(_options: argparse.Namespace, registry: Registry) -> int:
    """Print one JSON Schema of everything that is installed. What can't be imported is left out and said."""
    from config.schema import json_schema  # which `sidecar run` does not need

    settings: dict[str, dict[str, type]] = {}
    for kind in Kind:
        for name in registry.types(kind):
            try:
                settings.setdefault(kind.value, {})[name] = registry.settings_of(kind.value, name)
            except LookupError as error:
                sys.stderr.write(f"left out: {error.args[0]}\n")
    print(json.dumps(json_schema(settings), indent=2))
    return process.OK


def _resolved(options: argparse.Namespace, registry: Registry) -> Resolved:
    sources = [*(options.config or ["preset:default"]), *map(_override, options.set)]

    def connects(connector: str, source: str, target: str) -> bool:
        cls = registry.load(Kind.CONNECTOR, connector)
        return issubclass(cls, Connector) and Signal(source) in cls.signals and Signal(target) in cls.emits

    return resolve(load(sources), registry.settings_of, registry.deprecated, connects)


def _file(source: str) -> str:
    """The file that a source names, or nothing."""
    scheme, colon, rest = source.partition(":")
    if not colon or len(scheme) == 1:
        return source
    return rest if scheme == "file" else ""


def _override(text: str) -> str:
    """`a.b=value` as an inline source. A dot separates keys, as in the Collector."""
    keys, equals, value = text.partition("=")
    if not equals or not keys:
        raise ConfigError([Problem(Place("--set"), (), f"{text!r} has no key or no value; write --set a.b=value")])
    return f"yaml:{keys.replace('.', '::')}: {value}"


def _warn(resolved: Resolved) -> None:
    for warning in resolved.warnings:
        sys.stderr.write(f"{warning}\n")
