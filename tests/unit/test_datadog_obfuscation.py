"""Queries of database spans lose their values on their way to the intake, and to nobody else."""

from __future__ import annotations

import gzip

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.datadog_wire import AgentPayload
from support.otlp import traces_request

from exporters.datadog.channel_traces import TracesChannel
from exporters.datadog.obfuscation import (
    MAX_TEXT,
    NON_PARSABLE,
    memcached_command,
    obfuscate_statistics,
    redis_commands,
    redis_resource,
    sql,
)
from exporters.datadog.points import ClientStats
from exporters.datadog.resource import Origins
from exporters.datadog.settings import Account, DatadogSettings, defaults_of
from sidecar import Batch, BatchContext, Signal
from sidecar.testing import Bench, settings_from_yaml

STATEMENT = "SELECT name FROM users WHERE mail = 'alice@example.com' AND age > 42"
OBFUSCATED = "SELECT name FROM users WHERE mail = ? AND age > ?"
CLIENT = 3

STATEMENTS = {
    # Spacing, commas, ends of statements.
    "select *\n\tfrom users\r\n where id=42;": "select * from users where id = ?",
    "SELECT a , b FROM t": "SELECT a, b FROM t",
    "SELECT count(*), t.* FROM t": "SELECT count ( * ), t.* FROM t",
    # Texts.
    "SELECT 'it''s', b FROM t": "SELECT ? b FROM t",
    r"SELECT * FROM t WHERE a = 'it\'s' AND b = 'x'": "SELECT * FROM t WHERE a = ? AND b = ?",
    r"SELECT * FROM t WHERE a = 'C:\' AND b = 'x'": "SELECT * FROM t WHERE a = ? AND b = ?",
    r"SELECT * FROM t WHERE a = '\\' AND b = '\\'": "SELECT * FROM t WHERE a = ? AND b = ?",
    "SELECT $$it's$$ FROM t": "SELECT ? FROM t",
    "SELECT $f$it's $$ $g$ $f$ FROM t": "SELECT ? FROM t",
    r"SELECT E'it\'s' FROM t": "SELECT ? FROM t",
    "SELECT N'a' FROM t WHERE b = x'1f' AND c = _utf8'd'": "SELECT ? FROM t WHERE b = ? AND c = ?",
    "SELECT q'[it's]', nq'!it's!' FROM dual": "SELECT ? FROM dual",
    # Numbers, words, placeholders.
    "WHERE a = 1.5e-3 OR a = .5 OR a = 0x1F OR a = 1E+9": "WHERE a = ? OR a = ? OR a = ? OR a = ?",
    "WHERE a = -1 AND b > (-2) AND c = d-3": "WHERE a = ? AND b > ( ? ) AND c = d - ?",
    "WHERE a = true AND b IS NOT NULL": "WHERE a = ? AND b IS NOT ?",
    "WHERE a = $1 AND b = :b AND c = %s AND d = %(d)s AND e = ?": "WHERE a = ? AND b = ? AND c = ? AND d = ? AND e = ?",
    "SELECT a::int, b->>'c', d #> '{e}', f #- '{g}' FROM t2": "SELECT a :: int, b ->> ? d #> ? f #- ? FROM t2",
    "SAVEPOINT s140_x1": "SAVEPOINT ?",
    # Comments.
    "-- of 'alice'\nSELECT 1 /* it's\nhers */ FROM t # bob's": "SELECT ? FROM t",
    "SELECT a /*+ hint */ FROM t --": "SELECT a FROM t",
    "SELECT a #--- alice\nFROM t #- bob\n#": "SELECT a FROM t",
    # Lists.
    "WHERE a IN (1, 2, 3) AND b IN ('x')": "WHERE a IN ( ? ) AND b IN ( ? )",
    "INSERT INTO t (a, b) VALUES (1, 'x'), (2, NULL), (-3, 'z')": "INSERT INTO t ( a, b ) VALUES ( ? )",
    "SELECT ARRAY[1, 2]": "SELECT ARRAY [ ? ]",
    "LIMIT 10, 20": "LIMIT ?",
    # Names in quotes, and texts in the same quotes.
    'SELECT "t"."a" FROM "t" WHERE "b" IN (SELECT "c" FROM d)': "SELECT t . a FROM t WHERE b IN ( SELECT c FROM d )",
    'SELECT `a b` FROM `t` WHERE c IN ("x", "y")': "SELECT a b FROM t WHERE c IN ( ? )",
    'WHERE b = "x" OR c LIKE "y" OR d IN ("x", "y")': "WHERE b = ? OR c LIKE ? OR d IN ( ? )",
    'SELECT concat("alice bob", "4711")': "SELECT concat ( ? )",
    "SELECT [a b] FROM [dbo].[t]": "SELECT [ a b ] FROM [ dbo ] . [ t ]",
    # Aliases.
    'SELECT name AS person FROM users AS "u"': "SELECT name FROM users",
    # Nothing is left of what can't be read.
    "": "",
    "SELECT 'alice": NON_PARSABLE,
    'SELECT "alice': NON_PARSABLE,
    "SELECT `alice": NON_PARSABLE,
    "SELECT $$alice$": NON_PARSABLE,
    "SELECT $a$alice$b$": NON_PARSABLE,
    "SELECT q'[alice'": NON_PARSABLE,
    "SELECT 1 /* alice": NON_PARSABLE,
    "SELECT 1 /* a /* b */ alice */": NON_PARSABLE,
    r"SELECT alice\ FROM t": NON_PARSABLE,
    "-- alice": NON_PARSABLE,
}  # fmt: skip


