"""The `otlp_http` exporter against real HTTP servers: what goes over the wire, and what each answer means."""

import asyncio
import gzip
import zlib
from datetime import UTC, datetime
from email.utils import format_datetime

import orjson
import pytest
import zstandard
from google.rpc.status_pb2 import Status
from support.certificates import Authority
from support.otlp import logs, metrics, traces
from support.peers import HttpAnswer, HttpServer, Reset, Silence, running

from exporters.otlp_http import OtlpHttpExporter
from sidecar import SCHEMAS, DeliveryError, Permanent, Retryable, Signal, StartError
from sidecar.testing import Bench

DECOMPRESS = {
    "gzip": gzip.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().decompress(data),
    "deflate": zlib.decompress,
    None: bytes,
}


@pytest.fixture
async def server():
    """A server that records."""
    async with HttpServer() as server:
        yield server


@pytest.fixture
def bench():
    """What surrounds the exporter."""
    return Bench()


@pytest.fixture
async def exporter(bench, server):
    """An exporter to that server."""
    async with running(bench.make(OtlpHttpExporter, f"endpoint: {server.url}\ncompression: none")) as exporter:
        yield exporter


@pytest.mark.parametrize("batch", [logs(3), traces(2), metrics(4)], ids=lambda batch: batch.signal.value)
async def test_bytes_arrive_as_they_are(exporter, server, batch):
    """Each signal goes to its own path, with the very bytes that came in."""
    await exporter.export(batch)

    (request,) = server.requests
    assert (request.path, request.body) == (SCHEMAS[batch.signal].http_path, batch.encode())
    assert request.headers["content-type"] == "application/x-protobuf"
    assert request.headers["user-agent"].startswith("otlp-sidecar/")
    assert "content-encoding" not in request.headers


@pytest.mark.parametrize("coding", ["gzip", "zstd", "deflate", None])
async def test_codings(bench, server, coding):
    """The body is compressed as the setting says, and the header names the coding."""
    batch = logs(50)
    yaml = f"endpoint: {server.url}\ncompression: {coding or 'none'}"
    async with running(bench.make(OtlpHttpExporter, yaml)) as exporter:
        await exporter.export(batch)

    (request,) = server.requests
    assert request.headers.get("content-encoding") == coding
    assert DECOMPRESS[coding](request.body) == batch.encode()
    assert coding is None or len(request.body) < len(batch.encode()) / 3


async def test_gzip_is_the_default(bench, server):
    """As in the Collector."""
    async with running(bench.make(OtlpHttpExporter, f"endpoint: {server.url}")) as exporter:
        await exporter.export(logs())

    assert server.requests[0].headers["content-encoding"] == "gzip"


async def test_json(bench, server):
    """With `encoding: json` the body is OTLP/JSON: hex ids, and the content type says so."""
    yaml = f"endpoint: {server.url}\ncompression: none\nencoding: json"
    async with running(bench.make(OtlpHttpExporter, yaml)) as exporter:
        await exporter.export(traces(1))

    (request,) = server.requests
    assert request.headers["content-type"] == "application/json"
    span = orjson.loads(request.body)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert (span["traceId"], span["name"]) == ("0123456789abcdef1122334455667788", "GET /")


async def test_an_endpoint_of_one_signal_is_taken_as_it_is(bench, server):
    """Nothing is added to `logs_endpoint`; the other signals have the base URL."""
    yaml = f"endpoint: {server.url}/base/\nlogs_endpoint: {server.url}/custom/logs?tenant=1"
    async with running(bench.make(OtlpHttpExporter, yaml)) as exporter:
        await exporter.export(logs())
        await exporter.export(metrics())

    assert [request.path for request in server.requests] == ["/custom/logs", "/base/v1/metrics"]


async def test_a_signal_without_an_endpoint(bench, server):
    """Items that have nowhere to go are dropped, with the setting that is missing."""
    async with running(bench.make(OtlpHttpExporter, f"traces_endpoint: {server.url}/t")) as exporter:
        with pytest.raises(Permanent, match="set endpoint or logs_endpoint"):
            await exporter.export(logs())


