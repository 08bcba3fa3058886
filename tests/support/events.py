"""A TelemetryEvent receiver on free ports, and what a test asks of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from config import ComponentId
from sidecar.extensions.token_auth import TokenAuth
from sidecar.receivers.telemetry_event import TelemetryEventReceiver
from sidecar.signals import Signal
from sidecar.testing import Bench

PATH = "/v1/telemetry/events"
ENDPOINTS = "endpoint: 127.0.0.1:0\ngrpc_endpoint: 127.0.0.1:0\n"


@dataclass
class Answer:
    """What came back over HTTP."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return msgspec.json.decode(self.body)


@dataclass
class Served:
    """A receiver that listens, and what surrounds it."""

    bench: Bench
    receiver: TelemetryEventReceiver
    session: aiohttp.ClientSession

    async def post(self, body: object, method: str = "POST", **headers: str) -> Answer:
        """Send a body: bytes as they are, anything else as JSON. Underscores in header names become hyphens."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        names = {"Content-Type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
        async with self.session.request(method, self.url, data=data, headers=names) as response:
            return Answer(response.status, response.headers, await response.read())

    @property
    def url(self) -> str:
        """Where the events go."""
        return f"http://127.0.0.1:{self.receiver.http.port}{self.receiver.settings.path}"

    @property
    def grpc_address(self) -> str:
        """Where the gRPC service is."""
        assert self.receiver.grpc is not None
        return f"127.0.0.1:{self.receiver.grpc.port}"

    @property
    def records(self) -> list[Any]:
        """The log records that have arrived, in order."""
        return self._items(Signal.LOGS, "log_records")

    @property
    def spans(self) -> list[Any]:
        """The spans that have arrived, in order."""
        return self._items(Signal.TRACES, "spans")

    @property
    def messages(self) -> list[str]:
        """The texts of the log records."""
        return [record.body.string_value for record in self.records]

    @property
    def resources(self) -> list[dict[str, str]]:
        """The attributes of the resources of the log records."""
        return [texts(one.resource) for batch in self.bench.sink.of(Signal.LOGS) for one in batch.resources()]

    def _items(self, signal: Signal, name: str) -> list[Any]:
        batches = self.bench.sink.of(signal)
        return [item for batch in batches for scope in batch.scopes() for item in getattr(scope, name)]


@asynccontextmanager
async def served(settings: str = "", tokens: str = "") -> AsyncIterator[Served]:
    """A receiver with these settings, and with a `token_auth` extension where `tokens` are its settings."""
    bench = Bench()
    if tokens:
        auth = bench.make(TokenAuth, tokens, "token_auth")
        await auth.start()
        bench.extensions = {ComponentId("token_auth"): auth}
    receiver = bench.make(TelemetryEventReceiver, ENDPOINTS + settings, "telemetry_event")
    await receiver.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Served(bench, receiver, session)
        await asyncio.sleep(0)
    finally:
        await receiver.stop()
        await bench.close()


def texts(holder: Any) -> dict[str, str]:
    """The text attributes of a record, a span or a resource."""
    return {one.key: one.value.string_value for one in holder.attributes if one.value.HasField("string_value")}
