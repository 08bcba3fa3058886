"""The programs that are compared: this sidecar, Rotel, and others whose binary the environment names.

Each gets the same requests and sends to the same sink. A contender that has no way to do what a case asks for says so
by `offers`, and is left out of that case.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.peers import Rotel
from support.processes import ManagedProcess, SidecarProcess, find_free_port

from bench._sink import Sink
from sidecar import Signal

PASS = ()
ALLOWLIST = ("allowlist",)
ALL = ("rate_limit", "allowlist", "correlation")
CONFIGURATIONS = Path(__file__).parent / "peers"


@dataclass(frozen=True)
class Case:
    """One way through a contender.

    Attributes:
        into: grpc, http, json (OTLP as JSON over HTTP) or events (TelemetryEvents).
        out: otlp, otlp_http, datadog or prometheus.
        gzip_in, gzip_out: whether requests are compressed there.
        durable: whether the queue is on disk.
    """

    signal: Signal = Signal.LOGS
    processors: tuple[str, ...] = PASS
    items: int = 1000
    into: str = "grpc"
    gzip_in: bool = False
    out: str = "otlp"
    gzip_out: bool = False
    durable: bool = False

    def __str__(self) -> str:
        into = self.into + (" gzip" if self.gzip_in else "")
        out = self.out + (" gzip" if self.gzip_out else "")
        what = {PASS: "pass-through", ALLOWLIST: "allowlist", ALL: "all three"}[self.processors]
        durable = ", queue on disk" if self.durable else ""
        return f"{self.signal.value}, {what}, {into} → {out}, {self.items:,} per request{durable}"


class Contender:
    """A program that can be started for a case."""

    name = ""

    def offers(self, case: Case) -> bool:
        """Whether it can do what the case asks for, or less."""
        raise NotImplementedError

    def start(self, case: Case, sink: Sink, folder: str):
        """What runs it: an asynchronous context manager with `pid`, `grpc_port` and `http_port`."""
        raise NotImplementedError


class Sidecar(Contender):
    """This project's, with its own metrics on, as a user has it."""

    name = "sidecar"

    def offers(self, case: Case) -> bool:  # noqa: ARG002
        """Everything."""
        return True

    def start(self, case: Case, sink: Sink, folder: str, env: dict[str, str] | None = None):
        """With a document for the case, and more of an environment."""
        grpc, http, scrape, own = (f"127.0.0.1:{find_free_port()}" for _ in range(4))
        compression = "gzip" if case.gzip_out else "none"
        # Blocking, so that a full queue slows the load down instead of having it repeat. The others, too, wait 50 ms
        # for more to join, so that the end of a round is soon reached.
        queue = {"block_on_overflow": True, "batch": {"flush_timeout": "50ms"}}
        if case.out == "datadog" and case.signal is Signal.METRICS:
            queue["batch"]["min_size"] = 0  # joined, the points that each request repeats would be sent once
        if case.durable:
            queue |= {"storage": "file_storage"}
        over_grpc, over_http = f"http://127.0.0.1:{sink.grpc_port}", f"http://127.0.0.1:{sink.http_port}"
        intake = {signal: {"endpoint": over_http} for signal in ("logs", "traces", "metrics")}
        pipeline = {
            "receivers": ["telemetry_event" if case.into == "events" else "otlp"],
            "processors": [name for name in case.processors if (name, case.signal) != ("correlation", Signal.METRICS)],
            "exporters": [case.out],
        }
        reader = {"pull": {"exporter": {"prometheus": {"host": "127.0.0.1", "port": int(own.rpartition(":")[2])}}}}
        document = {
            "receivers": {
                "otlp": {"protocols": {"grpc": {"endpoint": grpc}, "http": {"endpoint": http}}},
                "telemetry_event": {"endpoint": http, "grpc_endpoint": None},
            },
            "processors": {
                "allowlist": None,
                "correlation": None,
                "rate_limit": {"key": ["client_address"], "rate": "1000000000/s", "burst": 2_000_000_000},
            },
            "exporters": {
                "otlp": {"endpoint": over_grpc, "compression": compression, "sending_queue": queue},
                "otlp_http": {"endpoint": over_http, "compression": compression, "sending_queue": queue},
                "datadog": {"api": {"key": "none"}, **intake, "sending_queue": queue},
                "prometheus": {"endpoint": scrape},
            },
            "extensions": {"file_storage": {"directory": folder, "max_size": "16GiB"}},
            "service": {
                "extensions": ["file_storage"] if case.durable else [],
                "telemetry": {"metrics": {"readers": [reader]}},
                "pipelines": {case.signal.value: pipeline},
            },
        }
        process = SidecarProcess(json.dumps(document), folder, env=env)
        process.grpc_port, process.http_port = (int(each.rpartition(":")[2]) for each in (grpc, http))
        return process


