"""Knows callers by what they show: bearer tokens, basic credentials, JWTs, client certificates."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from config import Duration, Secret, SettingError, Settings
from config.decode import decode
from config.nodes import parse
from config.problems import Problem
from sidecar.batch import Identity
from sidecar.component import Authenticator, Context, Credentials
from sidecar.errors import StartError

_DIGEST_PREFIX: Final = "sha256:"
_DIGEST: Final = re.compile(r"sha256:[0-9a-fA-F]{64}")
# The wire contract's machine id (telemetry events, §2): the first 8 bytes of the token's SHA-256.
_MACHINE_ID_BYTES: Final = 8
# How many verified JWTs are remembered: verifying a signature takes 0.1 ms, more than many a request.
_MAX_VERIFIED_JWTS: Final = 4096

_Algorithm: TypeAlias = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512"
]
# What a file looked like when it was read. The inode tells a file that was moved into place.
_Signature: TypeAlias = tuple[int, int, int] | None


class TokenSettings(Settings):
    """One credential that is known.

    Attributes:
        kind: `provider` (tied to a machine), `api_key` (known by its account), `bearer`, `basic` (known by name).
        token: the text that a caller shows (`user:password` for `basic`), or `sha256:` and the hex digest of it.
        name: what logs and rate-limit keys show; by default the beginning of the digest.
        account: whose it is.
    """

    kind: Literal["provider", "api_key", "bearer", "basic"]
    token: Secret
    name: str = ""
    account: str = ""

    def __post_init__(self) -> None:
        text = self.token.reveal()
        if not text:
            raise SettingError("is empty; write a token, or leave the entry out", "token")
        if text.startswith(_DIGEST_PREFIX):
            if not _DIGEST.fullmatch(text):
                raise SettingError("is not a digest; write sha256: and 64 hex digits", "token")
        elif self.kind == "basic" and ":" not in text:
            raise SettingError("has no colon; write user:password", "token")

    @property
    def digest(self) -> bytes:
        """The SHA-256 of what a caller shows."""
        text = self.token.reveal()
        if text.startswith(_DIGEST_PREFIX):
            return bytes.fromhex(text.removeprefix(_DIGEST_PREFIX))
        return sha256(text.encode()).digest()


class TokenFile(Settings):
    """A tokens file.

    Attributes:
        tokens: the same entries as in the document.
    """

    tokens: tuple[TokenSettings, ...] = ()

    def __post_init__(self) -> None:
        _check_unique(self.tokens)


class JwtSettings(Settings):
    """Whose JWTs are believed, by one key or one key set. A JWT must have an expiry.

    Attributes:
        key: PEM text, or a shared secret for HS256 and its like.
        key_file: the same in a file.
        jwks_file: a JSON Web Key Set.
        algorithms: those that are believed, where the key fits.
        issuer: the `iss` that a JWT must have; null asks for none.
        audience: the `aud` that a JWT must have; null asks for none.
        leeway: how far clocks may differ.
        name_claim: where the caller's name stands.
        account_claim: where the caller's account stands.
    """

    key: Secret = Secret("")
    key_file: str = ""
    jwks_file: str = ""
    algorithms: tuple[_Algorithm, ...] = ("RS256", "ES256", "EdDSA")
    issuer: str | None = None
    audience: str | None = None
    leeway: Duration = Duration("30s")
    name_claim: str = "sub"
    account_claim: str = "sub"

    def __post_init__(self) -> None:
        if sum(map(bool, (self.key, self.key_file, self.jwks_file))) != 1:
            raise SettingError("needs one key; write exactly one of key, key_file and jwks_file")
        if not self.algorithms:
            raise SettingError("is empty; write for example [RS256]", "algorithms")


class TokenAuthSettings(Settings):
    """Which callers are known.

    Attributes:
        file: a tokens file, in YAML or JSON.
        tokens: more tokens, for example from the environment; they win over the file's.
        jwt: whose JWTs are believed.
        client_certificates: the name in a client certificate that the listener has verified is an identity, too.
        reload_interval: how often the files are looked at; those that have changed are read again.
    """

    file: str = ""
    tokens: tuple[TokenSettings, ...] = ()
    jwt: JwtSettings | None = None
    client_certificates: bool = True
    reload_interval: Duration = Duration("5s")

    def __post_init__(self) -> None:
        _check_unique(self.tokens)
        if self.reload_interval < 0.01:
            raise SettingError("is too short; write for example 5s", "reload_interval")


def _check_unique(tokens: Iterable[TokenSettings]) -> None:
    first: dict[tuple[bool, bytes], int] = {}
    for index, one in enumerate(tokens):
        earlier = first.setdefault((one.kind == "basic", one.digest), index)
        if earlier != index:
            raise SettingError(f"is the same as tokens[{earlier}]; remove one of the two", "tokens", index, "token")


class TokenAuth(Authenticator[TokenAuthSettings]):
    """Tells who shows a token, credentials, a JWT or a client certificate.

    The files are read at the start, which fails when one is wrong, and again when they change: then a wrong one
    changes nothing, and shows in health and in the log. No credential is ever shown anywhere.
    """

    def __init__(self, settings: TokenAuthSettings, context: Context) -> None:
        super().__init__(settings, context)
        jwt = settings.jwt
        names = [settings.file, jwt.key_file if jwt else "", jwt.jwks_file if jwt else ""]
        self._files = [Path(name) for name in names if name]
        self._seen: list[_Signature] = []
        self._known = _Known((), None)

    async def start(self) -> None:
        """Read the files, and watch them."""
        try:
            self._seen, self._known = await asyncio.to_thread(self._load)
        except _Unusable as error:
            raise StartError(f"extensions.{self.context.id}: {error}") from None
        self.context.health.ok()
        if self._files:
            self.context.spawn(self._watch(), "watch")

    def authenticate(self, credentials: Credentials) -> Identity | None:
        """As the base says. What the caller shows in `Authorization` comes before its certificate."""
        scheme, _, shown = credentials.headers.get("authorization", "").partition(" ")
        identity = self._known.identity(scheme.lower(), shown.strip()) if shown else None
        if identity is None and credentials.certificate_name and self.settings.client_certificates:
            return Identity("mtls", credentials.certificate_name)
        return identity

    async def refresh(self) -> None:
        """Read the files again if one has changed."""
        seen = await asyncio.to_thread(self._look)
        if seen == self._seen:
            return
        try:
            self._seen, self._known = await asyncio.to_thread(self._load)
        except _Unusable as error:
            self._seen = seen
            self.context.logger.error("the tokens stay as they were: %s", error)
            self.context.health.degraded(f"the tokens stay as they were: {error}")
        else:
            self.context.logger.info("read again: %d tokens", len(self._known))
            self.context.health.ok()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.settings.reload_interval)
            await self.refresh()

    def _look(self) -> list[_Signature]:
        return [_signature_of(path) for path in self._files]

    def _load(self) -> tuple[list[_Signature], _Known]:
        # Looked at first: a file that changes while it is read will look different next time.
        seen = self._look()
        from_file = _read_tokens(self.settings.file) if self.settings.file else ()
        verifier = _Verifier(self.settings.jwt) if self.settings.jwt is not None else None
        return seen, _Known((*from_file, *self.settings.tokens), verifier)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.context.id} [{len(self._known)} tokens]>"


class _Unusable(Exception):
    """A file, or a key, that can't be used: which, and why."""


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    identity: Identity


