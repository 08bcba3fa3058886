"""The `otlp` exporter against real gRPC servers: what goes over the wire, and what each answer means."""

import asyncio

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from support.certificates import Authority
from support.otlp import logs, metrics, traces
from support.peers import GrpcServer, GrpcStatus, HttpServer, Relay, Silence, running

from exporters.otlp import OtlpExporter
from sidecar import SCHEMAS, Batch, Permanent, Retryable, Signal, StartError
from sidecar.testing import Bench

RETRY_INFO = RetryInfo(retry_delay=Duration(seconds=3, nanos=500_000_000))


def details(*messages):
    """A `grpc-status-details-bin` trailer."""
    status = Status(code=14)
    for message in messages:
        packed = Any()
        packed.Pack(message)
        status.details.append(packed)
    return ("grpc-status-details-bin", status.SerializeToString())


@pytest.fixture
async def server():
    """A server that records."""
    async with GrpcServer() as server:
        yield server


@pytest.fixture
def bench():
    """What surrounds the exporter."""
    return Bench()


@pytest.fixture
async def exporter(bench, server):
    """An exporter to that server."""
    made = bench.make(OtlpExporter, f"{{endpoint: '{server.address}', tls: {{insecure: true}}, timeout: 5s}}", "otlp")
    async with running(made) as exporter:
        yield exporter


@pytest.mark.parametrize("batch", [logs(3), traces(2), metrics(4)], ids=lambda batch: batch.signal.value)
async def test_bytes_arrive_as_they_are(exporter, server, batch):
    """Each signal goes to its own service, with the very bytes that came in."""
    await exporter.export(batch)

    (request,) = server.requests
    assert (request.signal, request.body) == (batch.signal, batch.encode())


async def test_nothing_is_decoded(exporter, server):
    """What is not a request at all passes through too: judging it is the server's business."""
    await exporter.export(Batch(Signal.LOGS, b"\xff\xff", context=logs().context, items=1))

    assert server.requests[0].body == b"\xff\xff"


async def test_headers_go_along(bench, server):
    """Headers are sent with each call, names in lower case, beside the product's name."""
    yaml = f"{{endpoint: '{server.address}', tls: {{insecure: true}}, headers: {{X-Api-Key: s3cret, tenant: a b}}}}"
    async with running(bench.make(OtlpExporter, yaml)) as exporter:
        await exporter.export(logs())

    headers = server.requests[0].headers
    assert (headers["x-api-key"], headers["tenant"]) == ("s3cret", "a b")
    assert headers["user-agent"].startswith("otlp-sidecar/")


async def test_compression(bench, server):
    """Gzip, unless it is switched off."""
    batch = logs(50, body="x" * 1000)
    sent = {}
    for setting in ("", "compression: gzip", "compression: none"):
        async with Relay(server.port) as relay:
            yaml = f"endpoint: http://{relay.address}\n{setting}"
            async with running(bench.make(OtlpExporter, yaml)) as exporter:
                await exporter.export(batch)
            sent[setting] = relay.bytes_sent

    assert server.items[Signal.LOGS] == 150
    assert sent[""] < 5000
    assert sent["compression: gzip"] < 5000
    assert sent["compression: none"] > len(batch.encode())


async def test_a_broken_connection_is_made_again(bench, server):
    """One connection carries all calls; when it breaks, the call under way may be sent again, over a new one."""
    async with Relay(server.port) as relay, running(_to(bench, relay)) as exporter:
        for _ in range(3):
            await exporter.export(logs())
        assert relay.connections == 1
        server.answers.append(Silence())
        lost = asyncio.create_task(exporter.export(logs()))
        await server.wait_for_requests(4)

        relay.break_connections()

        with pytest.raises(Retryable, match="UNAVAILABLE"):
            await lost
        await _until_delivered(exporter)
        assert relay.connections == 2


def _to(bench, server):
    return bench.make(OtlpExporter, f"endpoint: http://{server.address}")


