"""Callers known by tokens and certificates: what is shown, what is known of it, and what a reload changes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.problems import ConfigError
from sidecar.batch import Identity
from sidecar.component import Credentials
from sidecar.errors import StartError
from sidecar.extensions.token_auth import TokenAuth
from sidecar.testing import Bench

PROVIDER = "eigen-provider-token"
API_KEY_DIGEST = hashlib.sha256(b"sk-console").hexdigest().upper()
PROVIDER_DIGEST = hashlib.sha256(PROVIDER.encode()).hexdigest()
MACHINE = f"tok:{PROVIDER_DIGEST[:16]}"
TOKENS = f"""
tokens:
  - {{kind: provider, token: {PROVIDER}, account: acct_mac}}
  - {{kind: api_key, token: "sha256:{API_KEY_DIGEST}", name: console, account: acct_web}}
  - {{kind: bearer, token: plain-bearer, name: gateway}}
  - {{kind: basic, token: "alice:pass:word", name: alice}}
"""


@pytest.fixture
async def bench():
    """What surrounds the extension."""
    bench = Bench()
    yield bench
    await bench.close()


@pytest.fixture
def file(tmp_path):
    """A tokens file."""
    path = tmp_path / "tokens.yaml"
    path.write_text(TOKENS)
    return path


def shown(header: str | None, certificate: str = "") -> Credentials:
    """What a caller shows."""
    return Credentials({} if header is None else {"authorization": header}, "192.0.2.1", certificate)


def basic(credentials: str) -> str:
    """An `Authorization` header."""
    return "Basic " + base64.b64encode(credentials.encode()).decode()


async def started(bench: Bench, settings: str) -> TokenAuth:
    """The extension, ready."""
    auth = bench.make(TokenAuth, settings, "token_auth")
    await auth.start()
    return auth


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"Bearer {PROVIDER}", Identity("provider", MACHINE, MACHINE, "acct_mac")),
        (f"bearer  {PROVIDER} ", Identity("provider", MACHINE, MACHINE, "acct_mac")),
        ("Bearer sk-console", Identity("api_key", "console", "", "acct_web")),
        ("Bearer plain-bearer", Identity("bearer", "gateway")),
        (basic("alice:pass:word"), Identity("basic", "alice")),
        (None, None),
        ("", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("Bearer unknown", None),
        (f"Bearer sha256:{PROVIDER_DIGEST}", None),
        (f"Bearer {PROVIDER_DIGEST}", None),
        ("Bearer alice:pass:word", None),
        (basic("alice:wrong"), None),
        (basic(PROVIDER), None),
        ("Basic !!!", None),
        ("Basic é", None),
        ("Bearer a.b.c", None),
        ("Bearer \udcff\ud800", None),
        (f"Digest {PROVIDER}", None),
        (PROVIDER, None),
    ],
)
async def test_callers_are_known_by_what_they_show(bench, file, header, expected):
    """A provider's machine comes from its token; whatever is missing, wrong or unknown is nobody."""
    auth = await started(bench, f"file: {file}")

    assert auth.authenticate(shown(header)) == expected


async def test_a_file_may_be_json(bench, tmp_path):
    """As a program would write it."""
    path = tmp_path / "tokens.json"
    path.write_text('{"tokens": [{"kind": "api_key", "token": "k", "name": "ci"}]}')

    auth = await started(bench, f"file: {path}")

    assert auth.authenticate(shown("Bearer k")) == Identity("api_key", "ci")


async def test_tokens_of_the_document_win_over_the_files(bench, file):
    """They usually come from the environment; those of the file are known beside them."""
    auth = await started(bench, f"{{file: {file}, tokens: [{{kind: api_key, token: plain-bearer, name: mine}}]}}")

    assert auth.authenticate(shown("Bearer plain-bearer")) == Identity("api_key", "mine")
    assert auth.authenticate(shown("Bearer sk-console")) is not None


