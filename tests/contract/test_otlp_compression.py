"""OTLP conformance, items 62 to 75: compression, and sizes before and after it."""

import gzip
import zlib

import grpc
import pytest
import zstandard
from support.http2 import connect_http2, framed
from support.otlp import traces_request
from support.otlp_receiver import JSON, PROTOBUF, SIGNALS, data_of, running, status_of
from support.wire import chunked, connect, request

from sidecar import SCHEMAS, Signal
from sidecar.net import otlp_json

DATA = data_of(Signal.TRACES, 20)
EXPORT = f"/{SCHEMAS[Signal.TRACES].grpc_service}/Export"
Code = grpc.StatusCode


@pytest.mark.parametrize("signal", SIGNALS)
async def test_062_gzip_is_understood_everywhere(signal):
    """Over HTTP as protobuf and as JSON, and over gRPC."""
    message = SCHEMAS[signal].request.FromString(data_of(signal, 20))
    async with running() as server:
        for body, content_type in ((data_of(signal, 20), PROTOBUF), (otlp_json.encode(message), JSON)):
            answer = await server.post(gzip.compress(body), content_type, signal, Content_Encoding="gzip")
            assert answer.status == 200
        await server.export(data_of(signal, 20), signal, compression=grpc.Compression.Gzip)
        assert [batch.message == message for batch in server.sink.batches] == [True] * 3


@pytest.mark.parametrize("coding", ["GZIP", "Gzip", "x-gzip"])
async def test_063_codings_are_case_insensitive(coding):
    """As HTTP has it (RFC 9110, section 8.4.1)."""
    async with running() as server:
        assert (await server.post(gzip.compress(DATA), Content_Encoding=coding)).status == 200


async def test_064_deflate_and_zstd_are_understood():
    """The Python SDK offers deflate, which is a zlib stream; some clients send a raw one."""
    raw = zlib.compressobj(wbits=-15)
    async with running() as server:
        for coding, body in (
            ("deflate", zlib.compress(DATA)),
            ("deflate", raw.compress(DATA) + raw.flush()),
            ("zstd", zstandard.compress(DATA)),
        ):
            assert (await server.post(body, Content_Encoding=coding)).status == 200
        await server.export(DATA, compression=grpc.Compression.Deflate)
        assert [batch.encode() for batch in server.sink.batches] == [DATA] * 4


@pytest.mark.parametrize("coding", ["identity", "none", ""])
async def test_065_identity_is_the_body_as_it_is(coding):
    """Under any of its names."""
    async with running() as server:
        assert (await server.post(DATA, Content_Encoding=coding)).status == 200


@pytest.mark.parametrize("coding", ["br", "snappy", "gzip, br", "foo"])
async def test_066_an_unknown_coding_is_415(coding):
    """Never parsed as if it were not there."""
    async with running() as server:
        answer = await server.post(DATA, Content_Encoding=coding)
        assert (answer.status, status_of(answer)[0]) == (415, 3)
        assert coding in status_of(answer)[1]
        assert not server.sink.batches


async def test_066_the_settings_may_accept_fewer():
    """With the Collector's key."""
    async with running("{compression_algorithms: [gzip]}") as server:
        assert (await server.post(gzip.compress(DATA), Content_Encoding="gzip")).status == 200
        assert (await server.post(zstandard.compress(DATA), Content_Encoding="zstd")).status == 415


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
async def test_067_a_body_that_is_not_what_its_coding_says_is_400(coding, content_type):
    """With a Status in the request's encoding."""
    async with running() as server:
        answer = await server.post(b"not compressed", content_type, Content_Encoding=coding)
        assert (answer.status, answer.headers["content-type"]) == (400, content_type)
        assert status_of(answer)[1].startswith(f"the body is not {coding}")


