"""No bytes break a receiver: its parsers by a fuzzer that looks for new paths, its HTTP side by random requests.

`tests/fuzz` holds what the fuzzer starts from, a folder for each of `support.fuzz_targets`. What once broke something
is put there, and stays. `FUZZ_RUNS` says how many inputs each target gets.
"""

import asyncio
import contextlib
import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import fuzz_targets
from support.node import missing
from support.otlp_receiver import JSON, PROTOBUF, data_of
from support.processes import ManagedProcess
from support.wire import connect, exchange, request

from sidecar import Signal
from sidecar.receivers.datadog import DatadogReceiver
from sidecar.receivers.otlp import OtlpReceiver
from sidecar.receivers.telemetry_event import TelemetryEventReceiver
from sidecar.testing import Bench

RUNS = int(os.environ.get("FUZZ_RUNS", "20000" if os.environ.get("CI") else "4000"))
SEEDS = Path(__file__).parents[1] / "fuzz"
PROGRAM = fuzz_targets.__file__
TESTS = str(Path(__file__).parents[1])


@pytest.mark.parametrize("seed", sorted(SEEDS.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_seed_breaks_its_parser(seed):
    """Also where there is no fuzzer."""
    fuzz_targets.TARGETS[seed.parent.name](seed.read_bytes())


def test_every_parser_has_seeds():
    """And no folder stands for nothing."""
    assert {path.name for path in SEEDS.iterdir()} == set(fuzz_targets.TARGETS)


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or sys.version_info >= (3, 12),
    reason="atheris is built for Python 3.11 on Linux and x86-64",
)
@pytest.mark.parametrize("target", fuzz_targets.TARGETS)
async def test_no_bytes_break_a_parser(target, tmp_path):
    """Inputs that reach new code are kept and changed further; an exception, or ten seconds, end the run."""
    if find_spec("atheris") is None:
        missing("atheris", "run `make test`")
    found = tmp_path / "found"
    found.mkdir()
    limits = (f"-runs={RUNS}", "-max_len=4096", "-timeout=10", "-seed=1", f"-artifact_prefix={tmp_path}/")
    fuzzer = ManagedProcess(sys.executable, PROGRAM, target, found, SEEDS / target, *limits, env={"PYTHONPATH": TESTS})
    async with fuzzer as process:
        ended = await process.wait(within=50)
        assert ended.code == 0
        assert f"Done {RUNS} runs" in ended.output


METHODS = st.sampled_from(["POST", "POST", "POST", "PUT", "GET", "OPTIONS", "X"])
TYPES = st.sampled_from([PROTOBUF, JSON, f"{JSON}; charset=utf-8", "application/msgpack", "text/plain", "a/b;c", ";"])
PRINTABLE = st.text(st.characters(codec="latin-1", exclude_characters="\r\n\0"), max_size=30)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "Content_Type": TYPES | PRINTABLE,
        "Content_Encoding": st.sampled_from(["gzip", "GZIP", "deflate", "zstd", "identity", "br", ""]) | PRINTABLE,
        "Content_Length": st.sampled_from(["0", "5", "-1", "10000000000", "1e3"]) | PRINTABLE,
        "Transfer_Encoding": st.sampled_from(["chunked", "gzip, chunked", "CHUNKED"]) | PRINTABLE,
        "Expect": st.just("100-continue") | PRINTABLE,
        "Authorization": PRINTABLE,
        "Origin": st.just("https://app.example.com") | PRINTABLE,
        "X_Forwarded_For": st.just("1.1.1.1, ::1") | PRINTABLE,
        "Datadog_Client_Dropped_P0_Spans": PRINTABLE,
        "Connection": st.sampled_from(["close", "keep-alive", "upgrade"]),
    },
)
BODIES = st.binary(max_size=200) | st.sampled_from(
    [data_of(Signal.LOGS, 2), b"{}", b'{"events":[{"message":"hi"}]}', b"\x90", b"\x91\x90", b"a:1|c\n"]
)


OTLP = ["/v1/traces", "/v1/metrics", "/v1/logs"]
DATADOG = ["/v0.4/traces", "/v0.5/traces", "/v0.7/traces", "/v0.6/stats", "/dogstatsd/v2/proxy", "/telemetry/proxy/a"]
ODD = ["/", "/v1/traces/", "*", "/%00", "//v1/logs?a"]
PATHS = st.sampled_from([*OTLP, "/v1/telemetry/events", *DATADOG, "/info", *ODD])
REQUESTS = st.lists(st.tuples(METHODS, PATHS, BODIES, HEADERS), min_size=1, max_size=5)

SHARED = "endpoint: '127.0.0.1:0', read_timeout: 30ms"
CORS = "cors: {allowed_origins: ['https://*.example.com']}, trusted_proxies: [127.0.0.1]"
RECEIVERS = {
    OtlpReceiver: f"{{protocols: {{http: {{{SHARED}, {CORS}, max_request_body_size: 1KiB}}}}}}",
    TelemetryEventReceiver: f"{{{SHARED}, {CORS}, grpc_endpoint: null, max_body_size: 1KiB}}",
    DatadogReceiver: f"{{{SHARED}, max_request_body_size: 1KiB}}",
}


@contextlib.asynccontextmanager
async def all_receivers():
    """The port behind which they all are. At the end a good request must still pass."""
    bench = Bench()
    receivers = [bench.make(kind, text, kind.__name__.lower()) for kind, text in RECEIVERS.items()]
    try:
        for receiver in receivers:
            await receiver.start()
        port = receivers[0].http.port
        yield port
        answer = await exchange(port, "POST", "/v1/logs", data_of(Signal.LOGS), Content_Type=PROTOBUF)
        assert answer.status == 200
    finally:
        for receiver in receivers:
            await receiver.stop()
        await bench.close()


@given(requests=REQUESTS)
def test_no_request_is_answered_500(requests):
    """Whatever its parts are: each gets an answer, and none is a mistake of ours."""

    async def run():
        async with all_receivers() as port:
            for method, path, body, headers in requests:
                async with connect(port) as wire:
                    with contextlib.suppress(ConnectionError):  # it may hang up before it has got everything
                        await wire.send(request(method, path, body, **headers))
                    answer = await wire.answer()
                    while answer.status < 200:  # 100 Continue
                        answer = await wire.answer()
                    assert answer.status != 500, answer.body
                    assert b"internal error" not in answer.body

    asyncio.run(run())


LINES = st.sampled_from(
    [b"POST /v1/logs HTTP/1.1", b"Host: a", b"Content-Length: 3", b"Transfer-Encoding: chunked", b"0"]
)


@given(parts=st.lists(LINES | st.binary(max_size=40), min_size=1, max_size=8))
def test_no_bytes_on_the_socket_are_answered_500(parts):
    """Also those that are no HTTP, or stop in the middle."""

    async def run():
        async with all_receivers() as port, connect(port) as wire:
            with contextlib.suppress(ConnectionError):
                await wire.send(b"\r\n".join(parts) + b"\r\n\r\n")
            wire.finish()
            answer = await wire.rest()
            assert not answer.startswith(b"HTTP/1.1 500"), answer
            assert b"internal error" not in answer

    asyncio.run(run())
