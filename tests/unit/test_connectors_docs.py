"""The page on connectors: its example is a valid document, and it names every setting."""

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from config.decode import settings_from_yaml
from sidecar.connectors.count import CountSettings
from sidecar.connectors.spanmetrics_settings import SpanMetricsSettings

PAGE = (Path(__file__).parents[2] / "docs" / "connectors.md").read_text()


@pytest.mark.parametrize(("name", "settings"), [("count", CountSettings), ("spanmetrics", SpanMetricsSettings)])
def test_example_is_accepted(name, settings):
    """Below each connector's id stands what its settings allow."""
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    settings_from_yaml(yaml.safe_dump(yaml.safe_load(example)["connectors"][name]), settings)


def test_sections_of_count_are_told():
    """With their default metrics."""
    for field in msgspec.structs.fields(CountSettings):
        if field.name not in {"profiles", "aggregation_cardinality_limit"}:
            (metric,) = field.default_factory()
            assert f"| `{field.name}` | `{metric}` |" in PAGE
