"""Writes `semconv.txt`: OpenTelemetry's registered attribute keys, less those that carry user content.

`make semconv` runs this, after an update of opentelemetry-semantic-conventions or of the list below.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

from processors.allowlist.presets import SEMCONV_FILE

EXCLUDED: Final[Mapping[str, tuple[str, ...]]] = {
    "prompts, completions, messages, and what models and tools are given and give": (
        "gen_ai.prompt", "gen_ai.completion", "gen_ai.input.messages", "gen_ai.output.messages",
        "gen_ai.system_instructions", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result",
        "gen_ai.tool.definitions", "gen_ai.tool.description", "gen_ai.agent.description",
        "gen_ai.retrieval.query.text", "gen_ai.retrieval.documents", "gen_ai.evaluation.explanation",
        "gen_ai.request.stop_sequences", "mcp.resource.uri",
    ),
    "queries and their parameters": (
        "db.statement", "db.query.text", "db.query.parameter.*", "db.operation.parameter.*", "graphql.document",
        "db.elasticsearch.path_parts.*", "aws.dynamodb.item_collection_metrics",
    ),
    "credentials, or a place where they stand": (
        "db.connection_string", "*.command", "*.command_args", "*.command_line", "process.title",
        "process.environment_variable.*",
    ),
    "URLs with credentials or a query": (
        "url.full", "url.original", "url.query", "url.fragment", "http.url", "http.target", "*.url.full",
    ),
    "headers, which carry cookies and tokens": (
        "http.request.header.*", "http.response.header.*", "rpc.*.metadata.*",
    ),
    "keys and names that users choose for their data": (
        "messaging.kafka.message.key", "messaging.rocketmq.message.keys", "messaging.gcp_pubsub.message.ordering_key",
        "messaging.rabbitmq.destination.routing_key", "aws.s3.key", "aws.s3.copy_source", "aws.s3.delete",
        "faas.document.name", "cloudevents.event_subject", "file.name", "file.path", "file.directory",
        "file.symbolic_link.target_path",
    ),
    "who the user is": (
        "user.*", "enduser.*", "db.user", "process.owner", "process.*user.*", "file.owner.*", "file.group.*",
        "feature_flag.context.id", "device.id", "app.installation.id", "tls.client.certificate*",
        "tls.client.subject", "tls.client.issuer", "tls.client.hash.*", "tls.client.ja3",
    ),
    "where the user is": (
        "client.address", "source.address", "network.peer.address", "http.client_ip", "net.peer.ip",
        "net.sock.peer.addr", "geo.locality.name", "geo.location.*", "geo.postal_code",
    ),
    "free text and copies of records, which quote what was going on": (
        "log.record.original", "error.message", "*.error.message", "*.error_message", "otel.status_description",
        "feature_flag.result.value", "*.change.title", "pprof.profile.comment", "*.annotation.*",
    ),
}  # fmt: skip
"""Keys that are left out, by reason. `exception.message` and `exception.stacktrace` stay: a fault can't be found
without them, and `max_stack_length` bounds them."""


def generate() -> str:
    """The file's text, from the installed package."""
    excluded = [pattern for patterns in EXCLUDED.values() for pattern in patterns]
    kept = {key for key in _registered() if not any(fnmatchcase(key, pattern) for pattern in excluded)}
    return "".join(f"{key}\n" for key in sorted(kept))


def _registered() -> Iterator[str]:
    for package in ("opentelemetry.semconv.attributes", "opentelemetry.semconv._incubating.attributes"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            for name, key in vars(importlib.import_module(module.name)).items():
                if name.isupper() and isinstance(key, str):
                    # A template names a family of keys; an attribute whose own name ends so is none.
                    family = name.endswith("_TEMPLATE") and not key.endswith(".template")
                    yield f"{key}.*" if family else key


if __name__ == "__main__":
    SEMCONV_FILE.write_text(generate(), encoding="utf-8")
