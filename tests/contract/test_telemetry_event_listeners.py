"""TelemetryEvents over TLS with client certificates, over Unix sockets, and on a listener shared with OTLP."""

from __future__ import annotations

import aiohttp
import grpc
from support.certificates import Authority
from support.events import PATH

from config import ComponentId
from sidecar.batch import Identity
from sidecar.events.telemetry_event_pb2 import TelemetryBatch, TelemetryBatchResponse, TelemetryEvent
from sidecar.extensions.token_auth import TokenAuth
from sidecar.receivers.otlp import OtlpReceiver
from sidecar.receivers.telemetry_event import TelemetryEventReceiver
from sidecar.testing import Bench

BATCH = {"events": [{"message": "hi"}]}
EXPORT = "/telemetry.v1.TelemetryEventService/Export"


async def export(channel: grpc.aio.Channel) -> int:
    """Send one event over gRPC; how many were accepted."""
    async with channel:
        call = channel.unary_unary(
            EXPORT,
            request_serializer=TelemetryBatch.SerializeToString,
            response_deserializer=TelemetryBatchResponse.FromString,
        )
        answer = await call(TelemetryBatch(events=[TelemetryEvent(message="hi")]))
    return answer.accepted


async def test_a_client_certificate_tells_who_is_calling(tmp_path):
    """On both listeners, where the receiver asks for certificates."""
    authority = Authority(tmp_path)
    bench = Bench()
    bench.extensions = {ComponentId("token_auth"): bench.make(TokenAuth, "", "token_auth")}
    receiver = bench.make(
        TelemetryEventReceiver,
        f"""
endpoint: 127.0.0.1:0
grpc_endpoint: 127.0.0.1:0
auth: {{authenticator: token_auth, required: true}}
tls:
  cert_file: {authority.server_cert_file}
  key_file: {authority.server_key_file}
  client_ca_file: {authority.ca_file}
""",
    )
    await receiver.start()
    try:
        connector = aiohttp.TCPConnector(ssl=authority.client_context(with_certificate=True))
        async with aiohttp.ClientSession(connector=connector) as session:
            url = f"https://localhost:{receiver.http.port}{PATH}"
            async with session.post(url, json=BATCH) as response:
                assert response.status == 202
        assert receiver.grpc is not None
        credentials = authority.client_credentials(with_certificate=True)
        assert await export(grpc.aio.secure_channel(f"localhost:{receiver.grpc.port}", credentials)) == 1
    finally:
        await receiver.stop()
        await bench.close()

    assert [batch.context.identity for batch in bench.sink.batches] == [Identity("mtls", "client-1")] * 2


async def test_unix_sockets(tmp_path):
    """Both protocols, each on its socket; callers have no address there."""
    bench = Bench()
    receiver = bench.make(
        TelemetryEventReceiver,
        f"{{endpoint: 'unix://{tmp_path}/http.sock', grpc_endpoint: 'unix://{tmp_path}/grpc.sock'}}",
    )
    await receiver.start()
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(f"{tmp_path}/http.sock")) as session,
            session.post(f"http://localhost{PATH}", json=BATCH) as response,
        ):
            assert response.status == 202
        assert await export(grpc.aio.insecure_channel(f"unix:{tmp_path}/grpc.sock")) == 1
    finally:
        await receiver.stop()

    assert [batch.context.peer for batch in bench.sink.batches] == ["", ""]


async def test_one_port_for_otlp_and_events():
    """The two receivers share both listeners; each may stop while the other goes on."""
    bench = Bench()
    otlp = bench.make(
        OtlpReceiver, "protocols: {grpc: {endpoint: '127.0.0.1:0'}, http: {endpoint: '127.0.0.1:0'}}", "otlp"
    )
    events = bench.make(
        TelemetryEventReceiver, "{endpoint: '127.0.0.1:0', grpc_endpoint: '127.0.0.1:0'}", "telemetry_event"
    )
    await otlp.start()
    await events.start()
    try:
        assert otlp.http is not None
        assert otlp.grpc is not None
        async with aiohttp.ClientSession(f"http://127.0.0.1:{otlp.http.port}") as session:
            async with session.post(PATH, json=BATCH) as response:
                assert response.status == 202
            async with session.post("/v1/logs", json={}) as response:
                assert response.status == 200
            assert await export(grpc.aio.insecure_channel(f"127.0.0.1:{otlp.grpc.port}")) == 1

            await events.stop()

            async with session.post(PATH, json=BATCH) as response:
                assert response.status == 503
            async with session.post("/v1/logs", json={}) as response:
                assert response.status == 200
    finally:
        await events.stop()
        await otlp.stop()