async def test_068_all_members_of_a_gzip_body_count():
    """Joined they are one request; one that is cut off is none."""
    halves = gzip.compress(DATA[:50]) + gzip.compress(DATA[50:])
    async with running() as server:
        assert (await server.post(halves, Content_Encoding="gzip")).status == 200
        assert server.sink.batches[0].encode() == DATA
        assert (await server.post(gzip.compress(DATA)[:-8], Content_Encoding="gzip")).status == 400


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
async def test_069_the_size_limit_holds_before_and_after_decompression(content_type):
    """413 with a Status, without Retry-After: the same body would never pass."""
    body = {PROTOBUF: traces_request(1), JSON: traces_request(1)}[content_type]
    body = body.SerializeToString() if content_type == PROTOBUF else otlp_json.encode(body)
    padding = b"\xfa\x3f\xff\x7f" + b"x" * 16383 if content_type == PROTOBUF else b" " * 16387
    async with running("{max_request_body_size: 16KiB}") as server:
        for sent, headers in ((body + padding, {}), (gzip.compress(body + padding), {"Content_Encoding": "gzip"})):
            answer = await server.post(sent, content_type, **headers)
            assert (answer.status, answer.headers["content-type"]) == (413, content_type)
            assert status_of(answer)[0] == 8
            assert "retry-after" not in answer.headers
        assert (await server.post(body, content_type)).status == 200


async def test_069_the_limit_is_64_mib_unless_said_otherwise():
    """As the specification recommends."""
    async with running() as server:
        bomb = gzip.compress(bytes(64 * 2**20 + 1), 1)
        assert (await server.post(bomb, Content_Encoding="gzip")).status == 413


async def test_070_a_length_over_the_limit_is_refused_unread():
    """413 at once, and the connection closes, so that its client does not go on sending."""
    async with running() as server, connect(server.http) as wire:
        await wire.send(request("POST", "/v1/traces", Content_Type=PROTOBUF, Content_Length=64 * 2**20 + 1))
        answer = await wire.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")


async def test_071_a_chunked_body_is_refused_at_the_limit():
    """Counted while it comes."""
    async with running("{max_request_body_size: 1KiB}") as server, connect(server.http) as wire:
        await wire.send(request("POST", "/v1/traces", Content_Type=PROTOBUF, Transfer_Encoding="chunked"))
        await wire.send(chunked(b"x" * 1025)[:-5])  # without the end
        assert (await wire.answer()).status == 413


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_072_a_grpc_message_over_the_limit_is_resource_exhausted(compression):
    """Without RetryInfo, so that no conforming client sends it again; inflated or not."""
    async with running(grpc_="{max_recv_msg_size_mib: 1}") as server:
        refused = await server.refused(DATA * 1000, compression=compression)
        assert refused.code() is Code.RESOURCE_EXHAUSTED
        assert not {"grpc-status-details-bin", "google.rpc.retryinfo-bin"} & dict(refused.trailing_metadata()).keys()
        assert await server.export(DATA, compression=compression) == b""


async def test_072_the_grpc_limit_is_64_mib_unless_said_otherwise():
    """As for HTTP, where the library's own limit would be 4 MiB."""
    padded = DATA + b"\xfa\x3f\x80\x80\xc0\x02" + bytes(5 * 2**20)
    async with running() as server:
        assert await server.export(padded) == b""
        assert len(server.sink) == 20


async def test_073_an_unknown_grpc_encoding_is_an_error():
    """The library answers INTERNAL where the protocol wants UNIMPLEMENTED; it can't be told otherwise."""
    async with running() as server, connect_http2(server.grpc) as connection:
        got = await connection.call(EXPORT, framed(b"x", compressed=True), grpc_encoding="snappy")
        assert got.grpc_status in {Code.INTERNAL.value[0], Code.UNIMPLEMENTED.value[0]}
        assert await server.export(DATA) == b""


async def test_074_a_compressed_flag_without_an_encoding_is_internal():
    """And so is a body that is not what the encoding says."""
    async with running() as server:
        for headers in ({}, {"grpc_encoding": "gzip"}):
            async with connect_http2(server.grpc) as connection:
                got = await connection.call(EXPORT, framed(b"not gzip", compressed=True), **headers)
                assert got.grpc_status == Code.INTERNAL.value[0]
        assert not server.sink.batches


async def test_075_a_client_that_takes_gzip_is_served():
    """The server may answer plainly."""
    async with running() as server:
        answer = await server.post(DATA, Accept_Encoding="gzip")
        assert (answer.status, answer.headers.get("content-encoding")) == (200, None)
