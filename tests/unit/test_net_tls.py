"""TLS and mTLS of both servers, and certificates that change under them."""

import contextlib
import logging
import shutil
import ssl

import grpc.aio
import pytest
from aiohttp import web
from support.certificates import Authority
from support.wire import connect, opened, request, until

from config import Duration, Endpoint, Secret, SettingError
from config.decode import settings_from_yaml
from config.problems import ConfigError
from sidecar.callers import certificate_name
from sidecar.errors import StartError
from sidecar.net import GrpcServerSettings, HttpServerSettings, Listeners
from sidecar.net.tls import TlsServerSettings

ANY = Endpoint("127.0.0.1:0")
KINDS = pytest.mark.parametrize("kind", ["http", "grpc"])
NAME = (("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1))


@pytest.fixture
def authority(tmp_path):
    """An authority whose server certificate lies in files."""
    return Authority(tmp_path)


def tls(authority, **more):
    """The server's settings."""
    return TlsServerSettings(cert_file=str(authority.server_cert_file), key_file=str(authority.server_key_file), **more)


def lease(kind, settings):
    """A lease that answers with the name in the client's certificate."""
    if kind == "http":

        async def answer(request):
            return web.Response(text=certificate_name(request))

        made = Listeners().http(ANY, "receivers.a: endpoint", HttpServerSettings(tls=settings))
        made.route("POST", "/", answer)
        return made

    async def name(_data, call):
        return b"".join(call.auth_context().get("x509_common_name", ()))

    made = Listeners().grpc(ANY, "receivers.a: endpoint", GrpcServerSettings(tls=settings))
    made.unary("s.S", "Name", name)
    return made


async def ask(kind, port, authority, *, with_certificate=False):
    """The server's answer; None when it won't talk."""
    if kind == "http":
        with contextlib.suppress(ssl.SSLError, ConnectionError, IndexError):
            async with connect(port, tls=authority.client_context(with_certificate=with_certificate)) as wire:
                await wire.send(request("POST", "/"))
                return (await wire.answer()).body
        return None
    credentials = authority.client_credentials(with_certificate=with_certificate)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=NAME) as channel:
        with contextlib.suppress(grpc.aio.AioRpcError):
            return await channel.unary_unary("/s.S/Name")(b"")
    return None


@KINDS
async def test_tls_serves_the_certificate(kind, authority):
    """A client that trusts the authority is served without a certificate of its own."""
    async with opened(lease(kind, tls(authority))) as served:
        assert await ask(kind, served.port, authority) == b""
        assert served.address == f"{kind}s://127.0.0.1:{served.port}"


@KINDS
async def test_tls_takes_inline_pem(kind, authority):
    """Texts do what files do."""
    settings = TlsServerSettings(
        cert_pem=Secret(authority.server_cert_file.read_text()), key_pem=Secret(authority.server_key_file.read_text())
    )
    async with opened(lease(kind, settings)) as served:
        assert await ask(kind, served.port, authority) == b""


@KINDS
async def test_mtls_asks_clients_for_their_certificate(kind, authority):
    """With a client authority, strangers are turned away and the others are known by name."""
    async with opened(lease(kind, tls(authority, client_ca_file=str(authority.ca_file)))) as served:
        assert await ask(kind, served.port, authority) is None
        assert await ask(kind, served.port, authority, with_certificate=True) == b"client-1"


async def test_a_minimum_version_turns_older_clients_away(authority):
    """TLS 1.2 is served by default, and not where 1.3 is the minimum."""
    old = authority.client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    for minimum, served_to_old in (("1.2", True), ("1.3", False)):
        async with opened(lease("http", tls(authority, min_version=minimum))) as served:
            with contextlib.nullcontext() if served_to_old else pytest.raises((ssl.SSLError, ConnectionError)):
                async with connect(served.port, tls=old):
                    pass


def test_grpc_does_not_promise_a_minimum_that_it_can_not_keep(authority):
    """The library has no such setting, so asking for it is a problem and not a silent nothing."""
    with pytest.raises(SettingError, match="knows no higher minimum"):
        GrpcServerSettings(tls=tls(authority, min_version="1.3"))


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("{cert_file: a.pem}", "", "needs both a certificate and its key"),
        ("{key_file: a.key}", "", "needs both a certificate and its key"),
        ("{cert_file: a, cert_pem: b, key_file: c}", "cert_pem", "both cert_file and cert_pem are given"),
        ("{cert_file: a, key_file: b, insecure: true}", "insecure", "unknown key 'insecure'"),
    ],
)
def test_settings_that_do_not_belong_together_are_a_problem(text, place, message):
    """Found before anything starts, at its place."""
    with pytest.raises(ConfigError) as problems:
        settings_from_yaml(text, TlsServerSettings)
    (problem,) = problems.value.problems
    assert ".".join(map(str, problem.path)) == place
    assert message in problem.message