@pytest.mark.parametrize(("statement", "expected"), STATEMENTS.items())
def test_values_become_question_marks(statement, expected):
    """Comments and aliases go, lists become one group, spacing is the same for all."""
    assert sql(statement) == expected


@pytest.mark.parametrize("statement", STATEMENTS)
def test_an_obfuscated_statement_stays_as_it_is(statement):
    """A tracer may have obfuscated it already."""
    assert sql(sql(statement)) == sql(statement)


@pytest.mark.parametrize(("system", "expected"), [("mysql", "SELECT concat ( ? )"), ("", "SELECT concat ( a, b )")])
def test_double_quotes_are_read_as_the_database_does(system, expected):
    """MySQL has texts in them, others have names."""
    assert sql('SELECT concat("a", "b")', system) == expected


def test_a_statement_that_can_be_read_in_two_ways_is_not_shown():
    r"""Either `secret` is in a text, or `\` is an escape and a comment hides the quote without an end."""
    assert sql(r"SELECT 'a\', 'secret --'") == NON_PARSABLE


SECRET = "Sécret"
TEXTS = st.text(alphabet="ab \\'\"`$-/*#?;,()[]:%\n19é").map(lambda text: SECRET + text + SECRET)


def quoted(text: str, style: str) -> str:
    """A text as a literal of one dialect."""
    if style == "standard":
        return "'" + text.replace("'", "''") + "'"
    if style == "backslash":
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if style == "mysql":
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"$tag${text}$tag$"


@given(
    st.lists(TEXTS, min_size=1, max_size=4),
    st.sampled_from(["standard", "backslash", "mysql", "dollar"]),
    st.sampled_from([("a =", "a = ?"), ("a IN (1,", "a IN ( ?"), ("b", "b ?")]),
)
@example(["'", "'"], "backslash", ("b", "b ?"))
@example(["\\", "\\", "\\"], "standard", ("b", "b ?"))
def test_no_part_of_a_text_is_left(texts, style, around):
    """Whatever is in it, and however it is quoted."""
    before, expected = around
    literals = [quoted(text, style) for text in texts]
    shown = sql(" OR ".join(f"{before} {literal}" for literal in literals), "mysql" if style == "mysql" else "oracle")
    assert shown in {" OR ".join([expected] * len(literals)), NON_PARSABLE}


@given(st.one_of(st.integers().map(str), st.floats().map(repr), st.integers(min_value=0).map(hex)))
def test_no_digit_of_a_number_is_left(number):
    """Of whole numbers, of decimals and of hexadecimal ones."""
    shown = sql(f"WHERE b={number} AND c IN ({number},{number}) LIMIT {number}")
    assert not any(char.isdigit() for char in shown)


@given(st.text(), st.sampled_from("'\"`"))
def test_a_quote_without_an_end_leaks_nothing(text, quote):
    """Nor does anything before it."""
    text = text.replace(quote, "").replace("\\", "").replace("$", "")
    assert sql(f"WHERE b = {quote}{text}") == NON_PARSABLE


