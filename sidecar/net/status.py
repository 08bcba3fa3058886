"""One answer per refusal, on each wire: HTTP status and body, gRPC status and trailers, from one DeliveryError."""

from __future__ import annotations

import math
from typing import Final, NoReturn, TypeAlias

import grpc.aio
import orjson
from aiohttp import web
from google.protobuf.duration_pb2 import Duration as ProtoDuration
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status

from sidecar.errors import INVALID_ARGUMENT, DeliveryError, Permanent, Retryable

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
# The specification names only the first; the second is what IANA knows.
PROTOBUF_TYPES: Final = frozenset({PROTOBUF, "application/protobuf"})
# Nobody needs to know the versions of what the server is made of, which the library would tell.
SERVER: Final = "otlp-sidecar"

GrpcContext: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"

# Collectors read at most 64 KiB of an answer, and people less.
_MAX_MESSAGE: Final = 1024
_GRPC_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_NOT_FOUND: Final = 5
_UNIMPLEMENTED: Final = 12
_BAD_REQUEST: Final = "type.googleapis.com/google.rpc.BadRequest"
_RETRY_INFO: Final = "type.googleapis.com/google.rpc.RetryInfo"


class UnsupportedMedia(Permanent):
    """A content type or coding that is not understood. 415; over gRPC the library answers before us."""

    http_status = 415
    grpc_code = INVALID_ARGUMENT
    default_reason = "unsupported_media"


class UnknownPath(Permanent):
    """Nobody serves this path. 404."""

    http_status = 404
    grpc_code = _NOT_FOUND
    default_reason = "unknown_path"


class WrongMethod(Permanent):
    """The path is served, but not with this method. 405; whoever raises it says which in `Allow`."""

    http_status = 405
    grpc_code = _UNIMPLEMENTED
    default_reason = "wrong_method"


def media_type(request: web.BaseRequest) -> str:
    """The request's content type in lower case, without parameters; "" when it has none."""
    value: str = request.headers.get("Content-Type", "")
    if value in {PROTOBUF, JSON}:
        return value
    return value.partition(";")[0].strip().lower()


def http_answer(error: DeliveryError, request: web.BaseRequest) -> web.Response:
    """The HTTP answer: a google.rpc.Status in the request's encoding, JSON where that is unknown.

    `Retry-After` is whole seconds, rounded up: clients ignore fractions, and come again at once on 0.
    """
    encoding = PROTOBUF if media_type(request) in PROTOBUF_TYPES else JSON
    body = status_of(error).SerializeToString() if encoding == PROTOBUF else _json(error)
    headers = {"Content-Type": encoding, "Server": SERVER}
    after = _after(error)
    if after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(after)))
    if error.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(status=error.http_status, body=body, headers=headers)


async def grpc_abort(error: DeliveryError, context: GrpcContext) -> NoReturn:
    """End a call with the error's status.

    RetryInfo goes out in both trailers that clients read: in `grpc-status-details-bin`, and alone in
    `google.rpc.retryinfo-bin`, which is where the Python SDK looks.
    """
    trailers = [("grpc-status-details-bin", status_of(error).SerializeToString())]
    after = _after(error)
    if after is not None:
        trailers.append(("google.rpc.retryinfo-bin", _retry_info(after).SerializeToString()))
    await context.abort(_GRPC_CODES[error.grpc_code], _message(error), tuple(trailers))
    raise AssertionError("abort returned")


def status_of(error: DeliveryError) -> Status:
    """The error as a google.rpc.Status with its details."""
    message = _message(error)
    status = Status(code=error.grpc_code, message=message)
    after = _after(error)
    if after is not None:
        status.details.add().Pack(_retry_info(after))
    elif error.grpc_code == INVALID_ARGUMENT:
        status.details.add().Pack(BadRequest(field_violations=[BadRequest.FieldViolation(description=message)]))
    return status


def _json(error: DeliveryError) -> bytes:
    message = _message(error)
    status: dict[str, object] = {"code": error.grpc_code, "message": message}
    after = _after(error)
    if after is not None:
        status["details"] = [{"@type": _RETRY_INFO, "retryDelay": f"{after:.9f}".rstrip("0").rstrip(".") + "s"}]
    elif error.grpc_code == INVALID_ARGUMENT:
        status["details"] = [{"@type": _BAD_REQUEST, "fieldViolations": [{"description": message}]}]
    return orjson.dumps(status)


def _after(error: DeliveryError) -> float | None:
    if isinstance(error, Retryable) and error.after is not None:
        return max(0.0, error.after)
    return None


def _retry_info(after: float) -> RetryInfo:
    nanos = round(after * 1e9)
    return RetryInfo(retry_delay=ProtoDuration(seconds=nanos // 10**9, nanos=nanos % 10**9))


def _message(error: DeliveryError) -> str:
    text = str(error)
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"
