"""Who sent it, for every signal alike: the host name, the service and the tags that follow from a resource."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from exporters.datadog.values import texts
from sidecar.reading import read_resource

MAX_TAG: Final = 200
_MAX_CACHED: Final = 4096

# Names under which every machine knows itself: as a host name they would join all hosts into one.
_NO_NAMES: Final = frozenset(
    {
        "0.0.0.0",  # noqa: S104 (compared with, not bound to)
        "127.0.0.1",
        "localhost",
        "localhost.localdomain",
        "localhost6.localdomain6",
        "ip6-localhost",
    }
)

_TAG_NAMES: Final = {
    "deployment.environment.name": "env",
    "deployment.environment": "env",
    "tags.datadoghq.com/env": "env",
    "service.name": "service",
    "tags.datadoghq.com/service": "service",
    "service.version": "version",
    "tags.datadoghq.com/version": "version",
    "service.instance.id": "service.instance.id",
    "os.type": "os.type",
    "container.id": "container_id",
    "container.name": "container_name",
    "container.image.name": "image_name",
    "container.image.tag": "image_tag",
    "container.runtime": "runtime",
    "cloud.provider": "cloud_provider",
    "cloud.region": "region",
    "cloud.availability_zone": "zone",
    "aws.ecs.task.family": "task_family",
    "aws.ecs.task.arn": "task_arn",
    "aws.ecs.task.revision": "task_version",
    "aws.ecs.cluster.arn": "ecs_cluster_name",
    "aws.ecs.container.arn": "ecs_container_name",
    "k8s.container.name": "kube_container_name",
    "k8s.cluster.name": "kube_cluster_name",
    "k8s.deployment.name": "kube_deployment",
    "k8s.replicaset.name": "kube_replica_set",
    "k8s.statefulset.name": "kube_stateful_set",
    "k8s.daemonset.name": "kube_daemon_set",
    "k8s.job.name": "kube_job",
    "k8s.cronjob.name": "kube_cronjob",
    "k8s.namespace.name": "kube_namespace",
    "k8s.pod.name": "pod_name",
    "app.kubernetes.io/name": "kube_app_name",
    "app.kubernetes.io/instance": "kube_app_instance",
    "app.kubernetes.io/version": "kube_app_version",
    "app.kubernetes.io/component": "kube_app_component",
    "app.kubernetes.io/part-of": "kube_app_part_of",
    "app.kubernetes.io/managed-by": "kube_app_managed_by",
}
_CONTAINER_TAG: Final = "datadog.container.tag."
# The first of these that a resource has names its process; more than one would be noise.
_PROCESS: Final = (
    "process.executable.name",
    "process.executable.path",
    "process.command",
    "process.command_line",
)
_ENV: Final = ("deployment.environment.name", "deployment.environment", "tags.datadoghq.com/env")
_SERVICE: Final = ("service.name", "tags.datadoghq.com/service")
_VERSION: Final = ("service.version", "tags.datadoghq.com/version")
_EKS_CLUSTER: Final = "ec2.tag.kubernetes.io/cluster/"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a resource says nothing.

    Attributes:
        hostname: an operator's own word, which beats the resource; "" when there is none.
        this_host: the name of this host, for what was sent from it and names no host.
        env, service, version: the unified service tags. The version is that of `service` and of no other.
        tag_patterns: resource attributes that become tags beside the well-known ones; `*` stands for any characters.
    """

    hostname: str = ""
    this_host: str = ""
    env: str = ""
    service: str = ""
    version: str = ""
    tag_patterns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """A resource as Datadog knows it.

    Attributes:
        hostname: "" when it is not known, or when there is no host (serverless).
        host_is_assumed: the resource does not name its host.
        service, env, version: "" when not known.
        tags: `key:value`, without doubles, unified service tags first.
        attributes: all attributes of the resource, as texts.
    """

    hostname: str
    host_is_assumed: bool
    service: str
    env: str
    version: str
    tags: tuple[str, ...]
    attributes: Mapping[str, str]


