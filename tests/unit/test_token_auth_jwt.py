"""Callers known by a JWT: only one that is signed by the configured key, in date, and meant for us."""

from __future__ import annotations

import json
import time
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from sidecar.batch import Identity
from sidecar.component import Credentials
from sidecar.errors import StartError
from sidecar.extensions import token_auth
from sidecar.extensions.token_auth import TokenAuth
from sidecar.testing import Bench

RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
SECRET = "a shared secret of at least thirty-two bytes"
ALICE = Identity("jwt", "alice", account_id="alice")


def pem(key) -> str:
    """The public half."""
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


def signed(key, algorithm: str, headers: dict | None = None, **claims) -> str:
    """A JWT of Alice's that is valid for an hour."""
    claims = {"sub": "alice", "exp": time.time() + 3600} | claims
    return jwt.encode({k: v for k, v in claims.items() if v is not None}, key, algorithm, headers)


@pytest.fixture
async def bench():
    """What surrounds the extension."""
    bench = Bench()
    yield bench
    await bench.close()


@pytest.fixture
def key_file(tmp_path):
    """A PEM file with the RSA key."""
    path = tmp_path / "key.pem"
    path.write_text(pem(RSA))
    return path


async def started(bench: Bench, settings: str) -> TokenAuth:
    """The extension, ready."""
    auth = bench.make(TokenAuth, settings, "token_auth")
    await auth.start()
    return auth


def who(auth: TokenAuth, token: str) -> Identity | None:
    """Who shows this token."""
    return auth.authenticate(Credentials({"authorization": f"Bearer {token}"}))


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (EC, "ES256"), (ED, "EdDSA")])
async def test_a_signed_jwt_is_an_identity(bench, tmp_path, key, algorithm):
    """By a PEM file; the algorithm follows from the key."""
    path = tmp_path / "key.pem"
    path.write_text(pem(key))
    auth = await started(bench, f"jwt: {{key_file: {path}}}")

    assert who(auth, signed(key, algorithm)) == ALICE


async def test_a_shared_secret_needs_its_algorithm(bench):
    """HS256 is believed only where the settings say so."""
    auth = await started(bench, f"jwt: {{key: '{SECRET}', algorithms: [HS256]}}")
    assert who(auth, signed(SECRET, "HS256")) == ALICE

    with pytest.raises(StartError, match=r"jwt\.key: holds no key for RS256, ES256, EdDSA"):
        await started(bench, f"jwt: {{key: '{SECRET}'}}")
    with pytest.raises(StartError, match=r"jwt\.key: .*below the minimum") as refused:
        await started(bench, "jwt: {key: hush-hush, algorithms: [HS256]}")
    assert "hush-hush" not in str(refused.value)


@pytest.mark.parametrize(
    "token",
    [
        signed(OTHER_RSA, "RS256"),
        signed(RSA, "RS512"),
        signed(EC, "ES256"),
        signed(pem(RSA).replace("-----", "."), "HS256"),
        jwt.encode({"sub": "alice", "exp": time.time() + 3600}, None, "none"),
        signed(RSA, "RS256", exp=time.time() - 3600),
        signed(RSA, "RS256", nbf=time.time() + 3600),
        signed(RSA, "RS256", exp=None),
        signed(RSA, "RS256", sub=None),
        signed(RSA, "RS256", sub=""),
        signed(RSA, "RS256")[:-4],
        "a.b.c",
        "..",
        "eyJhbGciOiJSUzI1NiJ9..",
    ],
)
async def test_a_jwt_that_cannot_be_believed_is_nobody(bench, key_file, token):
    """Another key or algorithm, out of date, without expiry or subject, or no JWT at all."""
    auth = await started(bench, f"jwt: {{key_file: {key_file}}}")

    assert who(auth, token) is None


async def test_clocks_may_differ_by_the_leeway(bench, key_file):
    """Half a minute by default."""
    auth = await started(bench, f"jwt: {{key_file: {key_file}}}")

    assert who(auth, signed(RSA, "RS256", exp=time.time() - 20)) == ALICE


async def test_issuer_and_audience_are_checked_where_they_are_set(bench, key_file):
    """Otherwise a token may name any."""
    strict = await started(bench, f"jwt: {{key_file: {key_file}, issuer: privy.io, audience: app}}")
    loose = await started(bench, f"jwt: {{key_file: {key_file}}}")

    fitting = signed(RSA, "RS256", iss="privy.io", aud=["app", "other"])
    assert who(strict, fitting) == ALICE
    for wrong in ({}, {"iss": "privy.io"}, {"iss": "privy.io", "aud": "x"}, {"iss": "x", "aud": "app"}):
        assert who(strict, signed(RSA, "RS256", **wrong)) is None
    assert who(loose, fitting) == ALICE


async def test_claims_may_have_other_names(bench, key_file):
    """An account that is no text is none."""
    auth = await started(bench, f"jwt: {{key_file: {key_file}, name_claim: email, account_claim: org}}")

    assert who(auth, signed(RSA, "RS256", email="a@b.c", org="o1")) == Identity("jwt", "a@b.c", account_id="o1")
    assert who(auth, signed(RSA, "RS256", email="a@b.c", org=["o1"])) == Identity("jwt", "a@b.c")
    assert who(auth, signed(RSA, "RS256")) is None


