"""The page about Datadog, its monitors and its dashboard say what is."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
from aiohttp import web

from config import Settings
from config.settings import IGNORED
from exporters.datadog.settings import DatadogSettings
from sidecar import DeliverySettings
from sidecar.pipeline import observe

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "datadog"


def names_of(settings: type[Settings], path: str = "") -> set[str]:
    """The dotted names of all settings that have an effect."""
    names = set()
    for field in msgspec.structs.fields(settings):
        if IGNORED in getattr(field.type, "__metadata__", ()):
            continue
        if isinstance(field.type, type) and issubclass(field.type, Settings):
            names |= names_of(field.type, f"{path}{field.encode_name}.")
        else:
            names.add(path + field.encode_name)
    return names


def test_every_setting_is_explained():
    """Neither a setting without a word, nor a word without a setting."""
    rows = re.search(r"## Settings\n(.*?)\n## ", (DOCS / "datadog.md").read_text(), re.DOTALL)[1]
    explained = set(re.findall(r"`([a-z_.]+)`", " ".join(re.findall(r"^\| (.*?) \|", rows, re.MULTILINE))))
    common = {field.encode_name for field in msgspec.structs.fields(DeliverySettings)}
    own = {name for name in names_of(DatadogSettings) if name.split(".")[0] not in common}
    assert explained - common == own
    assert common <= explained


def test_monitors_and_dashboard_ask_for_metrics_that_exist():
    """Those of the sidecar are named as it names them."""
    texts = [path.read_text() for path in [*FOLDER.glob("monitors/*.json"), FOLDER / "dashboard.json"]]
    asked = set(re.findall(r"\b(?:otelcol|sidecar)_[a-z_]+", " ".join(texts)))
    assert asked == {"otelcol_exporter_queue_size", observe.DROPPED}
    assert all(json.loads(text) for text in texts)


class Api:
    """As much of Datadog's API as the script uses."""

    def __init__(self):
        self.monitors, self.dashboards, self.calls = {}, {}, []

    async def handle(self, request):
        """Keep what is sent, and give it back by name."""
        assert (request.headers["DD-API-KEY"], request.headers["DD-APPLICATION-KEY"]) == ("a", "b")
        _, _, _, kind, *number = request.path.split("/")
        kept = self.monitors if kind == "monitor" else self.dashboards
        self.calls.append(f"{request.method} {kind}")
        if request.method == "GET":
            found = [{**one, "id": key} for key, one in kept.items()]
            if kind == "monitor":
                return web.json_response([one for one in found if request.query["name"] in one["name"]])
            return web.json_response({"dashboards": found})
        key = int(number[0]) if number else len(kept) + 1
        kept[key] = {**kept.get(key, {}), **await request.json()}
        return web.json_response({**kept[key], "id": key})


async def test_the_script_makes_what_is_not_there_and_updates_what_is():
    """Applied twice, there is still one of each."""
    api = Api()
    runner = web.ServerRunner(web.Server(api.handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    env = {"DD_API_KEY": "a", "DD_APP_KEY": "b", "DD_API_URL": f"http://127.0.0.1:{runner.addresses[0][1]}"}
    try:
        first, second = await apply(env), await apply(env)
    finally:
        await runner.cleanup()
    assert first[0] == second[0] == 0, first[1] + second[1]
    assert (len(api.monitors), len(api.dashboards)) == (4, 1)
    assert api.calls.count("POST monitor") == api.calls.count("PUT monitor") == 4
    assert api.calls.count("POST dashboard") == api.calls.count("PUT dashboard") == 1
    assert {one["type"] for one in api.monitors.values()} == {"event-v2 alert", "query alert", "log alert"}


async def test_the_script_says_what_it_needs():
    """Without keys it asks nobody."""
    assert await apply({"DD_API_KEY": "", "DD_APP_KEY": ""}) == (1, "set DD_API_KEY and DD_APP_KEY\n")


async def apply(env: dict[str, str]) -> tuple[int, str]:
    """Run the script. Gives its exit code and what it says of errors."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        FOLDER / "apply.py",
        env={**os.environ, **env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    _, errors = await process.communicate()
    return process.returncode, errors.decode()
