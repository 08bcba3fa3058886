"""Datadog's own DogStatsD client, unchanged, on a host where the sidecar is in the Agent's place."""

import pytest
from support.datadog_intake import DatadogIntake
from support.ddtrace_host import Host, recording
from support.otlp_receiver import plain

from sidecar import Signal

# The client would add them as tags.
UNSAID = dict.fromkeys(("DD_ENV", "DD_SERVICE", "DD_VERSION"), "")
PROGRAM = """
from datadog.dogstatsd import DogStatsd
client = DogStatsd(
    namespace="d_inference",
    constant_tags=["env:prod", "service:coordinator"],
    disable_buffering=False,
    socket_timeout=5,  # by default it drops what the socket has no room for at once
    **{options},
)
for number in range(1000):
    client.increment("requests", tags=["route:a"])
    client.distribution("latency", number / 10)
client.gauge("depth", 7)
client.set("users", "u1")
client.set("users", "u2")
client.timing("step", 12)
client.histogram("size", 5, sample_rate=1)
client.count_with_timestamp("old", 3, timestamp=1700000000)
client.event("deployed", "line one\\nline two", alert_type="warning", tags=["team:x"], aggregation_key="k")
client.service_check("db.up", 2, message="gone", hostname="box")
client.flush()
client.close_socket()
"""


@pytest.mark.parametrize("transport", ["udp", "unix", "unixstream"])
async def test_everything_that_the_client_sends_arrives(tmp_path, transport):
    """Over UDP and both kinds of Unix sockets; a thousand samples of each kind, and none lost."""
    pytest.importorskip("datadog")
    async with recording(tmp_path) as host:
        options = {
            "udp": {"host": "127.0.0.1", "port": host.dogstatsd},
            "unix": {"socket_path": f"unix://{tmp_path}/dsd.sock"},
            "unixstream": {"socket_path": f"unixstream://{tmp_path}/dsd-stream.sock"},
        }[transport]
        await host.run(PROGRAM.format(options=options), **UNSAID)
        await host.sink.wait_for_items(2, Signal.LOGS)
        await host.end()
    points = {}
    for metric in host.metrics():
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            points.setdefault(metric.name, []).append(point)
    values = {
        name: sum(point.as_double or point.as_int for point in points[f"d_inference.{name}"])
        for name in ("requests", "depth", "users", "old")
    }
    assert values == {"requests": 1000, "depth": 7, "users": 2, "old": 3}
    latency = points["d_inference.latency"]
    assert sum(point.count for point in latency) == 1000
    assert sum(point.sum for point in latency) == pytest.approx(sum(range(1000)) / 10)
    assert {point.time_unix_nano for point in points["d_inference.old"]} == {1700000000 * 10**9}
    assert plain(points["d_inference.requests"][0].attributes) == {"route": "a"}
    assert {"d_inference.step", "d_inference.size"} <= set(points)
    records = {
        record.event_name: record
        for request in host.sink.requests
        if request.signal is Signal.LOGS
        for scope in request.batch.scopes()
        for record in scope.log_records
    }
    assert records["datadog.event"].body.string_value == "line one\nline two"
    assert plain(records["datadog.service_check"].attributes)["datadog.service_check.name"] == "db.up"


async def test_everything_reaches_datadog(tmp_path):
    """As what it was: series, distributions, an event and a service check, with their tags."""
    pytest.importorskip("datadog")
    async with DatadogIntake() as intake:
        parts = ", ".join(f"{part}: {{endpoint: '{intake.url}'}}" for part in ("logs", "traces", "metrics", "events"))
        host = Host(tmp_path, f"datadog: {{api: {{key: {'a' * 32}}}, {parts}}}")
        async with host.sidecar:
            await host.run(
                PROGRAM.replace("client.count_with", "# ").format(
                    options={"host": "127.0.0.1", "port": host.dogstatsd}
                ),
                **UNSAID,
            )
            await intake.wait_for(lambda: intake.series and intake.sketches and intake.events and intake.checks)
            await host.end()
    requests = [series for series in intake.series if series["metric"] == "d_inference.requests"]
    assert sum(point["value"] for series in requests for point in series["points"]) == 1000
    assert {"env:prod", "service:coordinator", "route:a"} <= set(requests[0]["tags"])
    assert requests[0]["type"] == 1
    (event,) = intake.events
    assert (event["title"], event["text"], event["alert_type"]) == ("deployed", "line one\nline two", "warning")
    assert sorted(event["tags"]) == sorted({"env:prod", "service:coordinator", "team:x"})
    (check,) = intake.checks
    assert (check["check"], check["status"], check["host_name"], check["message"]) == (
        "db.up",
        2,
        "box",
        "gone",
    )