class _Known:
    """Everything that is known at one time. Never changed: a reload makes a new one."""

    def __init__(self, tokens: Sequence[TokenSettings], verifier: _Verifier | None) -> None:
        self._basic = {one.digest: _entry_of(one) for one in tokens if one.kind == "basic"}
        self._bearer = {one.digest: _entry_of(one) for one in tokens if one.kind != "basic"}
        self._verifier = verifier

    def __len__(self) -> int:
        return len(self._basic) + len(self._bearer)

    def identity(self, scheme: str, shown: str) -> Identity | None:
        """Who shows this in an `Authorization` header."""
        if scheme == "bearer":
            # Header values hold any bytes: those that are no UTF-8 come as lone surrogates, which no token has.
            identity = _find(self._bearer, shown.encode(errors="surrogatepass"))
            if identity is None and self._verifier is not None and shown.count(".") == 2:
                return self._verifier.identity(shown)
            return identity
        if scheme == "basic":
            try:
                return _find(self._basic, base64.b64decode(shown, validate=True))
            except (binascii.Error, ValueError):
                return None
        return None


def _find(entries: Mapping[bytes, _Entry], shown: bytes) -> Identity | None:
    """The identity of a credential.

    The time taken tells nothing: what is looked up and compared are digests, which a caller can't steer.
    """
    digest = sha256(shown).digest()
    entry = entries.get(digest)
    return entry.identity if entry is not None and hmac.compare_digest(entry.digest, digest) else None


def _entry_of(one: TokenSettings) -> _Entry:
    digest = one.digest
    short = f"tok:{digest[:_MACHINE_ID_BYTES].hex()}"
    machine_id = short if one.kind == "provider" else ""
    return _Entry(digest, Identity(one.kind, one.name or short, machine_id, one.account))


