"""From start to ready, and resident memory then, of `sidecar run` with the built-in document, and of the peers."""

from __future__ import annotations

import statistics
import tempfile
import time

from support.processes import SidecarProcess, find_free_port

from bench._contenders import Case, Sidecar, contenders
from bench._measure import memory, spread
from bench._sink import Sink

RUNS = 5
AIMS = (1.0, 64)  # seconds, MiB


class BuiltIn(Sidecar):
    """The sidecar, with what a first user gets: everything but Datadog."""

    def start(self, case: Case, sink: Sink, folder: str):  # noqa: ARG002
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
        arguments += ["--config", f"yaml:service::telemetry::metrics::readers: {pull}"]
        return SidecarProcess(None, folder, *arguments)


async def rows():
    compared = [BuiltIn(), *(contender for contender in contenders() if contender.name != "sidecar")]
    figures = {contender.name: ([], []) for contender in compared}
    with tempfile.TemporaryDirectory() as folder:
        async with Sink() as sink:
            for run in range(RUNS + 1):
                for contender in compared:
                    started = time.perf_counter()
                    async with contender.start(Case(), sink, folder) as process:
                        if run:  # the first finds the disk cold
                            figures[contender.name][0].append(time.perf_counter() - started)
                            figures[contender.name][1].append(memory(process.pid, "VmRSS"))
    for name, (starts, sizes) in figures.items():
        start, size = statistics.median(starts), statistics.median(sizes)
        yield {
            "contender": name,
            "start to ready, s": start,
            "spread": spread(starts),
            "resident, MiB": size,
            "aim": "; ".join(judged(start, size)) if name == "sidecar" else "",
        }


def judged(start: float, size: float) -> list[str]:
    return [
        f"{limit:g} {unit}: {'met' if value <= limit else '**not met**'}"
        for value, limit, unit in zip((start, size), AIMS, ("s", "MiB"), strict=True)
    ]
