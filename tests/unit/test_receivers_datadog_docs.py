"""The page about the receivers says what is."""

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from processors.allowlist import Allowlist
from sidecar.dogstatsd.intake import MAX_WAITING
from sidecar.dogstatsd.windows import MAX_MEMBERS
from sidecar.events.datadog_keys import CLIENT_STATS
from sidecar.receivers.datadog import DatadogReceiver, DatadogReceiverSettings
from sidecar.receivers.datadog.client_stats import DURATION
from sidecar.receivers.dogstatsd import DogStatsDReceiver, DogStatsDSettings
from sidecar.testing import Bench

PAGE = (Path(__file__).parents[2] / "docs/datadog-receivers.md").read_text()


def rows(section):
    """The first table of a section: its first column's words in code, and the second column."""
    table = re.search(rf"\n## `{section}`\n\n((?:\|.*\n)+)", PAGE)[1]
    found = re.findall(r"^\| (`.*?`) \| (.*?) \|", table, re.MULTILINE)
    return [
        pair
        for names, defaults in found
        for pair in zip(re.findall("`(.*?)`", names), defaults.split(", "), strict=True)
    ]


@pytest.mark.parametrize(
    ("section", "settings"), [("datadog", DatadogReceiverSettings), ("dogstatsd", DogStatsDSettings)]
)
def test_every_setting_is_explained_with_its_default(section, settings):
    """And no other."""
    defaults = {field.encode_name: field.default for field in msgspec.structs.fields(settings)}
    explained = {name: None if default == "none" else default for name, default in rows(section)}
    assert explained.keys() == defaults.keys()
    for name, default in explained.items():
        kind = type(defaults[name])
        assert default == defaults[name] or kind(default) == defaults[name], name


def test_the_documents_are_right():
    """A receiver or a processor can be made from each of their sections."""
    for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        document = yaml.safe_load(text)
        for name, kind in (("datadog", DatadogReceiver), ("dogstatsd", DogStatsDReceiver)):
            if "receivers" in document:
                Bench().make(kind, yaml.safe_dump(document["receivers"][name] or {}), name)
        if "processors" in document:
            Bench().make(Allowlist, yaml.safe_dump(document["processors"]["allowlist"]), "allowlist")


def test_numbers_and_names_are_right():
    """Those that the code has."""
    for fact in (f"`{DURATION}`", f"`{CLIENT_STATS}`", f"up to {MAX_MEMBERS:,}", f"up to {MAX_WAITING} windows"):
        assert fact in PAGE