async def test_headers_go_along(bench, server):
    """Headers of the document are sent with each request, and may replace the product's name."""
    yaml = f"endpoint: {server.url}\nheaders: {{X-Api-Key: s3cret, user-agent: mine}}"
    async with running(bench.make(OtlpHttpExporter, yaml)) as exporter:
        await exporter.export(logs())

    assert server.requests[0].headers["x-api-key"] == "s3cret"
    assert server.requests[0].headers["user-agent"] == "mine"


async def test_the_connection_is_kept(exporter, server):
    """Requests one after another share a connection, whether they were accepted or refused."""
    server.answers += [b"", HttpAnswer(503, b"busy"), b""]
    for _ in range(3):
        try:
            await exporter.export(logs())
        except Retryable:
            continue

    assert len({request.connection for request in server.requests}) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_what_may_pass_later(exporter, server, status):
    """The four statuses of the specification are retried; the message names the URL, the status and its words."""
    server.answers.append(HttpAnswer(status, b"come\nagain", {"Content-Type": "text/plain"}))

    with pytest.raises(Retryable, match=f"{server.url}/v1/logs: {status} come again") as raised:
        await exporter.export(logs())

    assert raised.value.after is None


@pytest.mark.parametrize("status", [300, 304, 400, 401, 403, 404, 405, 408, 415, 422, 500, 501, 505])
async def test_what_never_passes(exporter, server, status):
    """Every other status drops the batch."""
    server.answers.append(HttpAnswer(status))

    with pytest.raises(Permanent, match=f": {status}") as raised:
        await exporter.export(logs())

    assert raised.value.reason == f"http_{status // 100}xx"


@pytest.mark.parametrize("status", [429, 503])
async def test_the_server_says_when(exporter, bench, server, status):
    """Retry-After counts in seconds or as a date; what is neither is ignored."""
    now = bench.clock.now_ns / 1e9
    date = format_datetime(datetime.fromtimestamp(now + 90, UTC), usegmt=True)
    headers = ("7", date, "1.5", "soon")
    server.answers += [HttpAnswer(status, headers={"Retry-After": value}) for value in headers]

    waits = []
    for _ in headers:
        with pytest.raises(Retryable) as raised:
            await exporter.export(logs())
        waits.append(raised.value.after)

    assert waits == [7, 90, None, None]


@pytest.mark.parametrize("status", [502, 504])
async def test_a_gateway_does_not_say_when(exporter, server, status):
    """Retry-After has a meaning only where the server itself is over its load."""
    server.answers.append(HttpAnswer(status, headers={"Retry-After": "7"}))

    with pytest.raises(Retryable) as raised:
        await exporter.export(logs())

    assert raised.value.after is None


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/x-protobuf", Status(code=3, message="no such tenant").SerializeToString()),
        ("application/json", b'{"code":3,"message":"no such tenant"}'),
        ("application/json; charset=utf-8", b'{"message":"no such tenant","unknown":[]}'),
        ("text/plain", b"no such tenant"),
    ],
)
async def test_the_server_says_why(exporter, server, content_type, body):
    """The reason is read in whatever encoding the server gives it."""
    server.answers.append(HttpAnswer(400, body, {"Content-Type": content_type}))

    with pytest.raises(Permanent, match=r"400 no such tenant$"):
        await exporter.export(logs())


async def test_a_redirect_is_named(exporter, server):
    """A POST is not sent on to wherever a server says; the message tells the operator."""
    server.answers.append(HttpAnswer(308, headers={"Location": "https://elsewhere.example/v1/logs"}))

    with pytest.raises(Permanent, match=r"308 redirects to https://elsewhere\.example/v1/logs; set the endpoint"):
        await exporter.export(logs())


