"""The rate limit: who shares a bucket, what a batch costs, and what becomes of what does not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.problems import ConfigError
from processors.rate_limit import RateLimit
from sidecar import SCHEMAS, Batch, BatchContext, Identity, RateLimited, Signal
from sidecar.testing import Bench

MACHINE = Identity("provider", "p1", machine_id="tok:ab", account_id="acc-1")
ACCOUNT = Identity("api_key", "k1", account_id="acc-2")


@pytest.fixture
def bench():
    """A bench with a clock that moves when told to."""
    return Bench()


def bare(items=1, **context):
    """A batch that can't be decoded: whoever looks inside fails."""
    return Batch(Signal.LOGS, b"\xff", context=BatchContext(**context), items=items)


def logs(*tenants, resource="", **context):
    """A logs batch with one record per tenant."""
    request = SCHEMAS[Signal.LOGS].request()
    of_resource = request.resource_logs.add()
    of_resource.resource.attributes.add(key="service.name").value.string_value = resource
    scope = of_resource.scope_logs.add()
    for tenant in tenants:
        record = scope.log_records.add()
        if tenant is not None:
            record.attributes.add(key="tenant").value.string_value = tenant
    return Batch(Signal.LOGS, request.SerializeToString(), context=BatchContext(**context))


def tenants_of(batch):
    """The tenants of a batch's records."""
    return [r.attributes[0].value.string_value for scope in batch.scopes() for r in scope.log_records]


def passes(limiter, batch):
    """Whether the batch passes as it is."""
    try:
        return limiter.process(batch) is batch
    except RateLimited:
        return False


def test_the_defaults_are_those_of_the_event_contract(bench):
    """200 at once and 100 per minute for who is known, 30 and 10 for who is not."""
    limiter = bench.make(RateLimit)

    assert passes(limiter, bare(200, identity=MACHINE))
    assert not passes(limiter, bare(1, identity=MACHINE))
    assert passes(limiter, bare(30, peer="10.0.0.1"))
    assert not passes(limiter, bare(1, peer="10.0.0.1"))
    bench.clock.advance(60)
    assert passes(limiter, bare(100, identity=MACHINE))
    assert not passes(limiter, bare(1, identity=MACHINE))
    assert passes(limiter, bare(10, peer="10.0.0.1"))
    assert not passes(limiter, bare(1, peer="10.0.0.1"))


def test_callers_do_not_share_buckets(bench):
    """Machines, accounts and strangers' addresses each have their own, and none is decoded to find out."""
    limiter = bench.make(RateLimit, "{rate: 1/h, burst: 1, anonymous: {rate: 1/h, burst: 1}}")
    callers = [{"identity": MACHINE}, {"identity": ACCOUNT}, {"peer": "10.0.0.1"}, {"peer": "10.0.0.2"}]

    assert [passes(limiter, bare(1, **caller)) for caller in callers] == [True] * 4
    assert [passes(limiter, bare(1, **caller)) for caller in callers] == [False] * 4


def test_a_machine_is_limited_whichever_account_it_uses(bench):
    """The machine counts before the account, and the account before the name."""
    limiter = bench.make(RateLimit, "{rate: 1/h, burst: 1}")

    assert passes(limiter, bare(1, identity=MACHINE))
    assert not passes(limiter, bare(1, identity=Identity("api_key", "k9", machine_id="tok:ab", account_id="acc-9")))
    assert passes(limiter, bare(1, identity=Identity("jwt", "k9", account_id="acc-9")))
    assert not passes(limiter, bare(1, identity=Identity("api_key", "k1", account_id="acc-9")))


def test_a_batch_that_does_not_fit_takes_nothing(bench):
    """It is refused whole, and a smaller one still passes."""
    limiter = bench.make(RateLimit, "{rate: 1/m, burst: 10}")
    limiter.process(bare(4, identity=MACHINE))

    with pytest.raises(RateLimited):
        limiter.process(bare(7, identity=MACHINE))
    assert passes(limiter, bare(6, identity=MACHINE))


