"""Documents that come with the sidecar: `--config preset:datadog`."""

from __future__ import annotations

from importlib import resources

from config.problems import did_you_mean

DEFAULT = "default"


def names() -> tuple[str, ...]:
    """The presets that there are."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def text(name: str) -> str:
    """A preset's YAML.

    Raises:
        LookupError: no preset has that name, with the nearest.
    """
    if name not in names():
        raise LookupError(f"no preset {name!r}{did_you_mean(name, names(), 'presets')}")
    return (resources.files(__name__) / f"{name}.yaml").read_text("utf-8")