def _signature_of(path: Path) -> _Signature:
    try:
        status = path.stat()
    except OSError:
        return None
    # A change of permissions changes only ctime.
    return status.st_ino, status.st_size, max(status.st_mtime_ns, status.st_ctime_ns)


def _read(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise _Unusable(f"{name}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise _Unusable(f"{name}: is not UTF-8 text") from None


def _read_tokens(name: str) -> tuple[TokenSettings, ...]:
    problems: list[Problem] = []
    decoded = decode(TokenFile, parse(_read(name), name, problems), problems)
    errors = [str(problem) for problem in problems if problem.severity == "error"]
    if decoded is None or errors:
        raise _Unusable("\n".join(errors))
    return decoded.tokens


class _Verifier:
    """Verifies JWTs against the configured key or key set, each one once: who shows it, and until when, is kept."""

    def __init__(self, settings: JwtSettings) -> None:
        try:
            import jwt
        except ImportError:
            raise _Unusable("jwt: PyJWT is not installed; install 'PyJWT[crypto]' beside the sidecar") from None
        self._jwt = jwt
        self._settings = settings
        self._source = settings.jwks_file or settings.key_file or "jwt.key"
        # By key id; "" for a key without one.
        self._keys: dict[str, dict[str, Any]] = {}
        # By the digest of the JWT, the least recently used first.
        self._verified: OrderedDict[bytes, tuple[Identity, float]] = OrderedDict()
        if settings.jwks_file:
            self._add_set(_read(settings.jwks_file))
        else:
            self._add("", settings.key.reveal() or _read(settings.key_file).strip(), settings.algorithms)
        if not any(self._keys.values()):
            wanted = ", ".join(settings.algorithms)
            raise _Unusable(f"{self._source}: holds no key for {wanted}; write a fitting key, or other jwt.algorithms")

    def _add_set(self, text: str) -> None:
        try:
            keys = self._jwt.PyJWKSet.from_json(text).keys
        except (self._jwt.PyJWTError, ValueError, TypeError, AttributeError) as error:
            raise _Unusable(f"{self._source}: is not a JSON Web Key Set: {error}") from None
        for key in keys:
            # The algorithm that the key names, or the usual one of its type.
            self._add(key.key_id or "", key.key, {key.algorithm_name} & set(self._settings.algorithms))

    def _add(self, key_id: str, key: Any, algorithms: Iterable[str]) -> None:
        """Prepare a key, once, for each algorithm that it fits: which no attacker can then choose."""
        fitting = self._keys.setdefault(key_id, {})
        for name in algorithms:
            algorithm = self._jwt.get_algorithm_by_name(name)
            try:
                prepared = algorithm.prepare_key(key)
            except (self._jwt.PyJWTError, ValueError, TypeError):
                continue
            weakness = algorithm.check_key_length(prepared)
            if weakness is not None:
                raise _Unusable(f"{self._source}: {weakness}")
            fitting[name] = prepared

    def _key_for(self, header: Mapping[str, Any]) -> Any:
        """The key that the header names; one that is alone need not be named. Raises LookupError."""
        key_id = next(iter(self._keys)) if len(self._keys) == 1 and "kid" not in header else header.get("kid", "")
        return self._keys[key_id if self._settings.jwks_file else ""][header["alg"]]

    def identity(self, token: str) -> Identity | None:
        """Who the JWT says its bearer is; None when it can't be believed, or no longer."""
        digest = sha256(token.encode(errors="surrogatepass")).digest()
        known = self._verified.get(digest)
        if known is None:
            known = self._verify(token)
            if known is None:
                return None
            self._verified[digest] = known
            if len(self._verified) > _MAX_VERIFIED_JWTS:
                self._verified.popitem(last=False)
        identity, until = known
        if time.time() >= until:
            del self._verified[digest]
            return None
        self._verified.move_to_end(digest)
        return identity

    def _verify(self, token: str) -> tuple[Identity, float] | None:
        """Who the JWT says its bearer is, and when that ends."""
        settings = self._settings
        try:
            header = self._jwt.get_unverified_header(token)
            claims = self._jwt.decode(
                token,
                self._key_for(header),
                algorithms=[header["alg"]],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway,
                options={"require": ["exp"], "verify_aud": settings.audience is not None},
            )
            until = int(claims["exp"]) + settings.leeway
        except (self._jwt.PyJWTError, LookupError, ValueError, TypeError, RecursionError):
            return None
        name, account = claims.get(settings.name_claim), claims.get(settings.account_claim)
        if not isinstance(name, str) or not name:
            return None
        return Identity("jwt", name, account_id=account if isinstance(account, str) else ""), until
