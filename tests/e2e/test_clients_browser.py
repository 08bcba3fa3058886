"""Web pages in a real browser: the OpenTelemetry web SDK, and `sendBeacon` without one."""

import asyncio
import contextlib
import shutil
from urllib.parse import urlencode

import orjson
import pytest
from aiohttp import web
from support.node import missing, node
from support.otlp_receiver import items, plain, running
from support.processes import ManagedProcess
from support.wire import until

from sidecar import Signal
from sidecar.receivers.telemetry_event import TelemetryEventReceiver
from sidecar.testing import Bench

CORS = "{cors: {allowed_origins: ['http://127.0.0.1:*'], allowed_headers: [x-api-key]}}"
# Nothing of its own over the network, and no sandbox, which root may not have.
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


@pytest.fixture(scope="module")
def chromium():
    """The browser's program."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    return program or missing("Chromium", "run `bash tests/setup.sh` as root, or install it")


class Page:
    """The web page's own server, on another origin than the receiver."""

    def __init__(self, script):
        self._script = script
        self._result = asyncio.get_running_loop().create_future()

    async def serve(self, request):
        """The page, its script, and the place where it reports."""
        if request.path == "/done":
            if not self._result.done():
                self._result.set_result(request.query["result"])
            return web.Response()
        if request.path == "/page.js":
            return web.Response(text=self._script, content_type="text/javascript")
        return web.Response(text="<!doctype html><script src=/page.js></script>", content_type="text/html")

    async def result(self):
        """What the page reports."""
        async with asyncio.timeout(30):
            return await self._result


@contextlib.asynccontextmanager
async def visiting(chromium, folder, **query):
    """A browser that shows the page, with this query."""
    script = folder / "page.js"
    bundle = ("node_modules/esbuild/bin/esbuild", "browser.mjs", "--bundle", "--log-level=error", f"--outfile={script}")
    async with node(*bundle) as esbuild:
        ended = await esbuild.wait()
    assert ended.code == 0, ended.output
    page = Page(script.read_text())
    runner = web.ServerRunner(web.Server(page.serve, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/?{urlencode(query)}"
        async with ManagedProcess(chromium, *FLAGS, f"--user-data-dir={folder / 'profile'}", url):
            yield page
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("kind", ["http", "proto"])
@pytest.mark.parametrize("key", ["", "abc"])
async def test_the_web_sdk_sends_its_spans(chromium, tmp_path, kind, key):
    """After a preflight, as JSON and as protobuf, with and without a header of its own."""
    async with running(CORS) as server:
        url = f"http://127.0.0.1:{server.http}/v1/traces"
        async with visiting(chromium, tmp_path, kind=kind, url=url, key=key) as page:
            assert await page.result() == "sent"
        (span,) = items(server, Signal.TRACES)
    assert (span.name, plain(span.attributes)["page"]) == ("click", "grüß")


async def test_without_cors_the_browser_sends_nothing(chromium, tmp_path):
    """The page is told, and no pipeline sees anything."""
    async with running() as server:
        url = f"http://127.0.0.1:{server.http}/v1/traces"
        async with visiting(chromium, tmp_path, kind="http", url=url) as page:
            assert await page.result() != "sent"
        assert not server.sink.batches


async def test_a_beacon_arrives(chromium, tmp_path):
    """JSON in a Blob: the browser asks first, and sends credentials along."""
    body = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "bye"}}]}]}]}
    async with running(CORS) as server:
        url = f"http://127.0.0.1:{server.http}/v1/logs"
        async with visiting(chromium, tmp_path, kind="beacon", url=url, body=orjson.dumps(body).decode()) as page:
            assert await page.result() == "queued"
            await until(lambda: len(server.sink))
        (record,) = items(server, Signal.LOGS)
    assert record.body.string_value == "bye"


async def test_a_beacon_of_telemetry_events_arrives(chromium, tmp_path):
    """As the web console sends them when its page is closed."""
    bench = Bench()
    receiver = bench.make(
        TelemetryEventReceiver,
        "{endpoint: '127.0.0.1:0', grpc_endpoint: null, cors: {allowed_origins: ['http://127.0.0.1:*']}}",
        "telemetry_event",
    )
    await receiver.start()
    try:
        body = {"events": [{"source": "console", "severity": "error", "kind": "http_error", "message": "bye"}]}
        url = f"http://127.0.0.1:{receiver.http.port}/v1/telemetry/events"
        async with visiting(chromium, tmp_path, kind="beacon", url=url, body=orjson.dumps(body).decode()) as page:
            assert await page.result() == "queued"
            await until(lambda: len(bench.sink))
    finally:
        await receiver.stop()
        await bench.close()
    (record,) = items(bench, Signal.LOGS)
    assert record.body.string_value == "bye"
