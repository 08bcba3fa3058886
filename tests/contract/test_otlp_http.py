"""OTLP conformance, items 97 to 107: the HTTP transport, browsers, TLS and Unix sockets."""

import asyncio
import gzip
import os
import socket
import tempfile

import grpc.aio
import pytest
from support.certificates import Authority
from support.otlp_receiver import JSON, PROTOBUF, SIGNALS, data_of, running
from support.wire import chunked, connect, request

from config.problems import ConfigError
from sidecar import SCHEMAS, Signal
from sidecar.receivers.otlp import OtlpReceiver
from sidecar.testing import Bench

DATA = data_of(Signal.TRACES)
PAGE = "https://app.example.com"


def in_pieces(data, size):
    """The data, cut."""
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("compressed", [False, True])
async def test_097_chunked_bodies_are_read(signal, compressed):
    """As every Node client sends them; compressed or not, in pieces of any size."""
    data = data_of(signal, 30)
    body = gzip.compress(data) if compressed else data
    headers = {"Content_Type": PROTOBUF, "Transfer_Encoding": "chunked"} | (
        {"Content_Encoding": "gzip"} if compressed else {}
    )
    async with running() as server, connect(server.http) as wire:
        head = request("POST", SCHEMAS[signal].http_path, **headers)
        await wire.send(head, *in_pieces(chunked(*in_pieces(body, 100)), 37))
        assert (await wire.answer()).status == 200
        assert server.sink.batches[0].encode() == data


async def test_098_requests_follow_each_other_on_one_connection():
    """Three at once are answered in order, errors among them."""
    bodies = [b"{}", b"[", b"{}"]
    async with running() as server, connect(server.http) as wire:
        await wire.send(b"".join(request("POST", "/v1/logs", body, Content_Type=JSON) for body in bodies))
        assert [(await wire.answer()).status for _ in bodies] == [200, 400, 200]


async def test_099_a_client_that_waits_to_be_told_is_told():
    """As curl does above one megabyte: 100 before the body, 200 after it."""
    body = data_of(Signal.TRACES, 20_000)
    async with running() as server, connect(server.http) as wire:
        headers = {"Content_Type": PROTOBUF, "Content_Length": len(body), "Expect": "100-continue"}
        await wire.send(request("POST", "/v1/traces", **headers))
        assert (await wire.answer()).status == 100
        await wire.send(body)
        assert (await wire.answer()).status == 200
        assert len(server.sink) == 20_000


async def test_100_http_1_0_is_answered():
    """And closed, unless it is to be kept alive."""
    async with running() as server:
        async with connect(server.http) as wire:
            await wire.send(request("POST", "/v1/traces", DATA, "1.0", Content_Type=PROTOBUF))
            assert (await wire.answer()).status == 200
            assert await wire.rest() == b""
        async with connect(server.http) as wire:
            for _ in range(2):
                headers = {"Content_Type": PROTOBUF, "Connection": "Keep-Alive"}
                await wire.send(request("POST", "/v1/traces", DATA, "1.0", **headers))
                assert (await wire.answer()).status == 200


async def test_101_an_offer_of_http_2_is_answered_on_1_1():
    """As `curl --http2` makes it."""
    headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2_Settings": "AAMAAABkAAQAAP__"}
    async with running() as server, connect(server.http) as wire:
        for _ in range(2):
            await wire.send(request("POST", "/v1/traces", DATA, Content_Type=PROTOBUF, **headers))
            assert (await wire.answer()).status == 200


async def test_102_many_connections_are_served_and_slow_ones_closed():
    """Sixty-four clients at once; one that never says what it wants is cut off."""
    async with running("{read_header_timeout: 200ms}") as server, connect(server.http) as slow:
        await slow.send(b"POST /v1/traces HTTP/1.1\r\n")
        answers = await asyncio.gather(*(server.post(DATA) for _ in range(64)))
        assert {answer.status for answer in answers} == {200}
        assert await slow.rest() == b""
        assert len(server.sink) == 64


async def test_103_without_cors_there_is_no_preflight():
    """405, and browsers never post."""
    async with running() as server:
        answer = await server.post(method="OPTIONS", Origin=PAGE, Access_Control_Request_Method="POST")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("signal", SIGNALS)
async def test_103_with_cors_the_preflight_and_the_post_are_allowed(signal):
    """204 with what the browser asked for, and the origin on the response too."""
    cors = "{cors: {allowed_origins: ['https://*.example.com'], allowed_headers: [X-API-Key], max_age: 600}}"
    async with running(cors) as server:
        asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "content-type,x-api-key"}
        preflight = await server.post(b"", None, signal, method="OPTIONS", Origin=PAGE, **asked)
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-origin"] == PAGE
        assert preflight.headers["access-control-allow-methods"] == "POST"
        assert preflight.headers["access-control-allow-headers"] == "content-type, x-api-key"
        assert preflight.headers["access-control-max-age"] == "600"
        assert "Origin" in preflight.headers["vary"]
        posted = await server.post(data_of(signal), PROTOBUF, signal, Origin=PAGE)
        assert (posted.status, posted.headers["access-control-allow-origin"]) == (200, PAGE)


