"""From names to classes, and three messages for three ways to fail."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from sidecar import Exporter, Settings
from sidecar.component import Kind
from sidecar.registry import Registry


class PlainSettings(Settings):
    """Settings of a plugin."""

    size: int = 1


class Plain(Exporter[PlainSettings]):
    """A plugin."""

    deprecated_types = frozenset({"old_name"})


class Child(Plain):
    """A plugin that derives from another."""


def registry(**points: str) -> Registry:
    """A registry of exporters."""
    return Registry(EntryPoint(name, value, "sidecar.exporters") for name, value in points.items())


HERE = f"{__name__}:Plain"


def test_a_type_is_found_by_its_entry_point(monkeypatch):
    """The class comes from the entry point, and its settings class from the class statement."""
    found = registry(plain="test_registry_target:Plain")
    monkeypatch.setitem(__import__("sys").modules, "test_registry_target", __import__("sys").modules[__name__])
    assert found.load(Kind.EXPORTER, "plain") is Plain
    assert found.settings_of("exporters", "plain") is PlainSettings


def test_a_derived_component_has_the_settings_of_its_base():
    """The settings class is found through the bases."""
    assert PlainSettings is Child.settings_type()


def test_an_unknown_type_names_the_nearest_and_all():
    """A typing mistake is answered with what was probably meant."""
    with pytest.raises(LookupError, match=r"no exporter 'promtheus' is installed; did you mean 'prometheus'\?.*otlp"):
        registry(prometheus="x:X", otlp="x:X").load(Kind.EXPORTER, "promtheus")


def test_a_package_that_fails_to_import_is_named():
    """What a plugin raises while it is imported becomes a message, not a traceback."""
    with pytest.raises(LookupError, match=r"can't be imported: ModuleNotFoundError: .*no_such_module.*; install"):
        registry(broken="no_such_module:X").load(Kind.EXPORTER, "broken")


def test_a_class_that_is_missing_is_named():
    """An entry point that leads nowhere is told apart from a failing import."""
    with pytest.raises(LookupError, match=r"has no 'json:Missing'"):
        registry(wrong="json:Missing").load(Kind.EXPORTER, "wrong")


def test_a_class_of_another_kind_is_refused():
    """Only an exporter can be an exporter."""
    with pytest.raises(LookupError, match=r"is not of kind exporter; it must derive from sidecar.Exporter"):
        registry(wrong="json:JSONDecoder").load(Kind.EXPORTER, "wrong")


def test_a_deprecated_type_names_its_successor(monkeypatch):
    """The old name still works, and the new one can be told."""
    monkeypatch.setitem(__import__("sys").modules, "test_registry_target", __import__("sys").modules[__name__])
    found = registry(old_name="test_registry_target:Plain", new_name="test_registry_target:Plain")
    assert found.deprecated("exporters", "old_name") == "new_name"
    assert found.deprecated("exporters", "new_name") is None


def test_every_built_in_component_can_be_imported():
    """Each entry point of this distribution leads to a component of its kind with a settings class and a docstring."""
    installed = Registry()
    for kind in Kind:
        for name in installed.types(kind):
            component = installed.load(kind, name)
            assert component.__doc__
            assert component.settings_type().__doc__
