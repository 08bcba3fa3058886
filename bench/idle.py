"""Idle: from start to ready, and resident memory then, of `sidecar run` with the built-in document, and of Rotel."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from support.peers import Rotel
from support.processes import SidecarProcess, find_free_port

RUNS = 5
AIMS = {"start to ready": "1 s", "resident memory": "64 MiB"}


async def rows():
    with tempfile.TemporaryDirectory() as folder:
        await measure(sidecar(folder))  # whatever is only slow the first time: byte code, the disk
        ours = [await measure(sidecar(folder)) for _ in range(RUNS)]
        theirs = [await measure(Rotel(folder)) for _ in range(RUNS)]
    for index, (what, aim) in enumerate(AIMS.items()):
        unit = "s" if index == 0 else "MiB"
        mine, other = (statistics.median(run[index] for run in runs) for runs in (ours, theirs))
        yield {"what": what, "sidecar": f"{mine:.3g} {unit}", "rotel": f"{other:.3g} {unit}", "aim": aim}


async def measure(process) -> tuple[float, float]:
    started = time.perf_counter()
    async with process:
        ready = time.perf_counter() - started
        return ready, process.memory() / 2**20


def sidecar(folder: str) -> SidecarProcess:
    """The built-in document, on free ports."""
    grpc, http, health, scrape, own = (find_free_port() for _ in range(5))
    endpoints = {
        "receivers::otlp::protocols::grpc::endpoint": grpc,
        "receivers::otlp::protocols::http::endpoint": http,
        "receivers::telemetry_event::endpoint": http,
        "receivers::telemetry_event::grpc_endpoint": grpc,
        "extensions::health_check::endpoint": health,
        "exporters::prometheus::endpoint": scrape,
    }
    arguments = ["--config", "preset:default"]
    for path, port in endpoints.items():
        arguments += ["--config", f"yaml:{path}: localhost:{port}"]
    pull = f"[{{pull: {{exporter: {{prometheus: {{host: localhost, port: {own}}}}}}}}}]"
    return SidecarProcess(
        None, Path(folder), *arguments, "--config", f"yaml:service::telemetry::metrics::readers: {pull}"
    )
