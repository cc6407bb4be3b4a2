"""What the errors of servers that speak Chat Completions mean, in the categories of models.md (MODEL-03)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from turnd.v1 import common_pb2 as common

_CONTEXT_CODES = {
    "context_length_exceeded",
    "exceed_context_size_error",
    "context_window_exceeded",
    "model_context_window_exceeded",
}
_CONTEXT_TEXT = re.compile(
    r"maximum context length|context[ _](length|window|size)|(prompt|input)( is|'s)? too long"
    r"|too many (input |prompt )?tokens|reduce the length"
)
_FILTER_CODES = {
    "content_filter",
    "content_filtered",
    "content_policy_violation",
    "responsibleaipolicyviolation",
}
_QUOTA_CODES = {
    "insufficient_quota",
    "quota_exhausted",
    "billing_hard_limit_reached",
    "insufficient_balance",
    "insufficient_credits",
}
_QUOTA_TEXT = re.compile(r"insufficient[ _](quota|balance|credits?|funds)")
_CODES_OF_STATUS = {
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "not_found_error": 404,
    "model_not_found": 404,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "too_many_requests": 429,
    "server_error": 500,
    "internal_server_error": 500,
    "internalservererror": 500,
    "api_error": 500,
    "service_unavailable": 503,
    "unavailable_error": 503,
    "timeout": 504,
    "overloaded": 529,
    "overloaded_error": 529,
}
_BUSY_STATUS = {408, 409, 425}
_NOT_OFFERED_STATUS = {501, 505}


@dataclass(frozen=True, slots=True)
class VendorError:
    """What a server said. Nothing in it is redacted yet."""

    category: common.ModelErrorCategory.ValueType
    message: str
    code: str


def vendor_error(status: int | None, body: object) -> VendorError:
    """Reads an error: of a response with its HTTP status, or of a stream, where there is none.

    `body` is the decoded JSON, or the text where it was not JSON.
    """
    fields = _fields(body)
    codes = [str(fields[key]) for key in ("code", "type") if isinstance(fields.get(key), str | int)]
    message = _message(body, fields)
    named = [code for code in codes if not code.isdigit()]
    shown = [f"HTTP {status}", *named[:1]] if status is not None else (named or codes)[:1]
    meant = _status_of(codes) if status is None else status
    return VendorError(
        category=_category(meant, {code.lower() for code in codes}, message.lower()),
        message=message,
        code=" ".join(shown),
    )


def _category(status: int | None, names: set[str], text: str) -> common.ModelErrorCategory.ValueType:
    if names & _CONTEXT_CODES or (status in (400, 413, 422, 500) and _CONTEXT_TEXT.search(text)):
        return common.MODEL_ERROR_CATEGORY_CONTEXT_LENGTH_EXCEEDED
    if names & _FILTER_CODES:
        return common.MODEL_ERROR_CATEGORY_CONTENT_FILTERED
    if status == 402 or names & _QUOTA_CODES or (status in (403, 429) and _QUOTA_TEXT.search(text)):
        return common.MODEL_ERROR_CATEGORY_QUOTA_EXHAUSTED
    if status is None:
        return common.MODEL_ERROR_CATEGORY_UNKNOWN
    if status in (401, 403):
        return common.MODEL_ERROR_CATEGORY_AUTH_ERROR
    if status == 429 or (status == 413 and "rate_limit_exceeded" in names):
        return common.MODEL_ERROR_CATEGORY_RATE_LIMITED
    if status in _BUSY_STATUS or (status >= 500 and status not in _NOT_OFFERED_STATUS):
        return common.MODEL_ERROR_CATEGORY_OVERLOADED
    if status >= 400:
        return common.MODEL_ERROR_CATEGORY_INVALID_REQUEST
    return common.MODEL_ERROR_CATEGORY_UNKNOWN


def _fields(body: object) -> Mapping[str, object]:
    """The object that has message and code: vendors put it under `error`, or into a list of one."""
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        return {}
    inner = body.get("error")
    return cast(Mapping[str, object], inner if isinstance(inner, dict) else body)


def _message(body: object, fields: Mapping[str, object]) -> str:
    for key in ("message", "error", "detail"):
        said = fields.get(key)
        if isinstance(said, str) and said.strip():
            return said.strip()
    if isinstance(body, str) and body.strip():
        return body.strip()
    return "the server gave no reason"


def _status_of(codes: list[str]) -> int | None:
    """The HTTP status that an error in a stream stands for."""
    for code in codes:
        if code.isdigit() and 400 <= int(code) < 600:
            return int(code)
        if code.lower() in _CODES_OF_STATUS:
            return _CODES_OF_STATUS[code.lower()]
    return None