class Origins:
    """Origins by resource. A resource that was seen before costs one lookup."""

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults
        self._pattern = _any_of(defaults.tag_patterns)
        self._cache: dict[tuple[bytes, bool], Origin] = {}

    def of(self, resource: bytes, *, local: bool) -> Origin:
        """The origin of an OTLP Resource.

        Args:
            resource: the bytes of the message.
            local: whether it was sent from this host, so that this host's name is a true one.
        """
        key = (resource, local)
        origin = self._cache.get(key)
        if origin is None:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            origin = self._cache[key] = self._make(texts(read_resource(resource).attributes), local=local)
        return origin

    def _make(self, attributes: dict[str, str], *, local: bool) -> Origin:
        defaults = self._defaults
        service = _first(attributes, _SERVICE) or defaults.service
        env = _first(attributes, _ENV) or defaults.env
        version = _first(attributes, _VERSION) or (defaults.version if service == defaults.service else "")
        hostname, assumed = self._hostname(attributes, local=local)
        return Origin(
            hostname=hostname,
            host_is_assumed=assumed,
            service=service,
            env=env,
            version=version,
            tags=self._tags(attributes, {"env": env, "service": service, "version": version}),
            attributes=attributes,
        )

    def _hostname(self, attributes: Mapping[str, str], *, local: bool) -> tuple[str, bool]:
        """The host, and whether it is assumed: an operator's word counts as the resource's."""
        if _is_serverless(attributes):
            return "", False
        named = attributes.get("datadog.host.name") or self._defaults.hostname or host_of(attributes)
        if named and named not in _NO_NAMES:
            return named, False
        return self._defaults.this_host if local else "", True

    def _tags(self, attributes: Mapping[str, str], unified: dict[str, str]) -> tuple[str, ...]:
        tags = {name: value for name, value in unified.items() if value}
        for key, value in attributes.items():
            name = _TAG_NAMES.get(key)
            if name is None and key.startswith(_CONTAINER_TAG):
                name = key.removeprefix(_CONTAINER_TAG)
            if name is None and self._pattern is not None and self._pattern.fullmatch(key):
                name = key
            if name and value:
                tags.setdefault(name, value)
        process = next((key for key in _PROCESS if attributes.get(key)), None)
        if process:
            tags[process] = attributes[process]
        return tuple(tag(name, value) for name, value in tags.items())


def host_of(attributes: Mapping[str, str]) -> str:
    """The host that a resource names, in the order of Datadog's own mapping; "" when it names none."""
    if attributes.get("host"):
        return attributes["host"]
    if attributes.get("aws.ecs.launchtype", "").lower() == "fargate":
        return ""
    provider = attributes.get("cloud.provider")
    if provider in _CLOUD_HOSTS:
        # Found or not: beside a cloud's own name for a machine, any other one would count the machine twice.
        return _CLOUD_HOSTS[provider](attributes)
    node = attributes.get("k8s.node.name")
    if node:
        cluster = _cluster(attributes)
        return f"{node}-{cluster}" if cluster else node
    return _first(attributes, ("host.id", "host.name"))


def _gcp_host(attributes: Mapping[str, str]) -> str:
    name, project = attributes.get("host.name", ""), attributes.get("cloud.account.id", "")
    if not name or not project:
        return ""
    if name.count(".") >= 3:  # name.zone.c.project.internal
        name = name.partition(".")[0]
    return f"{name}.{project}"


_CLOUD_HOSTS: Final = {
    "aws": lambda attributes: _first(attributes, ("host.id",)),
    "azure": lambda attributes: _first(attributes, ("host.id", "host.name")),
    "gcp": _gcp_host,
}


def _cluster(attributes: Mapping[str, str]) -> str:
    name = attributes.get("k8s.cluster.name") or attributes.get("azure.resourcegroup.name")
    if name:
        return name
    return next((key.removeprefix(_EKS_CLUSTER) for key in attributes if key.startswith(_EKS_CLUSTER)), "")


def _is_serverless(attributes: Mapping[str, str]) -> bool:
    platform = attributes.get("cloud.platform", "").replace(".", "_")
    if platform in {"azure_app_service", "azure_container_apps"}:
        return True
    fargate = attributes.get("aws.ecs.launchtype", "").lower() == "fargate"
    return fargate and bool(attributes.get("aws.ecs.task.arn"))


def tag(name: str, value: str) -> str:
    """A Datadog tag. A comma would end it, and what is longer than Datadog keeps is cut."""
    return f"{name}:{value}".replace(",", "_").replace("\n", " ")[:MAX_TAG]


def is_local(peer: str) -> bool:
    """Whether a caller's address is this host's: a Unix socket, the loopback interface, or the sidecar itself."""
    if not peer:
        return True
    try:
        return ipaddress.ip_address(peer.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _first(attributes: Mapping[str, str], keys: Sequence[str]) -> str:
    return next((attributes[key] for key in keys if attributes.get(key)), "")


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    if not patterns:
        return None
    return re.compile("|".join(".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns), re.DOTALL)
