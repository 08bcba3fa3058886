"""A real Prometheus server that scrapes, and its promtool."""

import asyncio
import os
import shutil
import subprocess
import time
from pathlib import Path

import aiohttp
import pytest
from support.processes import PATIENCE, ManagedProcess, find_free_port

_CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
storage: {{exemplars: {{max_exemplars: 10000}}}}
scrape_configs:
- job_name: sidecar
  honor_labels: true
  static_configs: [{{targets: {targets}}}]
"""


def program(name):
    """The path of a program of Debian's package `prometheus`; skips the test where it is missing, except in CI."""
    path = shutil.which(name)
    if path is None:
        message = f"{name} is not installed (Debian: apt-get install prometheus)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


def promtool(*arguments, stdin=b""):
    """The exit code and output of promtool."""
    done = subprocess.run(
        [program("promtool"), *map(str, arguments)], input=stdin, capture_output=True, check=False, timeout=PATIENCE
    )
    return done.returncode, (done.stdout + done.stderr).decode()


class PrometheusServer(ManagedProcess):
    """Prometheus, scraping `/metrics` of some ports once a second. It begins after five seconds.

    Args:
        ports: of the targets.
        folder: for its configuration and data.
        features: of `--enable-feature`; with `native-histograms` it asks for protobuf first.
    """

    def __init__(self, ports, folder, features=("exemplar-storage",)):
        self.port = find_free_port()
        self._targets = len(ports)
        config = Path(folder) / "prometheus.yml"
        config.write_text(_CONFIG.format(targets=[f"127.0.0.1:{port}" for port in ports]))
        super().__init__(
            program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={Path(folder) / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            f"--enable-feature={','.join(features)}",
            "--log.level=debug",
        )

    async def wait_until_ready(self):
        """Return when it answers."""
        await self.wait_for_line("Server is ready")

    async def ask(self, path, **parameters):
        """The data of an answer of its API."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}/api/v1/{path}", params=parameters) as response,
        ):
            answer = await response.json()
        assert answer["status"] == "success", answer
        return answer["data"]

    async def query(self, expression):
        """The current values of an expression, as (labels, value); a native histogram's value is a mapping."""
        data = await self.ask("query", query=expression)
        return [(one["metric"], one.get("histogram", one.get("value"))[1]) for one in data["result"]]

    async def wait_for(self, expression, condition=bool, within=PATIENCE):
        """The values of an expression, as soon as they meet a condition: by default that there are some."""
        deadline = time.monotonic() + within
        while not condition(found := await self.query(expression)):
            target = (await self.ask("targets", state="active"))["activeTargets"]
            assert time.monotonic() < deadline, f"{expression} is {found}; {target}"
            await asyncio.sleep(0.05)
        return found

    async def next_scrape(self):
        """Return when a scrape of each target that began after this call has been stored."""
        now = time.time()
        await self.wait_for(
            "timestamp(up{job='sidecar'})",
            lambda found: len(found) == self._targets and min(float(value) for _, value in found) > now,
        )

    async def exemplars(self, expression):
        """The exemplars of an expression's series."""
        data = await self.ask("query_exemplars", query=expression, start=time.time() - 3600, end=time.time() + 60)
        return [exemplar for series in data for exemplar in series["exemplars"]]