async def test_unix_socket(bench, tmp_path):
    """A server on a Unix socket is reached without TLS."""
    path = tmp_path / "otlp.sock"
    server = GrpcServer()
    raw = grpc.aio.server()
    raw.add_generic_rpc_handlers((server,))
    raw.add_insecure_port(f"unix:{path}")
    await raw.start()
    try:
        async with running(bench.make(OtlpExporter, f"endpoint: unix://{path}")) as exporter:
            await exporter.export(logs(2))
    finally:
        await raw.stop(None)

    assert server.items[Signal.LOGS] == 2


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    ],
)
async def test_what_may_pass_later(exporter, server, code):
    """The codes of the specification's table are retried; the message names the server, the code and its words."""
    server.answers.append(GrpcStatus(code, "come again"))

    with pytest.raises(Retryable, match=rf"{server.address}: {code.name}: come again") as raised:
        await exporter.export(logs())

    assert raised.value.after is None


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    ],
)
async def test_what_never_passes(exporter, server, code):
    """Every other code drops the batch, RESOURCE_EXHAUSTED without RetryInfo among them."""
    server.answers.append(GrpcStatus(code, "no"))

    with pytest.raises(Permanent, match=f"{code.name}: no") as raised:
        await exporter.export(logs())

    assert raised.value.reason == code.name.lower()


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
@pytest.mark.parametrize(
    "trailer",
    [
        pytest.param(details(RETRY_INFO), id="in the status"),
        pytest.param(details(Duration(seconds=9), RETRY_INFO), id="among other details"),
        pytest.param(("google.rpc.retryinfo-bin", RETRY_INFO.SerializeToString()), id="by itself"),
    ],
)
async def test_the_server_says_when(exporter, server, code, trailer):
    """RetryInfo is read from both trailers, and makes RESOURCE_EXHAUSTED a matter of time."""
    server.answers.append(GrpcStatus(code, "slow down", (trailer,)))

    with pytest.raises(Retryable) as raised:
        await exporter.export(logs())

    assert raised.value.after == 3.5


async def test_unreadable_details_are_no_details(exporter, server):
    """Garbage in the trailers changes nothing."""
    trailers = (("grpc-status-details-bin", b"\xff"), ("google.rpc.retryinfo-bin", b"\xff"))
    server.answers.append(GrpcStatus(grpc.StatusCode.UNAVAILABLE, "x", trailers))

    with pytest.raises(Retryable) as raised:
        await exporter.export(logs())

    assert raised.value.after is None


@pytest.mark.parametrize("batch", [logs(3), traces(3), metrics(3)], ids=lambda batch: batch.signal.value)
async def test_what_the_server_rejects_is_counted(exporter, bench, server, batch, caplog):
    """A partial success is a success; the rejected items are counted as dropped and the server's words are logged."""
    schema = SCHEMAS[batch.signal]
    response = schema.response()
    setattr(response.partial_success, schema.rejected, 2)
    response.partial_success.error_message = "two are\ntoo old"
    server.answers.append(response.SerializeToString())

    await exporter.export(batch)

    assert bench.dropped == {(batch.signal, "rejected_by_peer"): 2}
    assert f"rejected 2 of 3 {schema.items}: two are too old" in caplog.text


async def test_an_empty_partial_success_is_a_success(exporter, bench, server, caplog):
    """What the Collector answers to everything that it takes: two bytes that say nothing."""
    server.answers.append(b"\x0a\x00")

    await exporter.export(logs())

    assert not bench.dropped
    assert not caplog.text


async def test_an_answer_that_is_no_answer_does_not_send_twice(exporter, bench, server, caplog):
    """The status was OK: the batch counts as delivered, and the log says what came back."""
    server.answers.append(b"\xff")

    await exporter.export(logs())

    assert "not an OTLP response" in caplog.text


async def test_too_large_goes_in_parts(bench):
    """A batch over the server's limit arrives in parts; the one record that is too large by itself is dropped."""
    batch = Batch.join([logs(20, body="x" * 100), logs(1, body="y" * 5000), logs(19, body="x" * 100)])
    async with GrpcServer(max_message=2000) as server:
        async with running(bench.make(OtlpExporter, f"endpoint: http://{server.address}")) as exporter:
            await exporter.export(batch)

        assert server.items[Signal.LOGS] == 39
        assert bench.dropped == {(Signal.LOGS, "too_large"): 1}


async def test_no_answer_is_retried(bench, server):
    """A server that does not answer in time is asked again later; the call does not outlive the deadline."""
    server.answers.append(Silence())
    made = bench.make(OtlpExporter, f"endpoint: http://{server.address}\ntimeout: 100ms")
    async with running(made) as exporter:
        with pytest.raises(Retryable, match="DEADLINE_EXCEEDED"):
            await exporter.export(logs())


async def test_a_cancelled_export_ends_the_call(exporter, server):
    """When the runtime gives up on an attempt, nothing is left under way."""
    server.answers.append(Silence())
    task = asyncio.create_task(exporter.export(logs()))
    await server.wait_for_requests(1)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    await exporter.export(logs())
    assert len(server.requests) == 2


