"""The documentation of TelemetryEvents and of callers says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from config.decode import settings_from_yaml
from sidecar.events import telemetry_event_pb2
from sidecar.events.keys import ATTRIBUTE_KEYS, FIELD_KEYS
from sidecar.events.model import WireEvent
from sidecar.extensions.token_auth import TokenAuthSettings, TokenFile
from sidecar.receivers.telemetry_event import TelemetryEventSettings

ROOT = Path(__file__).parents[2]
EVENTS = (ROOT / "docs/telemetry-events.md").read_text(encoding="utf-8")
AUTHENTICATION = (ROOT / "docs/authentication.md").read_text(encoding="utf-8")


def blocks(text: str, beginning: str) -> list[str]:
    """The YAML blocks that begin with this line."""
    found = [
        block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if block.lstrip().startswith(beginning)
    ]
    assert found
    return found


def test_the_documented_settings_are_all_settings():
    """Every setting is shown, and what is shown is accepted."""
    (block,) = blocks(EVENTS, "receivers:")
    written = yaml.safe_load(block)["receivers"]["telemetry_event"]

    assert written.keys() == set(TelemetryEventSettings.__struct_fields__)
    settings_from_yaml(yaml.safe_dump(written), TelemetryEventSettings)


def test_the_documented_keys_are_the_keys():
    """The privacy promise is written down in full."""
    (listing,) = re.findall(r"The keys of `fields` that pass[^:]*:(.*?)\*\*Everything", EVENTS, re.DOTALL)

    assert set(re.findall(r"`(\w+)`", listing)) == FIELD_KEYS
    assert set(re.findall(r"`([\w.]+)`", EVENTS)) >= ATTRIBUTE_KEYS | set(WireEvent.__struct_fields__)


def test_the_documented_token_file_is_one():
    """It can be copied as it is."""
    (block,) = blocks(AUTHENTICATION, "tokens:")

    kinds = [token.kind for token in settings_from_yaml(block, TokenFile).tokens]

    assert kinds == ["provider", "api_key", "bearer", "basic"]


@pytest.mark.parametrize("block", blocks(AUTHENTICATION, "token_auth:"))
def test_the_documented_settings_of_token_auth_are_settings(block, monkeypatch):
    """Each example is accepted."""
    monkeypatch.setenv("CI_TOKEN", "hush-hush")
    settings_from_yaml(yaml.safe_dump(yaml.safe_load(block)["token_auth"]), TokenAuthSettings)


def test_the_schema_has_the_fields_of_the_event():
    """The generated classes are those of the .proto file, and its events have the fields of the JSON form."""
    file = FileDescriptorProto()
    telemetry_event_pb2.DESCRIPTOR.CopyToProto(file)
    source = (ROOT / "sidecar/events/telemetry_event.proto").read_text(encoding="utf-8")

    fields = [field.name for message in file.message_type for field in message.field]

    assert re.findall(r"^  (?:repeated )?[\w.]+ (\w+) = \d+;", source, re.MULTILINE) == fields
    assert set(telemetry_event_pb2.TelemetryEvent.DESCRIPTOR.fields_by_name) == set(WireEvent.__struct_fields__)