async def test_credentials_of_a_url_stay_hidden(bench, server, caplog):
    """They are sent, and stand in no message: neither those before the host nor those in the query."""
    yaml = f"logs_endpoint: http://user:s3cret@{server.address}/in?key=s3cret"
    redirect = HttpAnswer(308, headers={"Location": "/x?key=s3cret"})
    answers = [HttpAnswer(400), HttpAnswer(503), Reset(), HttpAnswer(200, b"?"), redirect]
    server.answers += answers
    messages = []
    async with running(bench.make(OtlpHttpExporter, yaml)) as exporter:
        for _ in answers:
            try:
                await exporter.export(logs())
            except DeliveryError as error:
                messages.append(str(error))

    assert server.requests[0].headers["authorization"].startswith("Basic ")
    assert len(messages) == 4
    assert all(message.startswith(f"http://{server.address}/in: ") for message in messages)
    assert "s3cret" not in f"{messages} {caplog.text}"


async def test_an_endless_answer_is_cut(exporter, server):
    """No more of an answer is kept than an OTLP answer can need, and its words are cut for the log."""
    server.answers.append(HttpAnswer(400, b"x" * 10_000_000, {"Content-Type": "text/plain"}))

    with pytest.raises(Permanent) as raised:
        await exporter.export(logs())

    assert len(str(raised.value)) < 700


@pytest.mark.parametrize("encoding", ["proto", "json"])
async def test_what_the_server_rejects_is_counted(exporter, bench, server, encoding, caplog):
    """A partial success is a success; the rejected items are counted as dropped and the server's words are logged."""
    response = SCHEMAS[Signal.LOGS].response()
    response.partial_success.rejected_log_records = 2
    response.partial_success.error_message = "too old"
    answers = {
        "proto": HttpAnswer(200, response.SerializeToString(), {"Content-Type": "application/x-protobuf"}),
        "json": HttpAnswer(
            200,
            b'{"partialSuccess":{"rejectedLogRecords":"2","errorMessage":"too old"}}',
            {"Content-Type": "application/json"},
        ),
    }
    server.answers.append(answers[encoding])

    await exporter.export(logs(3))

    assert bench.dropped == {(Signal.LOGS, "rejected_by_peer"): 2}
    assert "rejected 2 of 3 log_records: too old" in caplog.text


@pytest.mark.parametrize("status", [200, 202, 204])
@pytest.mark.parametrize(("content_type", "body"), [("text/html", b"<html>"), ("application/x-protobuf", b"\xff")])
async def test_an_answer_that_is_no_answer_does_not_send_twice(
    exporter, bench, server, status, content_type, body, caplog
):
    """The status was a success: the batch counts as delivered, and the log asks whether this is an OTLP server."""
    server.answers.append(HttpAnswer(status, b"" if status == 204 else body, {"Content-Type": content_type}))

    await exporter.export(logs())

    assert not bench.dropped
    assert ("is this an OTLP server" in caplog.text) == (status != 204)


async def test_too_large_goes_in_parts(exporter, bench, server):
    """After a 413 the batch arrives in halves; a record that is too large by itself is dropped."""
    server.answers += [HttpAnswer(413), b"", HttpAnswer(413), HttpAnswer(413), b""]

    await exporter.export(logs(4))

    assert [len(request.batch) for request in server.requests] == [4, 2, 2, 1, 1]
    assert bench.dropped == {(Signal.LOGS, "too_large"): 1}


async def test_what_remains_of_a_divided_batch_is_retried(exporter, server):
    """When the server goes away between two halves, only the rest is sent again."""
    server.answers += [HttpAnswer(413), b"", HttpAnswer(503)]

    with pytest.raises(Retryable) as raised:
        await exporter.export(logs(5))

    assert len(server.requests[1].batch) == 3
    assert len(raised.value.remaining) == 2


async def test_a_broken_connection(exporter, server):
    """Closed without an answer: whether it arrived is not known, so it is sent again."""
    server.answers.append(Reset())

    with pytest.raises(Retryable, match=f"{server.url}/v1/logs: "):
        await exporter.export(logs())