@pytest.mark.parametrize(
    ("settings", "header", "expected"),
    [
        ("", None, Identity("mtls", "edge-1")),
        ("", "Bearer unknown", Identity("mtls", "edge-1")),
        ("tokens: [{kind: bearer, token: t, name: gw}]", "Bearer t", Identity("bearer", "gw")),
        ("client_certificates: false", None, None),
    ],
)
async def test_a_client_certificate_is_an_identity(bench, settings, header, expected):
    """Where no known token says more, and the settings let it."""
    auth = await started(bench, settings)

    assert auth.authenticate(shown(header, "edge-1")) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tokens: [{kind: nope, token: hush-hush}]", "{path}:1:17: tokens[0].kind: 'nope' is not a choice"),
        ("tokens:\n  - {kind: bearer}\n", "{path}:2:5: tokens[0].token: "),
        ("tokens: [{kind: bearer, token: ''}]", "tokens[0].token: is empty; write a token, or leave the entry out"),
        ("tokens: [{kind: bearer, token: 'sha256:hush-hush'}]", "is not a digest; write sha256: and 64 hex digits"),
        ("tokens: [{kind: basic, token: hush-hush}]", "has no colon; write user:password"),
        ("tokens: [hush-hush]", "{path}:1:10: tokens[0]: "),
        ("tokens: [{kind: bearer, token: [hush-hush]}]", "{path}:1:32: tokens[0].token: "),
        (
            "tokens:\n - {kind: bearer, token: hush-hush}\n - {kind: api_key, token: hush-hush}",
            "is the same as tokens[0]",
        ),
        ("tokens: [", "{path}:"),
        ("users: []", "{path}:1:1: users: "),
    ],
)
async def test_a_wrong_file_stops_the_start_and_keeps_its_secrets(bench, tmp_path, text, problem):
    """With its place, what is wrong and what would be right; a token is never shown."""
    path = tmp_path / "tokens.yaml"
    path.write_text(text)

    with pytest.raises(StartError) as refused:
        await started(bench, f"file: {path}")

    assert str(refused.value).startswith("extensions.token_auth: ")
    assert problem.format(path=path) in str(refused.value)
    assert "hush-hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "No such file or directory"), (b"\xff\xfe\x00", "is not UTF-8 text")]
)
async def test_a_file_that_cannot_be_read_stops_the_start(bench, tmp_path, content, problem):
    """The message names the file."""
    path = tmp_path / "tokens.yaml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(StartError, match=problem) as refused:
        await started(bench, f"file: {path}")
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        "tokens: [{kind: bearer, token: ''}]",
        "tokens: [{kind: bearer, token: a}, {kind: provider, token: a}]",
        "reload_interval: 0s",
        "jwt: {}",
        "jwt: {key_file: a, jwks_file: b}",
        "jwt: {key: k, algorithms: []}",
        "jwt: {key: k, algorithms: [none]}",
    ],
)
def test_wrong_settings_are_configuration_problems(bench, settings):
    """They are found without starting anything."""
    with pytest.raises(ConfigError):
        bench.make(TokenAuth, settings)


def replace(path: Path, text: str) -> None:
    """Write a file as careful programs do: beside it, then into its place."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


async def test_a_changed_file_is_read_again(bench, file):
    """What it no longer holds is unknown at once, and what is new is known."""
    auth = await started(bench, f"file: {file}")
    replace(file, "tokens: [{kind: bearer, token: fresh, name: fresh}]")

    await auth.refresh()

    assert auth.authenticate(shown(f"Bearer {PROVIDER}")) is None
    assert auth.authenticate(shown("Bearer fresh")) == Identity("bearer", "fresh")
    assert bench.board.failing == []


async def test_a_broken_change_keeps_the_old_tokens_until_it_is_mended(bench, file, caplog):
    """Health and the log say what is wrong, once; mending it is enough."""
    auth = await started(bench, f"file: {file}")
    replace(file, "tokens: [{kind: bearer, token: hush-hush}, 7]")

    await auth.refresh()
    await auth.refresh()

    assert auth.authenticate(shown(f"Bearer {PROVIDER}")) is not None
    (health,) = bench.board.failing
    assert health.status == "degraded"
    assert f"the tokens stay as they were: {file}:1:" in health.message
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [health.message]
    assert "hush-hush" not in caplog.text

    file.unlink()
    await auth.refresh()
    assert "No such file" in bench.board.failing[0].message

    replace(file, TOKENS)
    await auth.refresh()
    assert auth.authenticate(shown(f"Bearer {PROVIDER}")) is not None
    assert bench.board.failing == []


async def test_the_file_is_watched(bench, file):
    """Nobody has to ask."""
    auth = await started(bench, f"{{file: {file}, reload_interval: 10ms}}")
    (watch,) = bench.tasks
    replace(file, "tokens: []")

    while auth.authenticate(shown(f"Bearer {PROVIDER}")) is not None:  # noqa: ASYNC110 (it shows nowhere else)
        await asyncio.sleep(0.005)

    assert not watch.done()


async def test_without_files_nothing_is_watched(bench):
    """There is nothing that could change."""
    await started(bench, "tokens: [{kind: bearer, token: t}]")

    assert bench.tasks == []


async def test_nothing_shows_a_token(bench, file):
    """Neither the component nor its settings."""
    auth = await started(bench, f"{{file: {file}, tokens: [{{kind: bearer, token: hush-hush}}]}}")

    assert repr(auth) == "<TokenAuth token_auth [5 tokens]>"
    assert "hush-hush" not in repr(auth.settings)


@given(st.text(st.characters(exclude_categories=[])), st.sampled_from(["Bearer ", "Basic ", "basic ", ""]))
async def test_whatever_strangers_show_is_nobody(text, scheme):
    """Nothing raises, whatever the header holds."""
    auth = await started(Bench(), "tokens: [{kind: bearer, token: hush-hush}, {kind: basic, token: 'hush:hush'}]")

    assert auth.authenticate(shown(scheme + text)) is None