@KINDS
async def test_files_that_can_not_be_used_stop_the_start(kind, authority, tmp_path):
    """A missing file and a key of another certificate: each named, and no secret shown."""
    other = tmp_path / "other"
    other.mkdir()
    stranger = Authority(other)
    for key_file, message in (
        (tmp_path / "none.key", f"receivers.a: endpoint: tls.key_file: can't read {tmp_path / 'none.key'}: No such"),
        (stranger.server_key_file, "receivers.a: endpoint: tls: .*unusable .*mismatch"),
        (authority.server_cert_file, "receivers.a: endpoint: tls: .*unusable"),
    ):
        settings = TlsServerSettings(cert_file=str(authority.server_cert_file), key_file=str(key_file))
        with pytest.raises(StartError, match=message) as failure:
            await lease(kind, settings).open()
        assert "PRIVATE" not in str(failure.value)


@KINDS
async def test_a_renewed_certificate_is_served_without_a_restart(kind, authority, tmp_path, caplog):
    """While the files don't fit together the old one is served and one warning is written; then the new one is."""
    caplog.set_level(logging.INFO, "sidecar.net.tls")
    folder = tmp_path / "new"
    folder.mkdir()
    renewed = Authority(folder)
    settings = tls(authority, reload_interval=Duration("10ms"))
    async with opened(lease(kind, settings)) as served:
        shutil.copy(renewed.server_cert_file, authority.server_cert_file)
        await until(lambda: "previous certificate stays" in caplog.text)
        assert await ask(kind, served.port, authority) == b""
        shutil.copy(renewed.server_key_file, authority.server_key_file)
        await until(lambda: "new TLS certificate in use" in caplog.text)
        assert await ask(kind, served.port, renewed) == b""
        assert await ask(kind, served.port, authority) is None
    assert caplog.text.count("previous certificate stays") == 1


@KINDS
async def test_a_client_without_tls_costs_nothing(kind, authority):
    """Plain text on a TLS port is closed, and others are served on."""
    async with opened(lease(kind, tls(authority))) as served:
        async with connect(served.port) as wire:
            await wire.send(request("POST", "/"))
            await wire.rest()
        assert await ask(kind, served.port, authority) == b""


async def test_renewal_keeps_connections(authority, tmp_path, caplog):
    """A connection that is open goes on when the acceptors are replaced."""
    caplog.set_level(logging.INFO, "sidecar.net.tls")
    folder = tmp_path / "new"
    folder.mkdir()
    renewed = Authority(folder)
    async with (
        opened(lease("http", tls(authority, reload_interval=Duration("10ms")))) as served,
        connect(served.port, tls=authority.client_context()) as wire,
    ):
        shutil.copy(renewed.server_key_file, authority.server_key_file)
        shutil.copy(renewed.server_cert_file, authority.server_cert_file)
        await until(lambda: "new TLS certificate in use" in caplog.text)
        await wire.send(request("POST", "/"))
        assert (await wire.answer()).status == 200
