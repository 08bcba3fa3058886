"""Web pages of other origins may send where the settings let them, and nowhere else."""

import pytest
from aiohttp import web
from support.wire import exchange, opened

from config import Endpoint
from config.decode import settings_from_yaml
from sidecar.errors import RateLimited
from sidecar.net import Listeners
from sidecar.net.cors import Cors, CorsSettings

PAGE = "https://app.example.com"


def lease(text):
    """One route with these settings, one without, and one that refuses."""
    made = Listeners().http(Endpoint("127.0.0.1:0"), "receivers.a")
    cors = Cors(settings_from_yaml(text, CorsSettings))

    async def accept(_request):
        return web.Response(text="ok")

    async def refuse(_request):
        raise RateLimited("slow down", after=3)

    made.route("POST", "/open", accept, cors)
    made.route("POST", "/refusing", refuse, cors)
    made.route("POST", "/closed", accept)
    return made


def preflight(port, path="/open", origin=PAGE, headers="content-type"):
    """What Chromium sends before it posts JSON."""
    return exchange(
        port,
        "OPTIONS",
        path,
        Origin=origin,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers=headers,
    )


async def test_a_preflight_is_allowed_for_an_allowed_origin():
    """204 with the origin itself, since credentials go along, and with the headers that were asked for."""
    async with opened(lease(f"{{allowed_origins: ['{PAGE}'], max_age: 7200}}")) as served:
        answer = await preflight(served.port)
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert answer.headers["access-control-allow-methods"] == "POST"
    assert answer.headers["access-control-allow-headers"] == "content-type"
    assert answer.headers["access-control-max-age"] == "7200"
    assert "origin" in answer.headers["vary"].lower()


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ("*", PAGE, True),
        ("*", "null", True),
        ("https://*.example.com", PAGE, True),
        ("https://*.example.com", "https://a.b.example.com", True),
        ("https://*.example.com", "HTTPS://APP.Example.com", True),
        ("https://*.example.com", "https://example.com", False),
        ("https://*.example.com", "http://app.example.com", False),
        ("https://*.example.com", "https://app.example.com.evil.org", False),
        ("https://app.example.com", "https://appxexample.com", False),
        ("http://localhost:*", "http://localhost:3000", True),
        ("https://app.example.com", "null", False),
    ],
)
async def test_origins_match_as_they_are_written(origins, origin, allowed):
    """A star stands for any characters, everything else for itself, in any case."""
    async with opened(lease(f"{{allowed_origins: ['https://other.example', '{origins}']}}")) as served:
        asked = await preflight(served.port, origin=origin)
        posted = await exchange(served.port, "POST", "/open", Origin=origin)
    assert (asked.status, posted.status) == (204, 200)
    expected = origin if allowed else None
    assert asked.headers.get("access-control-allow-origin") == expected
    assert posted.headers.get("access-control-allow-origin") == expected


@pytest.mark.parametrize(
    ("allowed", "asked", "granted"),
    [
        ("[]", "content-type", True),
        ("[]", "Content-Type, X-Requested-With", True),
        ("[]", "content-type,x-api-key", False),
        ("[X-API-Key]", "content-type,x-api-key", True),
        ("['*']", "content-type,anything", True),
    ],
)
async def test_headers_are_granted_all_or_none(allowed, asked, granted):
    """The ordinary ones always, others where the settings name them."""
    async with opened(lease(f"{{allowed_origins: ['*'], allowed_headers: {allowed}}}")) as served:
        answer = await preflight(served.port, headers=asked)
    names = answer.headers.get("access-control-allow-headers", "")
    assert (set(names.split(", ")) == {name.strip().lower() for name in asked.split(",")}) is granted


async def test_the_response_itself_is_marked_whatever_its_status():
    """Else the page sees a network error instead of its 429, and can't read how long to wait."""
    async with opened(lease("{allowed_origins: ['*']}")) as served:
        for path, status in (("/open", 200), ("/refusing", 429)):
            answer = await exchange(served.port, "POST", path, Origin=PAGE)
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, PAGE)
            assert answer.headers["access-control-expose-headers"] == "Retry-After"
            assert answer.headers["vary"] == "Origin"


async def test_without_an_origin_nothing_is_marked():
    """Requests of programs are served as ever."""
    async with opened(lease("{allowed_origins: ['*']}")) as served:
        answer = await exchange(served.port, "POST", "/open")
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers


async def test_a_route_without_cors_refuses_the_preflight():
    """405, so that the browser never posts."""
    async with opened(lease("{allowed_origins: ['*']}")) as served:
        answer = await preflight(served.port, "/closed")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert "access-control-allow-origin" not in answer.headers
