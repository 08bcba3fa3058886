"""How a server's answers are read, whatever they are, and how a batch that is too large is divided."""

import logging
from collections import Counter
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st
from support.otlp import bodies, logs

from sidecar import SCHEMAS, Permanent, Retryable, Signal, TooLarge
from sidecar.net.otlp_client import MAX_WAIT, MAX_WORDS, Answers, retry_after, retry_info, send_in_parts, words
from sidecar.testing import FakeClock

NOW = 1_700_000_000


@given(st.integers(0, 3600))
def test_retry_after_in_seconds(seconds):
    """Whole seconds, with or without blanks around."""
    assert retry_after(f" {seconds} ", NOW) == seconds


@pytest.mark.parametrize("header", ["3601", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_no_server_can_silence_us(header):
    """A wait is at most an hour, whatever the server asks for."""
    assert retry_after(header, NOW) == MAX_WAIT


@given(st.integers(-(10**6), 3600))
def test_retry_after_as_a_date(seconds):
    """A date in the past means at once."""
    date = format_datetime(datetime.fromtimestamp(NOW + seconds, UTC), usegmt=True)

    assert retry_after(date, NOW) == max(0, seconds)


@given(st.one_of(st.none(), st.text(), st.from_regex(r"Mon, \d+ Jan \d+ \d+:\d+:\d+ GMT", fullmatch=True)))
def test_retry_after_of_whatever_is_sent(header):
    """Nothing that a server sends is an error; a wait is never negative."""
    wait = retry_after(header, NOW)

    assert wait is None or 0 <= wait <= MAX_WAIT


@given(st.lists(st.tuples(st.sampled_from(["grpc-status-details-bin", "google.rpc.retryinfo-bin", "x"]), st.binary())))
def test_retry_info_of_whatever_is_sent(trailers):
    """Nothing that a server sends is an error; a delay is never negative."""
    delay = retry_info(trailers)

    assert delay is None or 0 <= delay <= MAX_WAIT


def test_retry_info_without_a_delay():
    """RetryInfo that names no delay still says that the batch may pass later."""
    status = Status(code=8)
    status.details.add().Pack(RetryInfo())

    assert retry_info([("grpc-status-details-bin", status.SerializeToString())]) == 0
    assert retry_info([("grpc-status-details-bin", Status(code=8).SerializeToString())]) is None


def test_retry_info_of_the_past():
    """A negative delay is none."""
    info = RetryInfo(retry_delay=Duration(seconds=-5))

    assert retry_info([("google.rpc.retryinfo-bin", info.SerializeToString())]) == 0


@given(st.text())
def test_words_are_one_bounded_line(text):
    """Whatever a server says is safe in a log."""
    line = words(text)

    assert line.isprintable()
    assert len(line) <= MAX_WORDS + 1


def test_words_keep_what_can_be_read():
    """Blanks and line breaks become one blank; colours of a terminal lose their power."""
    assert words("no\r\n  such \x1b[31mtenant") == "no such [31mtenant"


@pytest.fixture
def clock():
    """A clock to move."""
    return FakeClock()


@pytest.fixture
def dropped():
    """What has been counted as dropped."""
    return Counter()


@pytest.fixture
def answers(clock, dropped):
    """The reader under test."""

    def count(signal, reason, items):
        dropped[signal, reason] += items

    return Answers(logging.getLogger("sidecar.test"), count, clock.monotonic)


def partial(rejected=0, message=""):
    """A response of the logs service."""
    response = SCHEMAS[Signal.LOGS].response()
    response.partial_success.rejected_log_records = rejected
    response.partial_success.error_message = message
    return response


def test_one_warning_a_minute(answers, clock, dropped, caplog):
    """A server that rejects a part of each request is counted in full and logged once a minute, with the rest said."""
    for _ in range(5):
        answers.read(logs(3), partial(1, "bad"))
    clock.advance(61)
    answers.read(logs(3), partial(1, "bad"))

    assert dropped == {(Signal.LOGS, "rejected_by_peer"): 6}
    assert [record.getMessage() for record in caplog.records] == [
        "the server rejected 1 of 3 log_records: bad",
        "the server rejected 1 of 3 log_records: bad (4 more such answers since the last one shown)",
    ]


@pytest.mark.parametrize(("claimed", "counted"), [(99, 3), (-1, 0)])
def test_a_server_can_not_reject_what_it_did_not_get(answers, dropped, claimed, counted):
    """No more is counted than was sent, and no less than nothing."""
    answers.read(logs(3), partial(claimed, "odd"))

    assert dropped[Signal.LOGS, "rejected_by_peer"] == counted


def test_a_warning_without_a_rejection(answers, dropped, caplog):
    """A message with nothing rejected is a warning (OTLP specification, "Partial Success")."""
    answers.read(logs(3), partial(0, "deprecated field"))

    assert "took the request with a warning: deprecated field" in caplog.text
    assert not dropped[Signal.LOGS, "rejected_by_peer"]


class Server:
    """Takes at most `limit` bytes at once, and answers some parts as told."""

    def __init__(self, limit, errors=None):
        self.limit = limit
        self.errors = errors or {}
        self.taken = []

    async def send(self, batch):
        """Take a batch, or refuse it."""
        if len(batch.encode()) > self.limit:
            raise TooLarge("over the limit")
        for body, error in self.errors.items():
            if any(body in text for text in bodies(batch)):
                raise error
        self.taken += bodies(batch)


@given(st.integers(1, 40), st.integers(50, 2000))
async def test_every_record_arrives_or_is_counted(count, limit):
    """Whatever the limit, each record arrives once and in order, or is counted as too large by itself."""
    lost = Counter()
    answers = Answers(logging.getLogger("sidecar.quiet"), lambda _, reason, items: lost.update({reason: items}), float)
    server = Server(limit)
    batch = logs(count, body="x" * 30)
    sent = bodies(batch)

    try:
        await send_in_parts(batch, server.send, answers)
    except TooLarge:
        assert count == 1
        return

    assert server.taken == [body for body in sent if body in server.taken]
    assert len(server.taken) + lost["too_large"] == count


async def test_parts_that_are_refused_do_not_hold_up_the_others(answers, dropped):
    """A part that is refused for good is counted; the rest goes on."""
    batch = logs(4)
    server = Server(len(batch.encode()) - 1, {"hello 1": Permanent("no", reason="http_4xx")})

    await send_in_parts(batch, server.send, answers)

    assert dropped == {(Signal.LOGS, "http_4xx"): 2}
    assert server.taken == ["hello 2", "hello 3"]


async def test_what_remains_is_in_order(answers):
    """After a failure that may pass, everything not settled yet is what remains."""
    batch = logs(6)
    server = Server(len(batch.encode()) - 1, {"hello 4": Retryable("later")})

    with pytest.raises(Retryable) as raised:
        await send_in_parts(batch, server.send, answers)

    assert server.taken == ["hello 0", "hello 1", "hello 2"]
    assert bodies(raised.value.remaining) == ["hello 3", "hello 4", "hello 5"]


async def test_a_batch_that_fits_is_not_looked_at(answers):
    """The very object is sent, and its errors are passed on as they are."""
    sent = []

    async def send(batch):
        sent.append(batch)
        raise Permanent("no")

    batch = logs(3)
    with pytest.raises(Permanent):
        await send_in_parts(batch, send, answers)

    assert sent == [batch]