def test_a_refusal_says_when_to_come_back(bench):
    """After exactly that time the batch passes."""
    limiter = bench.make(RateLimit, "{rate: 30/m, burst: 10}")
    limiter.process(bare(8, identity=MACHINE))

    with pytest.raises(RateLimited, match=r"over the rate of 30/m items; send it again in 6\.0 s") as refusal:
        limiter.process(bare(5, identity=MACHINE))

    assert (refusal.value.reason, refusal.value.after) == ("rate_limited", pytest.approx(6))
    bench.clock.advance(5.9)
    assert not passes(limiter, bare(5, identity=MACHINE))
    bench.clock.advance(0.1)
    assert passes(limiter, bare(5, identity=MACHINE))


def test_a_batch_above_the_burst_is_told_so(bench):
    """It would never fit; the message says what to do."""
    limiter = bench.make(RateLimit, "{rate: 1/s, burst: 10}")

    with pytest.raises(
        RateLimited, match=r"11 items at once are more than the burst of 10.*fewer at a time"
    ) as refusal:
        limiter.process(bare(11, identity=MACHINE))

    assert refusal.value.after == 10
    assert passes(limiter, bare(10, identity=MACHINE))


@given(
    st.integers(1, 60_000),
    st.integers(1, 50),
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 60)), min_size=1, max_size=40),
)
def test_nobody_gets_more_than_burst_and_rate(rate, burst, arrivals):
    """In any time, what passes is at most the burst and what has flowed in since, and waiting as told is enough."""
    bench = Bench()
    limiter = bench.make(RateLimit, f"{{rate: {rate}/m, burst: {burst}}}")
    passed = []
    for pause, cost in arrivals:
        bench.clock.advance(pause)
        try:
            limiter.process(bare(cost, identity=MACHINE))
        except RateLimited as refusal:
            if cost > burst:
                continue
            bench.clock.advance(refusal.after + 1e-6)
            limiter.process(bare(cost, identity=MACHINE))
        passed.append((bench.clock.monotonic(), cost))

    for first in range(len(passed)):
        for last in range(first, len(passed)):
            time = passed[last][0] - passed[first][0]
            assert sum(cost for _, cost in passed[first : last + 1]) <= burst + rate / 60 * time + 0.01


def test_drop_loses_the_batch_without_an_error(bench):
    """The sender is not told; the runtime counts what is missing under `rate_limited`."""
    limiter = bench.make(RateLimit, "{rate: 1/h, burst: 2, on_exceeded: drop}")

    assert passes(limiter, bare(2, identity=MACHINE))
    assert limiter.process(bare(1, identity=MACHINE)) is None
    assert RateLimit.drop_reason == "rate_limited"


def test_a_key_may_be_made_of_several_things(bench):
    """Identity, a header and the address together: each combination has its bucket."""
    limiter = bench.make(RateLimit, "{key: [metadata.X-Tenant, client_address], rate: 1/h, burst: 1}")

    def batch(tenant, peer):
        return bare(1, metadata={"x-tenant": tenant}, peer=peer)

    assert [passes(limiter, batch(*key)) for key in [("a", "1"), ("a", "2"), ("b", "1"), ("a", "1")]] == [
        True, True, True, False,
    ]  # fmt: skip


def test_resources_and_records_may_be_keys(bench):
    """A bucket per service, or per tenant of a record, whoever sends it; without the attribute they share one."""
    by_service = bench.make(RateLimit, "{key: [resource.service.name], rate: 1/h, burst: 2}")
    by_tenant = bench.make(RateLimit, "{key: [attribute.tenant], rate: 1/h, burst: 2}")

    assert [passes(by_service, logs("a", resource=name)) for name in ("x", "x", "x", "y")] == [True, True, False, True]
    assert [passes(by_tenant, logs(name)) for name in ("a", "a", "a", "b", None, None, None)] == [
        True, True, False, True, True, True, False,
    ]  # fmt: skip


def test_one_key_over_the_rate_refuses_the_whole_batch_and_takes_nothing(bench):
    """`reject` is for the whole: the keys that are within their rate keep their tokens."""
    limiter = bench.make(RateLimit, "{key: [attribute.tenant], rate: 1/h, burst: 2}")

    assert not passes(limiter, logs("a", "b", "b", "b"))
    assert passes(limiter, logs("a", "a", "b", "b"))
    assert not passes(limiter, logs("a"))


