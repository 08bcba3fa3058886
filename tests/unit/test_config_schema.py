"""The JSON Schema accepts what the reader accepts, for editors that know only the schema."""

from __future__ import annotations

import jsonschema
import pytest
import yaml
from support.config_samples import INSTALLED, BatchSettings, RateLimitSettings

from config.nodes import parse
from config.schema import descriptions, json_schema

SCHEMA = json_schema(INSTALLED)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def accepts(text):
    """Whether the schema accepts a document."""
    problems = []
    return VALIDATOR.is_valid(parse(text, "f.yaml", problems).plain())


def test_the_schema_is_a_schema():
    """It is valid by its own dialect."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "receivers: {otlp: {protocols: {grpc: , http: {endpoint: ':4318'}}}}",
        "receivers: {otlp/two: {protocols: {grpc: {enabled: false}}}}",
        "processors: {batch: , batch/two: {timeout: 1m30s, send_batch_size: 5}}",
        "processors: {batch: {timeout: 0, send_batch_size: '${env:SIZE:-5}'}}",
        "processors: {batch: {timeout: '${env:T}'}, rate_limit: {rate: 10/m, key: [a]}}",
        "processors: {rate_limit: {burst: 10, unit: bytes}, rate_limit/env: {unit: '${env:UNIT}'}}",
        "exporters: {otlp: {endpoint: x, headers: {a: '${env:B}'}, compression: none}}",
        "exporters: {debug: {verbosity: '${env:V:-basic}'}}",
        "service: {extensions: [health_check], pipelines: {logs/x: {receivers: [otlp], exporters: [otlp/y]}}}",
        "service: {telemetry: {resource: {a: null}, metrics: {readers: [{pull: {exporter: {prometheus: }}}]}}}",
    ],
)
def test_right_documents_are_accepted(text):
    """What the reader takes, the schema takes."""
    assert accepts(text or "{}")


@pytest.mark.parametrize(
    "text",
    [
        "recievers: {}",
        "receivers: {oltp: }",
        "receivers: {otlp: {protocols: {grpc: {port: 1}}}}",
        "receivers: {otlp: {protocols: {grpc: {max_recv_msg_size_mib: 0}}}}",
        "receivers: {otlp: {}}",
        "processors: {batch: {timeout: 5}}",
        "processors: {batch: {timeout: 5x}}",
        "processors: {batch: {send_batch_size: x}}",
        "processors: {rate_limit: {rate: fast}}",
        "processors: {rate_limit: {burst: 12}}",
        "processors: {rate_limit: {unit: BYTES}}",
        "exporters: {otlp: {endpoint: 5}}",
        "exporters: {otlp: {endpoint: x, compression: zip}}",
        "exporters: {otlp: {endpoint: x, headers: {a: 5}}}",
        "service: {pipelines: {log: {receivers: [otlp]}}}",
        "service: {pipelines: {logs: {receivers: ['a/']}}}",
    ],
)
def test_wrong_documents_are_refused(text):
    """What the reader refuses by type or name, the schema refuses."""
    assert not accepts(text)


def test_settings_are_described():
    """Descriptions come from docstrings and annotations."""
    summary, words = descriptions(BatchSettings)
    assert summary == "Joins."
    assert words == {
        "timeout": "After which a batch is sent, whatever its size.",
        "send_batch_size": "In items.",
        "send_batch_max_size": "In items.",
    }
    assert descriptions(RateLimitSettings)[1] == {"rate": "How much of it.", "burst": "How much at once."}
    grpc = SCHEMA["$defs"]["support.config_samples.GrpcSettings.optional"]["properties"]
    assert grpc["max_recv_msg_size_mib"]["description"] == "The largest message, in MiB."
    assert grpc["endpoint"]["default"] == "localhost:4317"
    assert grpc["read_buffer_size"]["deprecated"]


def test_the_schema_is_plain_data():
    """It can be written as JSON or YAML."""
    assert yaml.safe_load(yaml.safe_dump(SCHEMA)) == SCHEMA