async def test_104_chromiums_preflight_is_understood():
    """Exactly as it sends it: no body, no content type, lower-case header names."""
    async with running("{cors: {allowed_origins: ['*']}}") as server, connect(server.http) as wire:
        await wire.send(
            "OPTIONS /v1/traces HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nAccess-Control-Request-Method: POST\r\n"
            f"Access-Control-Request-Headers: content-type\r\nOrigin: {PAGE}\r\nSec-Fetch-Mode: cors\r\n"
            "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Dest: empty\r\n\r\n"
        )
        answer = await wire.answer()
        assert (answer.status, answer.headers["access-control-allow-headers"]) == (204, "content-type")


async def test_105_credentials_are_allowed():
    """As sendBeacon needs it, for which the origin may not be a star."""
    async with running("{cors: {allowed_origins: ['*']}}") as server:
        answer = await server.post(DATA, Origin=PAGE)
        assert answer.headers["access-control-allow-credentials"] == "true"
        assert answer.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("mutual", [False, True])
async def test_106_tls_and_mutual_tls(tmp_path, protocol, mutual):
    """With the Collector's keys; a client without a certificate is turned away where one is asked for."""
    authority = Authority(tmp_path)
    client_ca = f", client_ca_file: '{authority.ca_file}'" if mutual else ""
    tls = f"{{tls: {{cert_file: '{authority.server_cert_file}', key_file: '{authority.server_key_file}'{client_ca}}}}}"
    async with running(tls if protocol == "http" else None, tls if protocol == "grpc" else None) as server:
        assert await sends(server, protocol, authority, with_certificate=mutual)
        assert await sends(server, protocol, authority, with_certificate=False) is not mutual


async def sends(server, protocol, authority, *, with_certificate):
    """Whether a client gets through."""
    if protocol == "http":
        context = authority.client_context(with_certificate=with_certificate)
        try:
            async with connect(server.http, tls=context) as wire:
                await wire.send(request("POST", "/v1/traces", DATA, Content_Type=PROTOBUF))
                return (await wire.answer()).status == 200
        except (OSError, IndexError):
            return False
    options = (("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1))
    credentials = authority.client_credentials(with_certificate=with_certificate)
    async with grpc.aio.secure_channel(f"127.0.0.1:{server.grpc}", credentials, options) as server.channel:
        return await server.refused(DATA) is None


def test_106_a_certificate_without_its_key_is_a_problem():
    """Found before anything starts."""
    with pytest.raises(ConfigError) as problems:
        Bench().make(OtlpReceiver, "protocols: {http: {tls: {cert_file: a.pem}}}", "otlp")
    assert "needs both a certificate and its key" in problems.value.problems[0].message


async def test_107_unix_sockets_carry_both_protocols():
    """With an endpoint that is a path."""
    with tempfile.TemporaryDirectory() as folder:
        http, grpc_path = f"{folder}/http.sock", f"{folder}/grpc.sock"
        bench = Bench()
        text = f"protocols: {{http: {{endpoint: 'unix://{http}'}}, grpc: {{endpoint: 'unix://{grpc_path}'}}}}"
        receiver = bench.make(OtlpReceiver, text, "otlp")
        await receiver.start()
        try:
            async with connect(path=http) as wire:
                await wire.send(request("POST", "/v1/traces", DATA, Content_Type=PROTOBUF))
                assert (await wire.answer()).status == 200
            async with grpc.aio.insecure_channel(f"unix://{grpc_path}") as channel:
                await channel.unary_unary(f"/{SCHEMAS[Signal.TRACES].grpc_service}/Export")(DATA)
        finally:
            await receiver.stop()
        assert [batch.context.peer for batch in bench.sink.batches] == ["", ""]
        assert os.listdir(folder) == []  # noqa: PTH208 (no await is worth it)


async def test_the_default_is_localhost_and_not_the_network():
    """Nobody outside this host is served unless told so."""
    with pytest.raises(ConfigError):
        Bench().make(OtlpReceiver, "protocols: {http: {endpoint: 'http://localhost:4318'}}", "otlp")
    protocols = Bench().make(OtlpReceiver, "", "otlp").settings.protocols
    assert (protocols.grpc.endpoint, protocols.http.endpoint) == ("localhost:4317", "localhost:4318")
    assert socket.gethostbyname("localhost").startswith("127.")


@pytest.mark.parametrize(("trusted", "expected"), [("[]", "127.0.0.1"), ("[127.0.0.0/8]", "203.0.113.7")])
async def test_a_trusted_proxy_tells_the_callers_address(trusted, expected):
    """Of its own the address is the connection's."""
    async with running(f"{{trusted_proxies: {trusted}}}") as server:
        await server.post(data_of(Signal.TRACES), X_Forwarded_For="198.51.100.1, 203.0.113.7")
        assert server.sink.batches[0].context.peer == expected