def test_drop_keeps_the_items_of_the_other_keys(bench):
    """Only what is over goes, in whichever order the items stand."""
    limiter = bench.make(RateLimit, "{key: [attribute.tenant], rate: 1/h, burst: 2, on_exceeded: drop}")

    left = limiter.process(logs("b", "a", "b", "c", "b"))

    assert tenants_of(left) == ["a", "c"]
    assert tenants_of(Batch(Signal.LOGS, left.encode(), context=left.context)) == ["a", "c"]
    assert limiter.process(logs("b", "b", "b")) is None
    assert passes(limiter, logs("b", "a"))


def test_data_points_are_items(bench):
    """Points have keys and costs of their own, whatever their metric's kind."""
    limiter = bench.make(RateLimit, "{key: [attribute.n], rate: 1/h, burst: 2, on_exceeded: drop}")
    request = SCHEMAS[Signal.METRICS].request()
    scope = request.resource_metrics.add().scope_metrics.add()
    for number, kind in enumerate(("gauge", "sum", "histogram", "exponential_histogram", "summary")):
        for _ in range(1 + number % 3):
            point = getattr(scope.metrics.add(name=kind), kind).data_points.add()
            point.attributes.add(key="n").value.int_value = number
    scope.metrics.add(name="empty")

    left = limiter.process(Batch(Signal.METRICS, request.SerializeToString(), context=BatchContext()))

    assert len(left) == 6
    assert [
        m.name for s in left.scopes() for m in s.metrics if m.HasField("histogram") and m.histogram.data_points
    ] == []


@pytest.mark.parametrize(
    ("unit", "first", "second"),
    [("items", 3, 2), ("bytes", 40, 25), ("requests", 1, 1)],
    ids=["items", "bytes", "requests"],
)
def test_units(bench, unit, first, second):
    """Items, bytes of the request, or requests: a burst of what two batches cost lets two pass and not three."""
    limiter = bench.make(RateLimit, f"{{unit: {unit}, rate: 1/h, burst: {first + second}, key: [client_address]}}")

    def batch(items, size):
        return Batch(Signal.LOGS, b"\xff" * size, context=BatchContext(), items=items)

    assert passes(limiter, batch(3, 40))
    assert passes(limiter, batch(2, 25))
    assert not passes(limiter, batch(1, 1))


@pytest.mark.parametrize("unit", ["bytes", "requests"])
def test_units_of_several_keys(bench, unit):
    """Where one batch has several keys, each pays for its items' bytes, or for one request."""
    cost = {"requests": 1, "bytes": logs("aaaa").message.resource_logs[0].scope_logs[0].log_records[0].ByteSize()}[unit]
    limiter = bench.make(RateLimit, f"{{unit: {unit}, key: [attribute.tenant], rate: 1/h, burst: {2 * cost}}}")

    assert passes(limiter, logs("aaaa", "bbbb"))
    assert passes(limiter, logs("aaaa", "bbbb", "cccc"))
    assert not passes(limiter, logs("aaaa"))
    assert passes(limiter, logs("cccc"))


def test_overrides_give_some_keys_another_limit(bench):
    """The first pattern that matches the key holds, for anonymous callers too."""
    limiter = bench.make(
        RateLimit,
        """
        rate: 1/h
        burst: 1
        anonymous: {rate: 1/h, burst: 1}
        overrides:
          - {match: "machine:tok:a*", rate: 1/h, burst: 5}
          - {match: "machine:*", rate: 1/h, burst: 9}
          - {match: "anonymous:10.0.*", rate: 1/h, burst: 3}
          - {match: "account:acc-2", rate: 1/h, burst: 0}
        """,
    )

    def fits(most, **caller):
        return not passes(limiter, bare(most + 1, **caller)) and passes(limiter, bare(most, **caller))

    assert fits(5, identity=MACHINE)
    assert fits(9, identity=Identity("provider", "p", machine_id="tok:b"))
    assert fits(3, peer="10.0.0.1")
    assert fits(1, peer="10.1.0.1")
    assert not passes(limiter, bare(1, identity=ACCOUNT))


