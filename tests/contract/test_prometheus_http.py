"""How the page is served: formats, headers, compression, methods, callers, and what too many scrapers get."""

import asyncio
import contextlib
import hashlib

import aiohttp
import pytest
from support.certificates import Authority
from support.exposition import check, check_protobuf, same
from support.otlp_metrics import batch, buckets, exemplar, gauge, histogram, point, sum_
from support.peers import running

from config import ComponentId
from exporters.prometheus import PrometheusExporter
from sidecar import Authenticator, Identity, Settings
from sidecar.testing import Bench

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROTOBUF = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
# What servers send.
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_2_NATIVE = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@contextlib.asynccontextmanager
async def served(settings="", **surroundings):
    """An exporter on a free port, with a counter, a gauge and a histogram, and a session of its address."""
    bench = Bench(**surroundings)
    exporter = bench.make(PrometheusExporter, f"{{endpoint: 'localhost:0', {settings}}}", "prometheus")
    await exporter.export(
        batch(
            sum_("requests", point(3, {"http.method": "GET"}, exemplars=[exemplar(1, 1, ("ab" * 16, "cd" * 8))])),
            gauge("temperature", point(21.5), unit="Cel"),
            histogram("latency", buckets([0.1, 1], [1, 2, 3], 9.5), unit="s"),
        )
    )
    try:
        async with running(exporter), aiohttp.ClientSession(f"http://localhost:{exporter.port}") as session:
            yield exporter, session
    finally:
        await bench.close()