@given(st.text(alphabet="aAs1.,;()[]'\"`$\\-/*#?:%@=<>\n_eEqQ "))
def test_any_text_is_either_obfuscated_or_not_shown(text):
    """A quote or a backslash that is left would be one that was not understood."""
    assert not set("'\"\\") & set(sql(text)) or "`" in text


@pytest.mark.parametrize("statement", ["SELECT " + "1, " * 60_000 + "'x'", "SELECT '" + "x" * 200_000 + "', 2"])
def test_long_statements_are_cut(statement):
    """Where they are longer than what Datadog keeps, whether by many values or by a long one."""
    assert sql(statement) in {"SELECT ? ...", "SELECT ?..."}
    assert len(statement) > MAX_TEXT


@pytest.mark.parametrize(
    ("text", "resource", "commands"),
    [
        ("GET user:42", "GET", "GET ?"),
        ("set k v\nget k", "SET GET", "SET ?\nGET ?"),
        ("SET a 1\nSET b 2\nSET c 3\nSET d 4", "SET SET SET ...", "SET ?\nSET ?\nSET ?\nSET ?"),
        ("CONFIG SET requirepass secret", "CONFIG SET", "CONFIG SET ?"),
        ("PING", "PING", "PING"),
        ("JSON.SET k . v\nFT.SEARCH i q", "JSON.SET FT.SEARCH", "JSON.SET ?\nFT.SEARCH ?"),
        ("SET page one\nsecret words\n\nDEL page", "SET DEL", "SET ?\nDEL ?"),
        ("user:42 x", "?", "? ?"),
        ("", "", ""),
    ],
)
def test_redis_commands_keep_their_names(text, resource, commands):
    """Three of them in the resource; lines that are part of a value are not taken for commands."""
    assert redis_resource(text) == resource
    assert redis_commands(text) == commands


@pytest.mark.parametrize(
    ("text", "expected"), [("set k 0 60 5\r\nvalue\r\n", "set ?"), ("get k", "get ?"), ("stats", "stats"), ("", "")]
)
def test_memcached_commands_keep_their_names(text, expected):
    """Keys and values go."""
    assert memcached_command(text) == expected


class Sent(list):
    """Takes what a courier would send."""

    offer = list.append


@pytest.fixture
async def bench():
    """What surrounds the exporter, ended after the test."""
    one = Bench()
    yield one
    await one.close()


@pytest.fixture
def channel(bench):
    """Makes a channel by what is written below `traces`; with what it has sent of statistics."""

    def make(text: str = "") -> tuple[TracesChannel, Sent]:
        settings = settings_from_yaml(f"api: {{key: {'a' * 32}}}\ntraces: {{{text}}}", DatadogSettings)
        defaults, sent = defaults_of(settings, {}), Sent()
        account = Account.of(settings, {})
        return TracesChannel(settings, account, Origins(defaults), defaults, sent, bench.context()), sent

    return make


def batch(kind: int = CLIENT, **attributes):
    """One span."""
    request = traces_request(1, **attributes)
    request.resource_spans[0].scope_spans[0].spans[0].kind = kind
    return Batch(Signal.TRACES, message=request, context=BatchContext())


def intake_span(channel, one):
    """The span that goes to the intake."""
    (request,) = channel.requests(one)
    return AgentPayload.FromString(gzip.decompress(request.body)).tracerPayloads[0].chunks[0].spans[0]