def test_the_least_recently_used_bucket_is_forgotten_first(bench):
    """At most `max_keys` buckets are kept, and what is busy is remembered."""
    limiter = bench.make(RateLimit, "{key: [client_address], rate: 1/h, burst: 2, max_keys: 2}")
    for peer in ("a", "b", "a", "c"):
        limiter.process(bare(1, peer=peer))

    assert len(limiter.buckets) == 2
    assert not passes(limiter, bare(1, peer="a"))
    assert passes(limiter, bare(2, peer="b"))


def test_a_long_key_is_kept_short(bench):
    """What a sender writes into an attribute does not fill the memory, and still has its own bucket."""
    limiter = bench.make(RateLimit, "{key: [attribute.tenant], rate: 1/h, burst: 1}")

    assert passes(limiter, logs("x" * 10_000 + "a"))
    assert passes(limiter, logs("x" * 10_000 + "b"))
    assert not passes(limiter, logs("x" * 10_000 + "a"))
    assert max(map(len, limiter.buckets._full_at)) < 400


def test_a_refused_batch_is_not_converted(bench):
    """A batch of TelemetryEvents is made into OTLP only after it has passed."""
    built = []
    limiter = bench.make(RateLimit)
    batch = Batch(
        Signal.LOGS, context=BatchContext(), items=31, build=lambda: built.append(1) or SCHEMAS[Signal.LOGS].request()
    )

    assert not passes(limiter, batch)
    assert built == []


def test_an_empty_batch_passes_and_takes_nothing(bench):
    """A request without items is no reason to refuse anybody."""
    limiter = bench.make(RateLimit, "{rate: 1/h, burst: 1}")

    assert passes(limiter, bare(0, identity=MACHINE))
    assert passes(limiter, bare(1, identity=MACHINE))
    assert passes(limiter, bare(0, identity=MACHINE))


def test_a_reload_gives_nobody_new_tokens(bench):
    """What was used up stays used up, within the new burst, and only so many buckets are kept from then on."""
    old = bench.make(RateLimit, "{key: [client_address], rate: 1/h, burst: 2}")
    for peer in ("a", "a", "b", "c"):
        old.process(bare(1, peer=peer))

    new = bench.make(RateLimit, "{key: [client_address], rate: 1/h, burst: 3, max_keys: 2}")
    new.carry(old)

    assert not passes(new, bare(3, peer="c"))
    assert passes(new, bare(2, peer="c"))
    assert not passes(new, bare(3, peer="b"))
    assert passes(new, bare(3, peer="a"))


def test_drop_leaves_the_given_batch_alone(bench):
    """Other pipelines may hold the same batch."""
    limiter = bench.make(RateLimit, "{key: [attribute.tenant], rate: 1/h, burst: 2, on_exceeded: drop}")
    batch = logs("b", "a", "b", "b")

    assert tenants_of(limiter.process(batch)) == ["a"]
    assert tenants_of(batch) == ["b", "a", "b", "b"]


def test_each_component_has_its_own_buckets(bench):
    """Two rate limits don't spend each other's tokens."""
    one, two = bench.make(RateLimit), bench.make(RateLimit, name="rate_limit/two")

    assert passes(one, bare(200, identity=MACHINE))
    assert passes(two, bare(200, identity=MACHINE))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("key: [ip]", r"key\[0\].*'ip' is no part of a key; write identity, client_address"),
        ("key: [identity, resource.]", r"key\[1\].*'resource\.'"),
        ("anonymous: {key: [identity]}", r"anonymous\.key.*no identity"),
        ("burst: 0", r"burst.*at least 1"),
        ("max_keys: 0", r"max_keys.*at least 1"),
        ("rate: 100", r"rate"),
        ("storage: redis://localhost", r"storage.*memory"),
    ],
)
def test_wrong_settings_are_problems(bench, settings, problem):
    """Each says what would be right, at its place."""
    with pytest.raises(ConfigError, match=problem):
        bench.make(RateLimit, settings)