async def get(session, path="/metrics", **headers):
    """A response that has been read, with its body after decompression."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    async with session.get(path, headers=headers) as response:
        response.body = await response.read()
        return response


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html", TEXT),
        ("application/json;q=0.9", TEXT),
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_2_NATIVE, PROTOBUF),
        (PROMETHEUS_3, f"{OPENMETRICS}; escaping=allow-utf-8"),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text; version=0.0.1", OPENMETRICS.replace("1.0.0", "0.0.1")),
        ('application/openmetrics-text; version="1.0.0"; escaping="dots"', f"{OPENMETRICS}; escaping=dots"),
        ("application/openmetrics-text; version=2.0.0", TEXT),
        ("application/openmetrics-text; q=0, text/plain", TEXT),
        ("application/openmetrics-text; q=0.2, text/plain; q=0.9", TEXT),
        ("text/plain; version=1.0.0", "text/plain; version=1.0.0; charset=utf-8; escaping=underscores"),
        (
            "text/plain; version=1.0.0; escaping=allow-utf8",
            "text/plain; version=1.0.0; charset=utf-8; escaping=allow-utf-8",
        ),
        ("text/plain; version=9.9.9", TEXT),
        ("text/plain; version=x; escaping=nonsense(}", TEXT),
        (
            "text/plain; version=1.0.0; escaping=nonsense",
            "text/plain; version=1.0.0; charset=utf-8; escaping=underscores",
        ),
        ("application/vnd.google.protobuf", TEXT),
        (f"{PROTOBUF}; q=0.1, application/openmetrics-text; q=nonsense", PROTOBUF),
        (',;,=;q=,"', TEXT),
    ],
)
async def test_serves_the_best_acceptable_format(accept, content_type):
    """The highest quality that is served wins, whatever else stands in the header; nothing of it is echoed."""
    async with served() as (_, session):
        response = await get(session, Accept=accept)
    assert (response.status, response.headers["Content-Type"]) == (200, content_type)
    read = (check_protobuf if content_type.startswith(PROTOBUF) else check)(response.body)
    assert 21.5 in read.samples.values()


async def test_every_format_tells_the_same():
    """The three formats carry the same names, labels and values, and a second scrape the same bytes."""
    async with served() as (_, session):
        pages = {}
        for accept in (TEXT, OPENMETRICS, PROTOBUF):
            first, second = await get(session, Accept=accept), await get(session, Accept=accept)
            assert first.body == second.body
            pages[accept] = first.body
    text = check(pages[TEXT]).samples
    assert same(check(pages[OPENMETRICS]).samples, text)
    assert same(check_protobuf(pages[PROTOBUF]).samples, text)


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [
        ("gzip", True), ("gzip, deflate, br", True), ("x-gzip", True), ("*", True), ("gzip;q=0.1", True),
        ("gzip;q=0", False), ("gzip;q=0, *", False), ("identity", False), ("", False), ("gzip;q=nonsense", False),
    ],
)  # fmt: skip
async def test_compresses_where_allowed(accepted, compressed):
    """Gzip where `Accept-Encoding` allows it, also by the wildcard; a quality of 0 forbids it."""
    async with served() as (_, session):
        response = await get(session, Accept_Encoding=accepted)
    assert (response.headers.get("Content-Encoding") == "gzip") == compressed
    assert response.headers["Vary"] == "Accept, Accept-Encoding"
    assert check(response.body).value("requests_total") == 3


def many(count):
    """A gauge with long labels that hardly compress."""
    return gauge(
        "many", *(point(number, n=hashlib.shake_256(b"%d" % number).hexdigest(1900)) for number in range(count))
    )


async def test_streams_a_large_page():
    """A page of several chunks arrives whole, compressed or not."""
    async with served() as (exporter, session):
        await exporter.export(batch(many(200)))
        for accepted in ("gzip", "identity"):
            response = await get(session, Accept_Encoding=accepted)
            assert response.headers["Transfer-Encoding"] == "chunked"
            assert len(check(response.body).values("many")) == 200


async def test_answers_head_and_refuses_other_methods():
    """HEAD has the headers of GET and no body; others are told what is allowed; other paths are not found."""
    async with served("path: /scrape") as (_, session):
        async with session.head("/scrape", headers={"Accept": OPENMETRICS}) as response:
            assert (response.status, response.headers["Content-Type"]) == (200, OPENMETRICS)
            assert await response.read() == b""
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            async with session.request(method, "/scrape") as response:
                assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
        assert (await get(session, "/metrics")).status == 404


async def test_openmetrics_can_be_switched_off():
    """Then text is served to who asks for it; protobuf stays."""
    async with served("enable_open_metrics: false") as (_, session):
        assert (await get(session, Accept=PROMETHEUS_2)).headers["Content-Type"] == TEXT
        assert (await get(session, Accept=PROMETHEUS_2_NATIVE)).headers["Content-Type"] == PROTOBUF


async def test_too_many_scrapes_are_told_to_come_again():
    """One that does not read its page holds a place; the next one over the limit gets 503 with Retry-After."""
    async with served("max_concurrent_scrapes: 1") as (exporter, session):
        await exporter.export(batch(many(3000)))
        _, writer = await asyncio.open_connection("localhost", exporter.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        response = await answer_of(session, 503)
        assert response.headers["Retry-After"] == "1"
        writer.transport.abort()
        await answer_of(session, 200)


async def answer_of(session, status):
    """The first answer with that status."""
    for _ in range(500):
        response = await get(session)
        if response.status == status:
            return response
        await asyncio.sleep(0.01)
    raise AssertionError(f"never answered {status}")


class KeyRing(Authenticator[Settings]):
    """Knows one user and one bearer."""

    def authenticate(self, credentials):
        """Who has shown a right credential."""
        known = credentials.headers.get("authorization") in {"Basic cHJvbTpzZWNyZXQ=", "Bearer key"}
        return Identity("basic", "prom") if known else None


async def test_asks_who_scrapes_where_told_to():
    """Without a known credential 401 says which are taken, with one the page comes."""
    ring = Bench().make(KeyRing, name="ring")
    async with served("auth: {authenticator: ring}", extensions={ComponentId.parse("ring"): ring}) as (_, session):
        refused = await get(session)
        assert (refused.status, refused.headers["WWW-Authenticate"].split()[0]) == (401, "Basic")
        assert b"requests" not in refused.body
        for credential in (aiohttp.encode_basic_auth("prom", "secret"), "Bearer key"):
            assert check((await get(session, Authorization=credential)).body).value("requests_total") == 3


async def test_serves_tls_and_may_ask_for_a_certificate(tmp_path):
    """HTTPS with the settings' certificate; with a client authority only its clients get the page."""
    authority = Authority(tmp_path)
    tls = (
        f"tls: {{cert_file: {authority.server_cert_file}, key_file: {authority.server_key_file}, "
        f"client_ca_file: {authority.ca_file}}}"
    )
    async with served(tls) as (exporter, session):
        url = f"https://localhost:{exporter.port}/metrics"
        async with session.get(url, ssl=authority.client_context(with_certificate=True)) as response:
            assert check(await response.read()).value("requests_total") == 3
        with pytest.raises(aiohttp.ClientError):
            await session.get(url, ssl=authority.client_context())


async def test_counts_scrapes():
    """Scrapes by format, and what they cost, are among the sidecar's own metrics."""
    async with served() as (exporter, session):
        for accept in (TEXT, OPENMETRICS, OPENMETRICS):
            page = (await get(session, Accept=accept)).body
        metrics = exporter.context.meter._metrics
        assert metrics.value("sidecar_prometheus_scrapes", format="openmetrics") == 2
        assert metrics.value("sidecar_prometheus_scrapes", format="text") == 1
        assert metrics.value("sidecar_prometheus_scrape_duration_seconds") == 3
        assert metrics.value("sidecar_prometheus_scrape_bytes") > len(page)
        assert metrics.value("sidecar_prometheus_series") == 3