@pytest.mark.parametrize(
    ("attributes", "resource", "meta"),
    [
        ({"db__system": "postgresql", "db__statement": STATEMENT}, OBFUSCATED, {"db.statement": OBFUSCATED}),
        ({"db__system__name": "mysql", "db__query__text": STATEMENT}, OBFUSCATED, {"db.query.text": OBFUSCATED}),
        ({"span__type": "sql", "resource__name": "find", "sql__query": STATEMENT}, "find", {"sql.query": OBFUSCATED}),
        ({"span__type": "cassandra", "resource__name": STATEMENT}, OBFUSCATED, {}),
        ({"db__system": "trino", "db__statement": STATEMENT}, OBFUSCATED, {"db.statement": OBFUSCATED}),
        ({"db__system": "sqlite", "db__statement": "SELECT 'x"}, NON_PARSABLE, {"db.statement": NON_PARSABLE}),
        ({"db__system": "redis", "db__statement": "GET a:1"}, "GET", {"db.statement": "GET ?"}),
        ({"db__system": "valkey", "db__query__text": "GET a:1"}, "GET", {"db.query.text": "GET ?"}),
        (
            {"span__type": "redis", "resource__name": "GET a:1", "redis__raw_command": "GET a:1"},
            "GET",
            {"redis.raw_command": "GET ?"},
        ),
        (
            {"span__type": "memcached", "resource__name": "get", "memcached__command": "get a:1"},
            "get",
            {"memcached.command": "get ?"},
        ),
        ({"db__system": "dynamodb", "db__statement": "GetItem 1"}, "GetItem 1", {"db.statement": "GetItem 1"}),
        ({"db__statement": "SELECT 1"}, "GET /", {"db.statement": "SELECT 1"}),
    ],
)  # fmt: skip
async def test_spans_for_the_intake(channel, attributes, resource, meta):
    """Those of databases whose language is known, by their type or by the name of the system."""
    span = intake_span(channel()[0], batch(**attributes))
    assert span.resource == resource
    assert {name: span.meta[name] for name in meta} == meta


async def test_spans_of_a_database_itself(channel):
    """They are not of a client, and have no type that says so."""
    span = intake_span(channel()[0], batch(2, db__system="cockroachdb", db__statement=STATEMENT))
    assert (span.type, span.resource, span.meta["db.statement"]) == ("web", OBFUSCATED, OBFUSCATED)


async def test_a_resource_is_cut_after_its_values_are_gone(channel):
    """The cut would leave a text without its end."""
    statement = STATEMENT.replace("alice", "x" * 6000)
    span = intake_span(channel()[0], batch(db__system="postgresql", db__statement=statement))
    assert span.resource == OBFUSCATED


async def test_spans_for_an_agent_stay_as_they_are(channel):
    """It has settings of its own."""
    one, _ = channel("agent_url: 'http://localhost:8126'")
    (request,) = one.requests(batch(db__system="postgresql", db__statement=STATEMENT))
    ((span,),) = msgspec.msgpack.decode(request.body)
    assert (span["resource"], span["meta"]["db.statement"]) == (STATEMENT, STATEMENT)


async def test_it_can_be_switched_off(channel):
    """For those who send no statements, or want to see them."""
    one, sent = channel("obfuscation: {enabled: false}")
    span = intake_span(one, batch(db__system="postgresql", db__statement=STATEMENT))
    assert (span.resource, span.meta["db.statement"]) == (STATEMENT, STATEMENT)
    one.stop()
    assert resources(sent[0].body) == [STATEMENT]


def resources(data: bytes) -> list[str]:
    """Those in a StatsPayload."""
    (payload,) = msgspec.msgpack.decode(gzip.decompress(data))["Stats"]
    return [entry["Resource"] for bucket in payload["Stats"] for entry in bucket["Stats"]]


async def test_statistics_are_by_obfuscated_resource(channel):
    """Spans that differ in their values alone are counted together."""
    one, sent = channel()
    for number in (1, 2):
        list(one.requests(batch(db__system="postgresql", db__statement=f"SELECT {number}")))
    one.stop()
    assert resources(sent[0].body) == ["SELECT ?"]


async def test_statistics_that_tracers_compute(channel):
    """Their resources are as those of spans."""
    entries = [
        {"Type": "sql", "Resource": STATEMENT, "DBType": "postgresql"},
        {"Type": "redis", "Resource": "GET a:1"},
        {"Type": "web", "Resource": "GET /1"},
    ]
    one, _ = channel()
    message = msgspec.msgpack.encode({"Hostname": "h", "Env": "e", "Stats": [{"Stats": entries}]})
    (request,) = one.stats_requests([ClientStats(message, None, [0])])
    assert resources(request.body) == [OBFUSCATED, "GET", "GET /1"]


@pytest.mark.parametrize(
    "payload", [{}, {"Stats": None}, {"Stats": [1, {}, {"Stats": 2}, {"Stats": [{"Type": "sql"}]}]}]
)
def test_odd_statistics_do_no_harm(payload):
    """They may come from anybody."""
    obfuscate_statistics(payload)