def key_set(path: Path, **keys) -> Path:
    """A JWKS file."""
    entries = []
    for key_id, key in keys.items():
        algorithm = jwt.get_algorithm_by_name("RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256")
        entries.append(json.loads(algorithm.to_jwk(key.public_key())) | {"kid": key_id, "use": "sig"})
    path.write_text(json.dumps({"keys": entries}))
    return path


async def test_a_key_set_is_searched_by_key_id(bench, tmp_path):
    """A key that is alone need not be named."""
    path = key_set(tmp_path / "jwks.json", a=RSA, b=EC)
    both = await started(bench, f"jwt: {{jwks_file: {path}}}")
    alone = await started(bench, f"jwt: {{jwks_file: {key_set(tmp_path / 'one.json', a=RSA)}}}")

    assert who(both, signed(RSA, "RS256", {"kid": "a"})) == ALICE
    assert who(both, signed(EC, "ES256", {"kid": "b"})) == ALICE
    assert who(both, signed(EC, "ES256", {"kid": "a"})) is None
    assert who(both, signed(RSA, "RS256", {"kid": "c"})) is None
    assert who(both, signed(RSA, "RS256")) is None
    assert who(alone, signed(RSA, "RS256")) == ALICE


async def test_rotated_keys_are_read_again(bench, tmp_path):
    """The old key is believed no longer, the new one from now on."""
    path = key_set(tmp_path / "jwks.json", a=RSA)
    auth = await started(bench, f"jwt: {{jwks_file: {path}}}")
    token = signed(RSA, "RS256", {"kid": "a"})
    assert who(auth, token) == ALICE
    key_set(path, a=OTHER_RSA, b=EC)

    await auth.refresh()

    assert who(auth, token) is None
    assert who(auth, signed(OTHER_RSA, "RS256", {"kid": "a"})) == ALICE


async def test_a_signature_is_verified_once_and_believed_until_it_expires(bench, key_file, monkeypatch):
    """Verifying takes long; what was verified ends when the JWT says, and the leeway after."""
    auth = await started(bench, f"jwt: {{key_file: {key_file}}}")
    token, other = signed(RSA, "RS256"), signed(RSA, "RS256", sub="bob")
    assert who(auth, token) == ALICE

    def refuse(*_args, **_options):
        raise jwt.InvalidTokenError

    monkeypatch.setattr(jwt, "decode", refuse)
    now = time.time()
    for later, expected in ((3600 + 25, ALICE), (3600 + 35, None), (0, None)):
        monkeypatch.setattr(time, "time", lambda later=later: now + later)
        assert who(auth, token) == expected
    assert who(auth, other) is None


async def test_the_newest_verified_jwts_are_kept(bench, key_file, monkeypatch):
    """A bounded number; the others are verified again."""
    auth = await started(bench, f"jwt: {{key_file: {key_file}}}")
    monkeypatch.setattr(token_auth, "_MAX_VERIFIED_JWTS", 2)
    decode, verified = jwt.decode, []
    monkeypatch.setattr(
        jwt, "decode", lambda token, *args, **options: verified.append(token) or decode(token, *args, **options)
    )
    a, b, c = (signed(RSA, "RS256", sub=name) for name in "abc")
    for token in (a, b, a, c, a, b):
        assert who(auth, token) is not None
    assert verified == [a, b, c, b]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("not JSON", "is not a JSON Web Key Set"),
        ("[]", "is not a JSON Web Key Set"),
        ('{"keys": []}', "is not a JSON Web Key Set"),
        ('{"keys": [7]}', "is not a JSON Web Key Set"),
        ('{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "a"}]}', "holds no key for RS256, ES256, EdDSA"),
    ],
)
async def test_a_wrong_key_set_stops_the_start(bench, tmp_path, text, problem):
    """The message names the file."""
    path = tmp_path / "jwks.json"
    path.write_text(text)

    with pytest.raises(StartError, match=problem) as refused:
        await started(bench, f"jwt: {{jwks_file: {path}}}")
    assert str(path) in str(refused.value)


async def test_a_known_token_needs_no_jwt_key(bench, key_file):
    """Tokens come first, also those that look like a JWT."""
    auth = await started(
        bench, f"{{tokens: [{{kind: api_key, token: a.b.c, name: ci}}], jwt: {{key_file: {key_file}}}}}"
    )

    assert who(auth, "a.b.c") == Identity("api_key", "ci")


SEGMENT = st.text(st.characters(codec="ascii")) | st.sampled_from(signed(RSA, "RS256").split("."))


@given(SEGMENT, SEGMENT, SEGMENT)
async def test_whatever_looks_like_a_jwt_raises_nothing(header, payload, signature):
    """Only the whole token of the configured key is Alice."""
    auth = await started(Bench(), f"jwt: {{key: {json.dumps(pem(RSA))}}}")

    assert who(auth, f"{header}.{payload}.{signature}") in {None, ALICE}
