"""Values with a unit read what a person writes, and write what they read."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import Duration, Endpoint, Rate, Ratio, Secret, Size, Url


@pytest.mark.parametrize(
    ("unit", "text", "value"),
    [
        (Duration, "200ms", 0.2),
        (Duration, "1m30s", 90),
        (Duration, "1.5h", 5400),
        (Duration, "7d", 604800),
        (Duration, "0", 0),
        (Duration, "5us", 5e-6),
        (Size, "64MiB", 64 * 2**20),
        (Size, "512k", 512_000),
        (Size, "1.5 GiB", 3 * 2**29),
        (Size, "4096", 4096),
        (Ratio, "25%", 0.25),
        (Ratio, "0.25", 0.25),
        (Rate, "5/s", 5),
        (Rate, "90/m", 1.5),
        (Rate, "3600 / h", 1),
    ],
)
def test_units_read_what_a_person_writes(unit, text, value):
    """A text with a unit has the value in the base unit."""
    assert unit(text) == value


@pytest.mark.parametrize(
    ("unit", "text", "message"),
    [
        (Duration, "5", "'5' is not a duration such as 200ms, 5s or 1m30s: a bare number needs a unit, for example 5s"),
        (Duration, "5 sec", "'5 sec' is not a duration such as 200ms, 5s or 1m30s"),
        (Duration, "", "'' is not a duration such as 200ms, 5s or 1m30s"),
        (Duration, "300000000h", "must be from 0 to 292 years"),
        (Size, "5 apples", "'5 apples' is not a size such as 64MiB, 512KiB or a number of bytes"),
        (Size, "9" * 5000, "must be from 0 to 8 EiB"),
        (Ratio, "1.5", "must be from 0 to 1"),
        (Ratio, "half", "'half' is not a ratio such as 0.25 or 25%"),
        (Rate, "100", "'100' is not a rate such as 100/m, 5/s or 1000/h"),
        (Rate, "0/s", "must be above 0"),
        (Endpoint, "localhost", "'localhost' has no port; write an address such as localhost:4318"),
        (Endpoint, "http://localhost:1", "is a URL, and a listener takes host:port"),
        (Endpoint, "localhost:70000", "port 70000 is above 65535"),
        (Endpoint, "a b:1", "has no usable host"),
        (Endpoint, "unix://", "has no path"),
        (Url, "localhost:4318", "'localhost:4318' is not a URL such as http://localhost:4318"),
        (Url, "http://a b/", "is not a URL"),
        (Url, "ftp://me:hunter2@host", "'ftp://[REDACTED]@host' is not a URL"),
    ],
)
def test_units_say_what_would_be_right(unit, text, message):
    """A text that is not of the unit is refused with an example of one that is."""
    with pytest.raises(ValueError) as raised:
        unit(text)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Duration("90s"), "1m30s"),
        (Duration("1.5h"), "1h30m"),
        (Duration("0.2s"), "200ms"),
        (Duration("0"), "0s"),
        (Size("65536"), "64KiB"),
        (Size(1000), "1000"),
        (Rate("100/m"), "100/m"),
        (Rate("60/m"), "1/s"),
        (Ratio("25%"), "0.25"),
    ],
)
def test_units_write_the_shortest_usual_form(value, text):
    """A value is written as a person would write it."""
    assert str(value) == text


@given(st.floats(min_value=0, max_value=1e9, allow_nan=False))
def test_durations_read_back_exactly(seconds):
    """The text of a duration is that duration, to the last bit."""
    assert Duration(str(Duration(seconds))) == seconds


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_sizes_read_back_exactly(size):
    """The text of a size is that size."""
    assert Size(str(Size(size))) == size


@given(st.floats(min_value=0, max_value=1e12, exclude_min=True))
def test_rates_read_back_exactly(rate):
    """The text of a rate is that rate, to the last bit."""
    assert Rate(str(Rate(rate))) == rate


@given(st.floats(min_value=0, max_value=1))
def test_ratios_read_back_exactly(ratio):
    """The text of a ratio is that ratio, to the last bit."""
    assert Ratio(str(Ratio(ratio))) == ratio


@given(st.sampled_from([Duration, Size, Ratio, Rate, Endpoint, Url]), st.text())
def test_units_refuse_with_value_errors_alone(unit, text):
    """Whatever the text, a unit reads it or raises ValueError."""
    try:
        value = unit(text)
    except ValueError:
        return
    assert not isinstance(value, float) or math.isfinite(value)


@pytest.mark.parametrize(
    ("one", "two"),
    [(":4318", "localhost:4318"), ("LOCALHOST:4318", "localhost:4318"), ("unix:/run/a", "unix:///run/a")],
)
def test_endpoints_that_mean_the_same_are_equal(one, two):
    """Components share a listener when their endpoints mean the same address."""
    assert Endpoint(one) == Endpoint(two)


def test_endpoints_have_parts():
    """An endpoint knows its host, port or path."""
    assert (Endpoint("[::1]:80").host, Endpoint("[::1]:80").port) == ("::1", 80)
    assert Endpoint("unix:///run/a.sock").path == "/run/a.sock"
    assert Endpoint("/run/a.sock") == Endpoint("unix:///run/a.sock")


@pytest.mark.parametrize("value", [Duration("1m30s"), Size("64KiB"), Ratio("25%"), Rate("5/s")])
def test_units_show_what_they_are(value):
    """The repr of a unit is how it is made."""
    assert eval(repr(value)) == value  # noqa: S307 (it is our own repr)


def test_secrets_hide_themselves():
    """No text form of a secret shows it; only `reveal` does."""
    secret = Secret("hunter2")
    assert "hunter2" not in f"{secret} {secret!r} {[secret]}"
    assert secret.reveal() == "hunter2"
    assert secret == Secret("hunter2")
    assert secret != Secret("hunter3")
