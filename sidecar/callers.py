"""Who is calling: from an HTTP request or a gRPC call to a `BatchContext`, by the same rules for every receiver."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import grpc.aio
from aiohttp import web

from config import ComponentId, SettingError, Settings
from sidecar.batch import BatchContext
from sidecar.component import Authenticator, Context, Credentials
from sidecar.errors import Unauthenticated

# Never passed on by `include_metadata: true`. Who needs one names it.
_CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})

Headers: TypeAlias = Iterable[tuple[str, str | bytes]]
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class AuthSettings(Settings):
    """Which extension knows the callers. `required: false` lets strangers in, as anonymous ones."""

    authenticator: str
    required: bool = True


class Callers:
    """Tells who is calling one receiver.

    Args:
        context: the receiver's.
        auth: who knows the callers; None asks nobody.
        include_metadata: whether the request's headers go along: all but credentials, or the named ones.
        trusted_proxies: addresses or networks whose `X-Forwarded-For` is believed, over HTTP.
        path: where the settings are, for messages.

    Raises:
        SettingError: there is no such authenticator.
    """

    def __init__(
        self,
        context: Context,
        auth: AuthSettings | None,
        *,
        include_metadata: bool | tuple[str, ...] = False,
        trusted_proxies: Sequence[str] = (),
        path: tuple[str, ...] = (),
    ) -> None:
        self._context = context
        self._clock = context.clock
        self._proxies = networks(trusted_proxies)
        self._include = include_metadata is True or bool(include_metadata)
        self._named = (
            frozenset(name.lower() for name in include_metadata) if isinstance(include_metadata, tuple) else None
        )
        self._required = auth is not None and auth.required
        self._authenticator: ComponentId | None = None
        if auth is not None:
            try:
                context.extension(auth.authenticator, Authenticator)
            except ValueError as error:
                raise SettingError(str(error), *path, "auth", "authenticator") from None
            self._authenticator = ComponentId.parse(auth.authenticator)

    def of_http(self, request: web.BaseRequest) -> BatchContext:
        """Who has sent this request.

        Raises:
            Unauthenticated: nobody known, and the settings ask for somebody.
        """
        peer = plain_address(request.remote or "")
        if self._proxies:
            peer = _first_stranger(peer, ",".join(request.headers.getall("X-Forwarded-For", ())), self._proxies)
        if self._authenticator is None and not self._include:
            return BatchContext(peer=peer, transport="http", received_at=self._clock.time_ns())
        return self._context_of(
            "http", peer, request.headers.items(), certificate_name(request) if self._authenticator else ""
        )

    def of_grpc(self, call: grpc.aio.ServicerContext[Any, Any]) -> BatchContext:
        """Who makes this call. As `of_http`."""
        peer = grpc_peer(call.peer())
        if self._authenticator is None and not self._include:
            return BatchContext(peer=peer, transport="grpc", received_at=self._clock.time_ns())
        name = call.auth_context().get("x509_common_name", ()) if self._authenticator else ()
        return self._context_of(
            "grpc", peer, call.invocation_metadata() or (), b"".join(name).decode("utf-8", "replace")
        )

    def admit(self, context: BatchContext) -> None:
        """Let a caller in, before its request is read.

        Raises:
            Retryable: memory is short, and this caller has to wait.
        """
        self._context.admission.check(context)

    def _context_of(self, transport: str, peer: str, headers: Headers, certificate: str) -> BatchContext:
        texts = _joined(headers)
        identity = None
        if self._authenticator is not None:
            # Looked up each time: a reload may have replaced the extension.
            authenticator = self._context.extensions.get(self._authenticator)
            if isinstance(authenticator, Authenticator):
                identity = authenticator.authenticate(Credentials(texts, peer, certificate))
            if identity is None and self._required:
                raise Unauthenticated("no known credentials; send them as the sidecar's administrator has told you")
        metadata = {name: value for name, value in texts.items() if self._passes(name)} if self._include else {}
        return BatchContext(identity, peer, transport, metadata, self._clock.time_ns())

    def _passes(self, name: str) -> bool:
        return name in self._named if self._named is not None else name not in _CREDENTIALS


def _joined(headers: Headers) -> Mapping[str, str]:
    """Names in lower case, the values of repeated ones joined (RFC 9110 §5.2). Binary metadata is left out."""
    texts: dict[str, str] = {}
    for name, value in headers:
        if isinstance(value, str):
            name = name.lower()  # noqa: PLW2901 (the same name)
            texts[name] = f"{texts[name]}, {value}" if name in texts else value
    return texts


def certificate_name(request: web.BaseRequest) -> str:
    """The common name of the client's verified certificate; "" without one."""
    transport = request.transport
    certificate = transport.get_extra_info("peercert") if transport is not None else None
    subject = certificate.get("subject", ()) if certificate else ()
    return next((value for part in subject for key, value in part if key == "commonName"), "")


@functools.lru_cache(1024)
def grpc_peer(peer: str) -> str:
    """The address in what gRPC calls a peer: `ipv4:127.0.0.1:53412`, `ipv6:%5B::1%5D:53412`, `unix:`."""
    kind, _, rest = peer.partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return ""
    return plain_address(rest.rpartition(":")[0].removeprefix("%5B").removesuffix("%5D").strip("[]"))


@functools.lru_cache(1024)
def plain_address(address: str) -> str:
    """The address as it is compared and shown: an IPv4 caller of an IPv6 socket is an IPv4 caller."""
    if not address.lower().startswith("::ffff:"):
        return address
    try:
        mapped = ipaddress.IPv6Address(address).ipv4_mapped
    except ValueError:
        return address
    return str(mapped) if mapped is not None else address


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """The networks of a `trusted_proxies` setting.

    Raises:
        SettingError: one of them is none.
    """
    found = []
    for index, text in enumerate(texts):
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise SettingError(f"{error}; write for example 10.0.0.0/8 or ::1", "trusted_proxies", index) from None
    return tuple(found)


def _first_stranger(peer: str, hops: str, proxies: Sequence[Network]) -> str:
    """The address nearest to us that is no proxy of ours: what lies beyond it, anybody may have written."""
    address = peer
    for hop in (peer, *reversed(hops.split(","))):
        try:
            parsed = ipaddress.ip_address(hop.strip())
        except ValueError:
            break
        # An IPv4 caller of an IPv6 socket is an IPv4 caller.
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        address = str(parsed)
        if not any(parsed in network for network in proxies):
            break
    return address
