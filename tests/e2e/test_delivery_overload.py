"""One caller sends twenty times as much as nine others until memory is short: the nine notice nothing."""

from __future__ import annotations

import asyncio
import itertools

import aiohttp
import grpc
import pytest
from support.delivery import EXPORT, GrpcSender, GrpcSink, HttpSender, Ports
from support.otlp import logs_request
from support.processes import PATIENCE, SidecarProcess

DOCUMENT = """
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: "127.0.0.1:{ports.grpc}", auth: {{authenticator: token_auth, required: false}}}}
      http: {{endpoint: "127.0.0.1:{ports.http}", auth: {{authenticator: token_auth, required: false}}}}
extensions:
  token_auth: {{tokens: [{tokens}]}}
processors:
  memory_limiter: {{check_interval: 50ms, limit_mib: 260, spike_limit_mib: 110}}
exporters:
  otlp:
    endpoint: "http://{sink}"
    compression: none
    sending_queue: {{queue_size: 10000000, max_bytes: 1GiB}}
    retry_on_failure: {{initial_interval: 100ms, max_interval: 200ms}}
service:
  extensions: [token_auth]
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [otlp], processors: [memory_limiter], exporters: [otlp]}}
"""


async def test_the_nine_lose_nothing_and_are_not_refused(tmp_path):
    """While the sink is down the loud one fills memory up to the soft mark, and is told to wait; nobody else is."""
    ports = Ports()
    names = [f"s{number}" for number in range(9)]
    tokens = ", ".join(f"{{kind: bearer, token: token-{name}, name: {name}}}" for name in [*names, "loud"])
    async with GrpcSink() as sink:
        sink.is_down = True
        document = DOCUMENT.format(ports=ports, tokens=tokens, sink=sink.address)
        kinds = itertools.cycle([GrpcSender, HttpSender])
        nine = [kind(name, ports, size=20, padding=200, pause=0.1) for kind, name in zip(kinds, names, strict=False)]
        loud = HttpSender("loud", ports, size=4000, padding=200, pause=0.05)
        async with SidecarProcess(document, tmp_path) as process:
            for sender in [*nine, loud]:
                sender.headers["Authorization"] = f"Bearer token-{sender.name}"
                sender.start()
            async with asyncio.timeout(PATIENCE * 2):
                while len(loud.refusals) < 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            sink.is_down = False
            for sender in nine:
                await sender.finish()
            await sink.wait_for(text for sender in nine for text in sender.acknowledged)
            await loud.stop()
            await sink.wait_for(loud.acknowledged)
            assert process.memory() < 300 * 2**20
    assert [] == [refusal for sender in nine for refusal in sender.refusals]
    assert all(sender.acknowledged for sender in nine)
    assert "you have sent the most" in loud.refusals[0]


async def test_a_refusal_costs_no_reading(tmp_path):
    """While memory is short, the answer comes before the body: over HTTP and over gRPC, with a delay in both."""
    ports = Ports()
    document = DOCUMENT.format(ports=ports, tokens="", sink="127.0.0.1:1").replace("260, spike_limit_mib: 110", "20")
    async with SidecarProcess(document, tmp_path) as process:
        url = f"http://127.0.0.1:{ports.http}/v1/logs"
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=never_ending(), headers=headers) as answer,
        ):
            assert answer.status == 503
            assert int(answer.headers["Retry-After"]) >= 1
        body = logs_request(1000).SerializeToString()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await channel.unary_unary(EXPORT)(body, timeout=PATIENCE)
            assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "google.rpc.retryinfo-bin" in dict(refusal.value.trailing_metadata())
        ended = await process.stop()
    assert ended.code == 0, ended.output


async def never_ending():
    """A body of which nobody has seen the end."""
    yield b"\x1f\x8b\x08"
    await asyncio.sleep(PATIENCE)
