"""What is known of a caller is written onto what it sends, over whatever it says itself."""

import pytest
from support.otlp import attributes, logs, logs_request, metrics, traces

from config import SettingError
from config.problems import ConfigError
from processors.identity import IdentityProcessor
from sidecar import Batch, BatchContext, Identity, Signal
from sidecar.testing import Bench

PROVIDER = Identity("provider", "mac-1", "tok:0123", "acct_1")


def stamped(batch, settings=""):
    """What leaves, as it is on the wire: the attributes of each resource, as pairs."""
    left = Bench().make(IdentityProcessor, settings, "identity").process(batch)
    again = Batch(left.signal, left.encode(), context=left.context)
    return [
        [(one.key, one.value.string_value) for one in resource.resource.attributes] for resource in again.resources()
    ]


@pytest.mark.parametrize("make", [logs, traces, metrics])
def test_the_caller_is_named_on_every_signal(make):
    """Its machine and its account, where TelemetryEvents have them too."""
    assert stamped(make(2, BatchContext(PROVIDER))) == [
        [("service.name", "api"), ("host.id", "tok:0123"), ("account.id", "acct_1")]
    ]


def test_each_part_has_the_key_that_the_settings_say():
    """Null leaves one out."""
    settings = "{machine_id: null, account_id: tenant, name: client.name, kind: client.kind}"
    assert stamped(logs(1, BatchContext(PROVIDER)), settings) == [
        [("service.name", "api"), ("tenant", "acct_1"), ("client.name", "mac-1"), ("client.kind", "provider")]
    ]


def test_what_is_known_wins_over_what_is_said_on_every_resource():
    """Said once, twice, or as something that is no text."""
    request = logs_request()
    truth = attributes(host__id="tok:0123", account__id="acct_1")
    for said in (attributes(host__id="liar", account__id=7), [*attributes(account__id="liar"), *truth], []):
        request.resource_logs.add().resource.attributes.extend(said)
    batch = Batch(Signal.LOGS, request.SerializeToString(), context=BatchContext(PROVIDER))
    machine, account = ("host.id", "tok:0123"), ("account.id", "acct_1")
    assert stamped(batch) == [
        [("service.name", "api"), machine, account],
        [machine, account],
        [account, machine, account],
        [machine, account],
    ]


def test_what_is_not_known_stays_as_it_was_sent():
    """A caller without a machine may name one."""
    request = logs_request()
    request.resource_logs[0].resource.attributes.extend(attributes(host__id="mine"))
    context = BatchContext(Identity("api_key", "console", account_id="acct_2"))
    batch = Batch(Signal.LOGS, request.SerializeToString(), context=context)
    assert stamped(batch) == [[("service.name", "api"), ("host.id", "mine"), ("account.id", "acct_2")]]


@pytest.mark.parametrize("said", [{}, {"host__id": "tok:0123", "account__id": "acct_1"}])
def test_bytes_stay_as_they_came_where_nothing_changes(said):
    """Of strangers, and of callers that say the truth already."""
    request = logs_request()
    request.resource_logs[0].resource.attributes.extend(attributes(**said))
    data = request.SerializeToString()
    batch = Batch(Signal.LOGS, data, context=BatchContext(PROVIDER if said else None))
    assert Bench().make(IdentityProcessor, "", "identity").process(batch).encode() is data


@pytest.mark.parametrize("settings", ["{name: host.id}", "{name: ''}"])
def test_two_parts_under_one_key_are_a_problem(settings):
    """And so is a key that is none."""
    with pytest.raises((SettingError, ConfigError), match="a different attribute key for each part"):
        Bench().make(IdentityProcessor, settings, "identity")