async def test_no_server(bench, free_port):
    """Nothing listens: retryable, and the message names the URL and the reason."""
    async with running(bench.make(OtlpHttpExporter, f"endpoint: http://127.0.0.1:{free_port}")) as exporter:
        with pytest.raises(Retryable, match=f"http://127.0.0.1:{free_port}/v1/logs: .*[Cc]onnect"):
            await exporter.export(logs())


async def test_no_answer_in_time(bench, server):
    """A server that does not answer in time is asked again later."""
    server.answers.append(Silence())
    async with running(bench.make(OtlpHttpExporter, f"endpoint: {server.url}\ntimeout: 100ms")) as exporter:
        with pytest.raises(Retryable, match="no answer within 100ms") as raised:
            await exporter.export(logs())

    assert raised.value.reason == "timeout"


async def test_a_cancelled_export_ends_the_request(exporter, server):
    """When the runtime gives up on an attempt, nothing is left under way."""
    server.answers.append(Silence())
    task = asyncio.create_task(exporter.export(logs()))
    await server.wait_for_requests(1)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    await exporter.export(logs())
    assert len(server.requests) == 2


async def test_tls(bench, tmp_path):
    """The server is checked against `ca_file`, and the client shows its certificate, given as files or as text."""
    authority = Authority(tmp_path)
    cert, key = authority.client_cert_file, authority.client_key_file
    as_text = orjson.dumps({"cert_pem": cert.read_text(), "key_pem": key.read_text(), "ca_pem": authority.ca.decode()})
    async with HttpServer(ssl_context=authority.ssl_context(ask_clients=True)) as server:
        url = f"https://localhost:{server.port}"
        for tls in (f"{{ca_file: {authority.ca_file}, cert_file: {cert}, key_file: {key}}}", as_text.decode()):
            async with running(bench.make(OtlpHttpExporter, f"endpoint: {url}\ntls: {tls}")) as exporter:
                await exporter.export(logs())

        assert len(server.requests) == 2


async def test_servers_that_are_not_trusted(bench, tmp_path):
    """An unknown authority gets nothing unless the check is switched off; another name can be the right one."""
    authority = Authority(tmp_path)
    async with HttpServer(ssl_context=authority.ssl_context()) as server:
        async with running(bench.make(OtlpHttpExporter, f"endpoint: {server.url}")) as exporter:
            with pytest.raises(Retryable, match=r"set tls\.ca_file"):
                await exporter.export(logs())
        assert not server.requests
        for tls in ("insecure_skip_verify: true", f"ca_file: {authority.ca_file}, server_name_override: localhost"):
            async with running(bench.make(OtlpHttpExporter, f"endpoint: {server.url}\ntls: {{{tls}}}")) as exporter:
                await exporter.export(logs())
        assert len(server.requests) == 2


async def test_tls_to_a_server_without(bench, server):
    """The message asks the right question."""
    async with running(bench.make(OtlpHttpExporter, f"endpoint: https://{server.address}")) as exporter:
        with pytest.raises(Retryable, match="does the server speak TLS"):
            await exporter.export(logs())


async def test_unreadable_certificates_stop_the_start(bench, tmp_path):
    """A missing file, a text that is no certificate and a key of another certificate are start errors."""
    Authority(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    Authority(other)
    for tls, message in (
        (f"ca_file: {tmp_path / 'none.pem'}", r"tls\.ca_file: can't read"),
        ("ca_pem: nonsense", "unusable"),
        (f"cert_file: {tmp_path / 'client.pem'}, key_file: {other / 'client.key'}", "unusable .*mismatch"),
    ):
        exporter = bench.make(OtlpHttpExporter, f"endpoint: https://a\ntls: {{{tls}}}", "otlp_http/edge")
        with pytest.raises(
            StartError, match=rf"exporters\.otlp_http/edge: {message}|exporters\.otlp_http/edge: tls: .*{message}"
        ):
            await exporter.start()


async def test_stop_works_twice_and_without_start(bench):
    """As every component's does."""
    exporter = bench.make(OtlpHttpExporter, "endpoint: http://a")
    await exporter.stop()
    await exporter.start()
    await exporter.stop()
    await exporter.stop()