class RotelContender(Contender):
    """Rotel of PyPI. Filters nothing, and this version compresses what it sends whatever it is told."""

    name = "Rotel"

    def offers(self, case: Case) -> bool:
        """OTLP, and spans to Datadog."""
        if case.into not in {"grpc", "http"} or case.durable:
            return False
        return case.out in {"otlp", "otlp_http"} or (case.out == "datadog" and case.signal is Signal.TRACES)

    def start(self, case: Case, sink: Sink, folder: str):
        """With the flags for the case."""
        over_grpc, over_http = f"http://127.0.0.1:{sink.grpc_port}", f"http://127.0.0.1:{sink.http_port}"
        if case.out == "otlp":
            process = Rotel.to(over_grpc, folder)
        elif case.out == "otlp_http":
            process = Rotel.to(over_http, folder, "http")
        else:
            key = ("--datadog-exporter-api-key", "none", "--datadog-exporter-custom-endpoint", over_http)
            process = Rotel(folder, "--exporter", "datadog", *key)
        # It drops what is left of a request that is larger than its batches.
        process.command += ["--batch-max-size", str(max(8192, 2 * case.items))]
        return process


class Configured(Contender):
    """A binary of the user's, with its configuration file in `peers/`, which reads ports from the environment.

    Args:
        variable: the environment's variable that names the binary.
        outs: where it can send.
        one_port: whether it takes gRPC and HTTP on the same port.
    """

    def __init__(self, name: str, variable: str, outs: tuple[str, ...], *, one_port: bool = False) -> None:
        self.name = name
        self.binary = os.environ.get(variable, "")
        self._outs = outs
        self._one_port = one_port

    def offers(self, case: Case) -> bool:
        """OTLP. It filters nothing: that would need parts which not every build has."""
        return case.into != "events" and case.out in self._outs and not case.durable

    def start(self, case: Case, sink: Sink, folder: str):
        """With its configuration file."""
        grpc = find_free_port()
        ports = {"BENCH_GRPC": grpc, "BENCH_HTTP": grpc if self._one_port else find_free_port()}
        sinks = {"BENCH_SINK_GRPC": sink.grpc_port, "BENCH_SINK_HTTP": sink.http_port}
        words = {
            "BENCH_COMPRESSION": "gzip" if case.gzip_out else "none",
            "BENCH_OUT": "otlp_grpc" if case.out == "otlp" else case.out,
        }
        environment = {name: str(value) for name, value in {**ports, **sinks, **words}.items()}
        configuration = CONFIGURATIONS / f"{self.name}.yaml"
        process = Peer(self.binary, "--config", configuration, env=environment, cwd=folder)
        process.grpc_port, process.http_port = ports["BENCH_GRPC"], ports["BENCH_HTTP"]
        return process


class Peer(ManagedProcess):
    """Ready when both of its ports answer."""

    async def wait_until_ready(self):
        """Return when they do."""
        await self.wait_for_port(self.grpc_port)
        await self.wait_for_port(self.http_port)


class Floor(Contender):
    """A bare `grpc.aio` server that answers and does nothing else: what none in Python can be cheaper than."""

    name = "bare server"

    def offers(self, case: Case) -> bool:
        """It looks at nothing, and sends nothing."""
        return case.into == "grpc"

    def start(self, case: Case, sink: Sink, folder: str):  # noqa: ARG002
        """Its one process."""
        return Sink(counting=False)


def contenders() -> list[Contender]:
    """The sidecar, and the peers that are here."""
    named = [
        Configured("otelcol", "BENCH_OTELCOL", ("otlp", "otlp_http")),
        Configured("fluent-bit", "BENCH_FLUENT_BIT", ("otlp_http",), one_port=True),
        Configured("vector", "BENCH_VECTOR", ("otlp_http",)),
    ]
    return [Sidecar(), RotelContender(), *(peer for peer in named if peer.binary)]


def versions() -> str:
    """The contenders and their versions."""
    found = [f"sidecar {importlib.metadata.version('otlp-sidecar')}", f"Rotel {importlib.metadata.version('rotel')}"]
    for contender in contenders():
        if isinstance(contender, Configured):
            asked = subprocess.run([contender.binary, "--version"], capture_output=True, text=True, check=False)
            number = re.search(r"\d+\.\d+\.\d+", asked.stdout + asked.stderr)
            found.append(f"{contender.name} {number[0] if number else 'of unknown version'}")
    return ", ".join(found)
