"""The effective document shows everything but secrets, and reads as the same document again."""

from __future__ import annotations

import json
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.config_samples import BatchSettings, OtlpExporterSettings, QueueSettings, resolve

from config import ComponentId, Duration, Ratio, Secret, Settings, Size, Url
from config.decode import settings_from_yaml
from config.document import load
from config.dump import dump, plain


class Mode(Enum):
    """How."""

    FAST = "fast"


DOCUMENT = """
receivers: {otlp: {protocols: {grpc: {read_buffer_size: 1}}}, otlp/two: {protocols: {http: }}}
processors: {rate_limit: {rate: 7/h, key: [a, b]}, batch: {timeout: 1m30s}}
exporters:
  otlp: {endpoint: "a$$b", sending_queue: {batch: {enabled: false}}}
  debug: {verbosity: detailed}
extensions: {health_check: }
service:
  extensions: [health_check]
  telemetry: {resource: {service.name: "yes", a: null}, metrics: {readers: [{periodic: {exporter: {console: }}}]}}
  pipelines: {logs/a: {receivers: [otlp], processors: [batch], exporters: [otlp, debug]}}
"""


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_the_dump_reads_as_the_same_document(form, tmp_path):
    """What is printed may be used instead of what was written, and prints the same again."""
    resolved = resolve(load([f"yaml:{DOCUMENT}"]))
    path = tmp_path / "dump.yaml"
    path.write_text(dump(resolved, form))
    again = resolve(load([str(path)]))
    assert again == resolved
    assert dump(again, form) == path.read_text()


def test_defaults_are_filled_in():
    """Every setting that works is there, whether written or not, and no other."""
    document = json.loads(dump(resolve(load([f"yaml:{DOCUMENT}"])), "json"))
    assert document["receivers"] == {
        "otlp": {"protocols": {"grpc": {"endpoint": "localhost:4317", "max_recv_msg_size_mib": 4}}},
        "otlp/two": {"protocols": {"http": {"endpoint": "localhost:4318", "max_request_body_size": "20MiB"}}},
    }
    assert document["processors"]["batch"]["timeout"] == "1m30s"
    assert document["exporters"]["otlp"]["sending_queue"]["batch"] == {"enabled": False}
    assert document["service"]["shutdown_timeout"] == "30s"


def test_secrets_are_not_shown():
    """A secret is there but hidden; an empty one is seen to be empty; a URL loses its password."""

    class Account(Settings):
        """Holds secrets."""

        key: Secret = Secret()
        other: Secret = Secret()
        url: Url = Url("http://me:hunter2@host/path")

    shown = plain(Account(key=Secret("hunter2")))
    assert shown == {"key": "[REDACTED]", "other": "", "url": "http://[REDACTED]@host/path"}
    headers = OtlpExporterSettings(endpoint="e", headers={"api-key": Secret("hunter2")})
    assert "hunter2" not in json.dumps(plain(headers))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Size("200"), 200),
        (Size("64KiB"), "64KiB"),
        (Duration("90s"), "1m30s"),
        (Ratio("25%"), "0.25"),
        (ComponentId("otlp", "a"), "otlp/a"),
        (Mode.FAST, "fast"),
        (frozenset({"b", "a"}), ["a", "b"]),
        ((1, True, None, "$"), [1, True, None, "$$"]),
        ({ComponentId("logs"): 1.5}, {"logs": 1.5}),
    ],
)
def test_values_are_written_as_a_person_would(value, written):
    """Units have their short forms, and a dollar sign is doubled, since texts are substituted when they are read."""
    assert plain(value) == written


@given(
    st.builds(
        OtlpExporterSettings,
        endpoint=st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n")),
        sending_queue=st.builds(
            QueueSettings,
            queue_size=st.integers(),
            batch=st.none()
            | st.builds(BatchSettings, timeout=st.floats(0, 1e6).map(Duration), send_batch_size=st.integers(0, 2**60)),
        ),
    )
)
def test_any_settings_read_as_what_was_dumped(settings):
    """Texts that look like other types, dollar signs, units and sections that are off survive the round trip."""
    assert settings_from_yaml(json.dumps(plain(settings), ensure_ascii=False), OtlpExporterSettings) == settings


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_any_text_survives_the_yaml(text):
    """Whatever a text looks like, YAML has it as a text."""
    document = DOCUMENT.replace('"a$$b"', json.dumps(text.replace("$", "$$"), ensure_ascii=False))
    resolved = resolve(load([f"yaml:{document}"]))
    assert resolve(load([f"yaml:{dump(resolved)}"])) == resolved
