"""The command line, as a person or a script uses it."""

from __future__ import annotations

import json
from contextlib import closing

import jsonschema
import pytest
import yaml
from support.otlp import logs

from sidecar.cli import main
from sidecar.extensions.file_storage import held
from sidecar.storage import QueueFile

DOCUMENT = """
receivers: {otlp: {protocols: {http: {endpoint: "localhost:4318"}}}}
exporters: {otlp_http: {endpoint: "http://localhost:1", headers: {authorization: "Bearer hidden-token"}}}
service: {pipelines: {logs: {receivers: [otlp], exporters: [otlp_http]}}}
"""


@pytest.fixture
def document(tmp_path):
    """A document without problems."""
    path = tmp_path / "sidecar.yaml"
    path.write_text(DOCUMENT)
    return str(path)


def test_a_good_document_is_valid(document, capsys):
    """Exit code 0, and a line that says what was looked at."""
    assert main(["validate", "--config", document]) == 0
    assert capsys.readouterr().out == "valid: 1 pipelines, 2 components\n"


def test_all_problems_are_told_at_once(document, capsys):
    """Exit code 2, each with its place; what a component refuses as well as what the document gets wrong."""
    override = "yaml:exporters::otlp_htp: null"
    assert main(["validate", "--config", document, "--config", override, "--set", "service.shutdown_timeout=5"]) == 2
    problems = capsys.readouterr().err
    assert "exporters.otlp_htp: no exporter 'otlp_htp' is installed; did you mean 'otlp_http'?" in problems
    assert "service.shutdown_timeout: 5 where a duration such as" in problems


def test_what_a_component_refuses_is_told_at_its_place(document, capsys):
    """An extension that is missing is a problem of the setting that names it."""
    assert main(["validate", "--config", document, "--set", "exporters.otlp_http.sending_queue.storage=disk"]) == 2
    assert "exporters.otlp_http.sending_queue.storage: no extension 'disk' is listed" in capsys.readouterr().err


def test_a_set_without_a_value_is_a_problem(document, capsys):
    """The message shows the right form."""
    assert main(["validate", "--config", document, "--set", "nonsense"]) == 2
    assert "write --set a.b=value" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_the_effective_document_shows_defaults_and_no_secrets(document, capsys, form):
    """What is printed can be read again, and holds no credential."""
    assert main(["print-config", "--config", document, "--format", form]) == 0
    text = capsys.readouterr().out
    shown = yaml.safe_load(text) if form == "yaml" else json.loads(text)
    assert shown["exporters"]["otlp_http"]["sending_queue"]["num_consumers"] == 4
    assert "hidden-token" not in text
    assert "[REDACTED]" in text


def test_components_are_listed_with_their_package(capsys):
    """Every built-in, with its signals and the distribution that it comes from."""
    assert main(["components"]) == 0
    listed = capsys.readouterr().out
    for name in ("otlp", "allowlist", "datadog", "prometheus", "file_storage"):
        assert f"\n  {name} " in listed
    assert "otlphttp           deprecated: write otlp_http" in listed
    assert "otlp-sidecar" in listed


def test_the_schema_accepts_a_document_and_refuses_a_wrong_one(document, capsys):
    """An editor that knows the schema marks what `validate` would."""
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    good = yaml.safe_load(DOCUMENT)
    jsonschema.validate(good, schema)
    good["receivers"]["otlp"]["protocls"] = {}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(good, schema)


def test_reloading_without_a_sidecar_says_so(tmp_path, capsys):
    """Exit code 1, and how to name the socket."""
    assert main(["reload", "--control", str(tmp_path / "none.sock")]) == 1
    assert "name its socket by --control" in capsys.readouterr().err


def test_an_unknown_command_is_a_usage_error():
    """Exit code 2, as for a wrong document."""
    with pytest.raises(SystemExit) as ended:
        main(["rnu"])
    assert ended.value.code == 2


# Queues.


@pytest.fixture
def queue(tmp_path):
    """A directory with one queue: a request that waits, and a dead letter."""
    with closing(QueueFile(tmp_path / "exporters%2Fotlp.queue")) as file:
        first, _ = file.change([(logs(2, body="dead"), 9), (logs(3), 9)])
        file.bury([first], "rejected", "the gateway said no")
    return tmp_path


def queues(directory, *arguments):
    """Run `sidecar queue`."""
    return main(["queue", "--directory", str(directory), *arguments])


def test_queues_and_dead_letters_are_listed(queue, capsys):
    """What waits, and what was set aside, with the reason."""
    assert queues(queue, "ls") == 0
    listed = capsys.readouterr().out
    assert "exporters/otlp: 3 items in 1 requests wait" in listed
    assert "dead letter 1: 2 logs" in listed
    assert "rejected: the gateway said no" in listed


def test_a_dead_letter_is_shown_as_otlp_json(queue, capsys):
    """It can be read, and sent to any OTLP/HTTP server by hand."""
    assert queues(queue, "show", "exporters/otlp", "1") == 0
    records = json.loads(capsys.readouterr().out)["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert [record["body"]["stringValue"] for record in records] == ["dead 0", "dead 1"]


def test_dead_letters_are_put_back_and_what_waits_is_deleted(queue, capsys):
    """Each says how many."""
    assert queues(queue, "replay", "exporters/otlp") == 0
    assert queues(queue, "purge", "exporters/otlp", "--waiting") == 0
    assert queues(queue, "ls") == 0
    out = capsys.readouterr().out
    assert out.startswith("1 put back\n2 deleted\nexporters/otlp: 0 items")


def test_an_unknown_queue_names_those_that_there_are(queue, capsys):
    """Exit code 1."""
    assert queues(queue, "purge", "exporters/otpl") == 1
    assert "has no queue of exporters/otpl; there: exporters/otlp" in capsys.readouterr().err


def test_a_running_sidecars_queue_is_not_changed(queue, capsys):
    """Looking is fine, changing waits until it has stopped."""
    with held(queue):
        assert queues(queue, "ls") == 0
        assert queues(queue, "purge", "exporters/otlp") == 1
    assert "in use by a running sidecar; stop it first" in capsys.readouterr().err