async def test_a_server_that_comes_back_is_found_again(bench, free_port):
    """Down: retryable, naming the address. Up, down and up again: the same exporter delivers."""
    yaml = f"endpoint: http://127.0.0.1:{free_port}\nwait_for_ready: false"
    async with running(bench.make(OtlpExporter, yaml)) as exporter:
        with pytest.raises(Retryable, match=f"http://127.0.0.1:{free_port}: UNAVAILABLE: .*[Cc]onnection refused"):
            await exporter.export(logs())
        for _ in range(2):
            async with GrpcServer(free_port) as server:
                await _until_delivered(exporter)
                assert server.items[Signal.LOGS] == 1


async def _until_delivered(exporter):
    async with asyncio.timeout(10):
        while True:
            try:
                return await exporter.export(logs())
            except Retryable:
                await asyncio.sleep(0.02)


async def test_waiting_for_a_server_that_starts_late(bench, free_port):
    """With `wait_for_ready` a call waits, within its deadline, for a server that is not there yet."""
    yaml = f"endpoint: http://127.0.0.1:{free_port}\nwait_for_ready: true\ntimeout: 10s"
    async with running(bench.make(OtlpExporter, yaml)) as exporter:
        export = asyncio.create_task(exporter.export(logs()))
        async with GrpcServer(free_port) as server:
            await export
            assert server.items[Signal.LOGS] == 1


async def test_tls(bench, tmp_path):
    """TLS is the default; the server is checked against `ca_file`, the client shows its certificate."""
    authority = Authority(tmp_path)
    async with GrpcServer(credentials=authority.grpc_credentials(ask_clients=True)) as server:
        yaml = f"""
            endpoint: localhost:{server.port}
            tls: {{ca_file: {authority.ca_file}, cert_file: {authority.client_cert_file},
                   key_file: {authority.client_key_file}}}
        """
        async with running(bench.make(OtlpExporter, yaml)) as exporter:
            await exporter.export(logs(2))

        assert server.items[Signal.LOGS] == 2


async def test_the_name_in_the_certificate_can_be_another(bench, tmp_path):
    """`server_name_override` is the name that the certificate must carry."""
    authority = Authority(tmp_path)
    async with GrpcServer(credentials=authority.grpc_credentials()) as server:
        yaml = (
            f"endpoint: 127.0.0.1:{server.port}\ntls: {{ca_file: {authority.ca_file}, server_name_override: localhost}}"
        )
        async with running(bench.make(OtlpExporter, yaml)) as exporter:
            await exporter.export(logs(2))

        assert server.items[Signal.LOGS] == 2


async def test_an_unknown_authority(bench, tmp_path):
    """A server whose certificate is not trusted gets nothing, and the message says which setting helps."""
    async with GrpcServer(credentials=Authority(tmp_path).grpc_credentials()) as server:
        async with running(bench.make(OtlpExporter, f"endpoint: {server.address}")) as exporter:
            with pytest.raises(Retryable, match=r"set tls\.ca_file"):
                await exporter.export(logs())

        assert not server.requests


async def test_a_server_without_tls(bench, server):
    """The default is TLS; where the server has none, the message says which setting means that."""
    async with running(bench.make(OtlpExporter, f"endpoint: {server.address}")) as exporter:
        with pytest.raises(Retryable, match=r"set tls: \{insecure: true\}"):
            await exporter.export(logs())


async def test_a_server_with_tls_that_is_asked_without(bench, tmp_path):
    """A TLS server closes the connection, and the message says what that may mean."""
    credentials = Authority(tmp_path).grpc_credentials()
    async with GrpcServer(credentials=credentials) as server, running(_to(bench, server)) as exporter:
        with pytest.raises(Retryable, match="if it speaks TLS, write https://"):
            await exporter.export(logs())


async def test_an_http_port(bench):
    """Where the server speaks HTTP/1.1, the message says which exporter does too."""
    async with HttpServer() as server, running(_to(bench, server)) as exporter:
        with pytest.raises(Retryable, match="otlp_http exporter"):
            await exporter.export(logs())


async def test_unreadable_certificates_stop_the_start(bench, tmp_path):
    """A missing file and a text that is no certificate are start errors that name the setting."""
    missing = bench.make(OtlpExporter, f"endpoint: a:1\ntls: {{ca_file: {tmp_path / 'none.pem'}}}", "otlp/edge")
    with pytest.raises(StartError, match=r"exporters\.otlp/edge: tls\.ca_file: can't read .*none\.pem"):
        await missing.start()
    wrong = bench.make(OtlpExporter, "endpoint: a:1\ntls: {ca_pem: nonsense}")
    with pytest.raises(StartError, match="unusable"):
        await wrong.start()


async def test_stop_works_twice_and_without_start(bench):
    """As every component's does."""
    exporter = bench.make(OtlpExporter, "endpoint: a:1")
    await exporter.stop()
    await exporter.start()
    await exporter.stop()
    await exporter.stop()
