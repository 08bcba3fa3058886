"""How Datadog names what OpenTelemetry describes by attributes: operation, resource, type, and attributes themselves.

Rules of Datadog's own OTLP mapping, in its newer form (operation names by semantic conventions). Attributes are looked
up after renaming, the span's before its resource's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

MAX_RESOURCE: Final = 5000
MAX_NAME: Final = 100

KINDS: Final = ("unspecified", "internal", "server", "client", "producer", "consumer")

_RENAMED: Final = {
    "client.address": "http.client_ip",
    "http.response.status_code": "http.status_code",
    "http.request.method": "http.method",
    "url.full": "http.url",
    "user_agent.original": "http.useragent",
    "server.address": "http.server_name",
    "network.protocol.version": "http.version",
    "http.request.body.size": "http.request.content_length",
    "http.response.body.size": "http.response.content_length",
    "http.request.header.referrer": "http.referrer",
}
_REQUEST_HEADER: Final = "http.request.header."

SQL_SYSTEMS: Final = frozenset(
    {
        "cockroachdb", "clickhouse", "db2", "derby", "edb", "firebird", "h2", "hsqldb", "informix", "ingres",
        "instantdb", "interbase", "mariadb", "maxdb", "mssql", "microsoft.sql_server", "mysql", "oracle", "oracle.db",
        "other_sql", "pervasive", "postgresql", "progress", "redshift", "sqlite", "sybase", "teradata", "vertica",
    }
)  # fmt: skip
_OWN_TYPE: Final = frozenset({"cassandra", "redis", "memcached", "mongodb", "elasticsearch", "opensearch"})

_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9_.]+")
_NOT_IN_SERVICE: Final = re.compile(r"[^\w:./-]+")


def attribute_name(key: str) -> str:
    """Datadog's name for an attribute."""
    renamed = _RENAMED.get(key)
    if renamed is None and key.startswith(_REQUEST_HEADER):
        renamed = f"http.request.headers.{key.removeprefix(_REQUEST_HEADER)}"
    return renamed or key


def operation_name(meta: Mapping[str, str], kind: str) -> str:
    """What kind of work a span is, such as `http.server.request` or `postgresql.query`."""
    return (
        meta.get("operation.name")
        or _of_http_or_database(meta, kind)
        or _of_messaging(meta, kind)
        or _of_call(meta, kind)
        or _of_function(meta, kind)
        or ("graphql.server.request" if meta.get("graphql.operation.type") else "")
        or _of_kind(meta, kind)
    )


def _of_http_or_database(meta: Mapping[str, str], kind: str) -> str:
    if meta.get("http.method") and kind in {"client", "server"}:
        return f"http.{kind}.request"
    database = _database(meta)
    return f"{database}.query" if database and kind == "client" else ""


def _of_messaging(meta: Mapping[str, str], kind: str) -> str:
    system, operation = meta.get("messaging.system"), _messaging_operation(meta)
    if system and operation and kind in {"client", "server", "consumer", "producer"}:
        return f"{system}.{operation}"
    return ""


def _of_call(meta: Mapping[str, str], kind: str) -> str:
    system = meta.get("rpc.system")
    if system == "aws-api" and kind == "client":
        service = meta.get("rpc.service")
        return f"aws.{service}.request" if service else "aws.client.request"
    return f"{system}.{kind}.request" if system and kind in {"client", "server"} else ""


def _of_function(meta: Mapping[str, str], kind: str) -> str:
    provider, name = meta.get("faas.invoked_provider"), meta.get("faas.invoked_name")
    if provider and name and kind == "client":
        return f"{provider}.{name}.invoke"
    trigger = meta.get("faas.trigger")
    return f"{trigger}.invoke" if trigger and kind == "server" else ""


def _of_kind(meta: Mapping[str, str], kind: str) -> str:
    if kind in {"client", "server"}:
        protocol = meta.get("network.protocol.name")
        return f"{protocol}.{kind}.request" if protocol else f"{kind}.request"
    return "Internal" if kind == "unspecified" else kind.capitalize()


def resource_name(meta: Mapping[str, str], kind: str, span_name: str) -> str:
    """What the work is done on, such as `GET /orders/{id}` or the statement of a query."""
    return cut_resource(meta.get("resource.name") or _resource(meta, kind) or span_name)


def cut_resource(name: str) -> str:
    """As much of a resource's name as Datadog keeps."""
    return name if len(name) * 4 <= MAX_RESOURCE else name.encode()[:MAX_RESOURCE].decode(errors="ignore")


def _resource(meta: Mapping[str, str], kind: str) -> str:
    if method := meta.get("http.method"):
        path = meta.get({"server": "http.route", "client": "url.template"}.get(kind, ""))
        return _joined("HTTP" if method == "_OTHER" else method, path)
    if operation := _messaging_operation(meta):
        return _joined(operation, meta.get("messaging.destination.name") or meta.get("messaging.destination"))
    if procedure := meta.get("rpc.method"):
        return _joined(procedure, meta.get("rpc.service"))
    if query := meta.get("graphql.operation.type"):
        return _joined(query, meta.get("graphql.operation.name"))
    return (meta.get("db.statement") or meta.get("db.query.text") or "") if _database(meta) else ""


def span_type(meta: Mapping[str, str], kind: str) -> str:
    """Datadog's kind of span, which chooses its icon and its pages: web, http, sql, redis, db, custom and so on."""
    if explicit := meta.get("span.type"):
        return explicit
    if kind == "server":
        return "web"
    if kind != "client":
        return "custom"
    database = _database(meta)
    if not database:
        return "http"
    if database in _OWN_TYPE:
        return database
    return "sql" if database in SQL_SYSTEMS else "db"


def error_message(meta: Mapping[str, str], status_message: str, status_code: Any) -> str:
    """Why a span failed: as said by the span, else as HTTP says."""
    if status_message:
        return status_message
    try:
        code = int(status_code or meta.get("http.status_code") or 0)
        return f"{code} {HTTPStatus(code).phrase}"
    except ValueError:
        return ""


@functools.lru_cache(maxsize=4096)
def normal_operation(name: str) -> str:
    """An operation name that Datadog leaves as it is."""
    usable = _NOT_IN_NAME.sub("_", name)
    start = next((index for index, char in enumerate(usable) if char.isalpha()), len(usable))
    return usable[start : start + MAX_NAME].rstrip("_") or "unnamed_operation"


@functools.lru_cache(maxsize=4096)
def normal_service(name: str) -> str:
    """A service name that Datadog leaves as it is: lower case, no blanks."""
    return _NOT_IN_SERVICE.sub("_", name.lower())[:MAX_NAME].strip("_") or "unnamed-service"


def _database(meta: Mapping[str, str]) -> str:
    return meta.get("db.system") or meta.get("db.system.name") or ""


def _messaging_operation(meta: Mapping[str, str]) -> str:
    return meta.get("messaging.operation") or meta.get("messaging.operation.type") or ""


def _joined(first: str, second: str | None) -> str:
    return f"{first} {second}" if second else first
