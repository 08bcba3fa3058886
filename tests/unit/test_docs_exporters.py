"""The page about exporters says what is so: its examples are accepted, and no setting is left out."""

import re
from pathlib import Path

import pytest
import yaml

from config.decode import settings_from_yaml
from sidecar.component import Kind
from sidecar.registry import Registry

PAGE = (Path(__file__).parents[2] / "docs" / "exporters.md").read_text()
EXAMPLES = {
    name: settings
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    for name, settings in yaml.safe_load(block)["exporters"].items()
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_accepted(name):
    """Each example of the page is accepted by the exporter that it names."""
    kind = Registry().load(Kind.EXPORTER, name.partition("/")[0])

    settings_from_yaml(yaml.safe_dump(EXAMPLES[name]), kind.settings_type())


@pytest.mark.parametrize("name", ["otlp", "otlp_http", "debug", "file"])
def test_every_setting_is_described(name):
    """Each setting of an exporter is in the table of its section."""
    section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    fields = Registry().load(Kind.EXPORTER, name).settings_type()
    shared = {"timeout", "sending_queue", "retry_on_failure"}
    ignored = {
        "read_buffer_size",
        "write_buffer_size",
        "max_idle_conns",
        "max_idle_conns_per_host",
        "idle_conn_timeout",
    }

    for field in set(fields.__struct_fields__) - shared - ignored:
        assert re.search(rf"^\|.*`{field}", section, re.MULTILINE), field
