"""Host name, service and tags of a resource, for every signal alike."""

from __future__ import annotations

import pytest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from support.otlp import attributes

from exporters.datadog.resource import Defaults, Origin, Origins, is_local

HERE = Defaults(this_host="this-host")


def origin(defaults: Defaults = HERE, *, local: bool = True, **values) -> Origin:
    """The origin of a resource with these attributes."""
    return Origins(defaults).of(Resource(attributes=attributes(**values)).SerializeToString(), local=local)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "this-host"),
        ({"host__name": "web-1"}, "web-1"),
        ({"host__name": "web-1", "host__id": "4f1c"}, "4f1c"),
        ({"host__name": "web-1", "host__id": "4f1c", "host": "given"}, "given"),
        ({"host": 7}, "7"),
        ({"datadog__host__name": "told", "host__id": "4f1c"}, "told"),
        ({"host__name": "localhost"}, "this-host"),
        ({"host": "127.0.0.1", "host__name": "web-1"}, "this-host"),
        ({"cloud__provider": "aws", "host__id": "i-123", "host__name": "ip-10"}, "i-123"),
        ({"cloud__provider": "aws", "host__name": "ip-10", "k8s__node__name": "node"}, "this-host"),
        ({"cloud__provider": "gcp", "host__name": "vm.zone.c.proj.internal", "cloud__account__id": "proj"}, "vm.proj"),
        ({"cloud__provider": "gcp", "host__name": "vm.lan", "cloud__account__id": "proj"}, "vm.lan.proj"),
        ({"cloud__provider": "gcp", "host__name": "vm"}, "this-host"),
        ({"cloud__provider": "azure", "host__name": "vm"}, "vm"),
        ({"cloud__provider": "other", "host__name": "vm"}, "vm"),
        ({"k8s__node__name": "node", "host__id": "4f1c"}, "node"),
        ({"k8s__node__name": "node", "k8s__cluster__name": "prod"}, "node-prod"),
        ({"k8s__node__name": "node", "ec2__tag__kubernetes__io/cluster/eks": "owned"}, "node-eks"),
        ({"aws__ecs__launchtype": "fargate", "host__name": "web-1"}, "this-host"),
        ({"aws__ecs__launchtype": "FARGATE", "aws__ecs__task__arn": "arn", "host__name": "web-1"}, ""),
        ({"cloud__platform": "azure_container_apps", "host__name": "web-1"}, ""),
        ({"cloud__platform": "azure.app_service"}, ""),
    ],
)
def test_the_host_a_resource_names(values, expected):
    """Datadog's own order; serverless work has no host."""
    assert origin(**values).hostname == expected


def test_the_operators_word_beats_the_resource():
    """A configured hostname holds against cloud and machine ids; only `datadog.host.name` is as explicit.

    See contrib#29866.
    """
    told = Defaults(hostname="told", this_host="this-host")
    assert origin(told, cloud__provider="aws", host__id="i-123").hostname == "told"
    assert origin(told, datadog__host__name="by-the-sender").hostname == "by-the-sender"


def test_no_host_is_invented_for_what_others_send():
    """This host's name belongs to what was sent from it (contrib#31934)."""
    assert origin(local=False).hostname == ""
    assert origin(local=False, host__name="web-1").hostname == "web-1"


@pytest.mark.parametrize(
    ("peer", "local"),
    [("", True), ("127.0.0.1", True), ("::1", True), ("10.0.0.7", False), ("fe80::1%eth0", False), ("a name", False)],
)
def test_who_is_on_this_host(peer, local):
    """Loopback addresses, Unix sockets and the sidecar itself."""
    assert is_local(peer) is local


def test_well_known_attributes_become_tags():
    """Under Datadog's names, unified service tags first; of the process tags the first alone."""
    found = origin(
        process__command_line="python -m app, fast",
        process__executable__path="/usr/bin/python",
        k8s__pod__name="pod-1",
        service__name="shop",
        deployment__environment="staging",
        deployment__environment__name="prod",
        service__version="1.2",
        service__instance__id="abc",
        datadog__container__tag__team="core",
        unknown="left out",
    )
    assert found.tags == (
        "env:prod",
        "service:shop",
        "version:1.2",
        "pod_name:pod-1",
        "service.instance.id:abc",
        "team:core",
        "process.executable.path:/usr/bin/python",
    )
    assert (found.env, found.service, found.version) == ("prod", "shop", "1.2")


def test_a_comma_does_not_end_a_tag():
    """Tags are joined by commas on the wire, and 200 characters is what Datadog keeps."""
    (tag,) = origin(os__type="a,b" + "c" * 300).tags
    assert tag.startswith("os.type:a_bc")
    assert len(tag) == 200


def test_chosen_attributes_become_tags_too():
    """By pattern, for every signal (contrib#19648)."""
    chosen = Defaults(tag_patterns=("app.*", "team"))
    assert origin(chosen, app__tier="1", team="core", other="no", xapp__tier="no").tags == ("app.tier:1", "team:core")


def test_unified_tags_by_default():
    """DD_ENV and DD_SERVICE where the resource is silent; DD_VERSION is that of DD_SERVICE and of no other service."""
    given = Defaults(env="prod", service="shop", version="1.2")
    assert origin(given).tags == ("env:prod", "service:shop", "version:1.2")
    assert origin(given, service__name="other").tags == ("env:prod", "service:other")
    assert origin(given, service__name="shop", deployment__environment="x").tags == (
        "env:x",
        "service:shop",
        "version:1.2",
    )


def test_equal_resources_share_an_origin():
    """The mapping is done once per resource and sender."""
    origins = Origins(HERE)
    first = origins.of(Resource(attributes=attributes(service__name="a")).SerializeToString(), local=True)
    assert origins.of(Resource(attributes=attributes(service__name="a")).SerializeToString(), local=True) is first
    assert origins.of(Resource(attributes=attributes(service__name="a")).SerializeToString(), local=False) is not first
