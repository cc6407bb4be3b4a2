"""What the errors of many servers mean."""

from __future__ import annotations

from typing import Any

import pytest

from turnd.models.chat_errors import vendor_error
from turnd.v1 import common_pb2 as common

pytestmark = pytest.mark.req("MODEL-03")

RATE_LIMITED = common.MODEL_ERROR_CATEGORY_RATE_LIMITED
OVERLOADED = common.MODEL_ERROR_CATEGORY_OVERLOADED
CONTEXT = common.MODEL_ERROR_CATEGORY_CONTEXT_LENGTH_EXCEEDED
AUTH = common.MODEL_ERROR_CATEGORY_AUTH_ERROR
INVALID = common.MODEL_ERROR_CATEGORY_INVALID_REQUEST
FILTERED = common.MODEL_ERROR_CATEGORY_CONTENT_FILTERED
QUOTA = common.MODEL_ERROR_CATEGORY_QUOTA_EXHAUSTED
UNKNOWN = common.MODEL_ERROR_CATEGORY_UNKNOWN


def said(message: str, **values: Any) -> dict[str, object]:
    return {"message": message, **values}


@pytest.mark.parametrize(
    ("status", "body", "category"),
    [
        (401, said("Incorrect API key", code="invalid_api_key"), AUTH),
        (403, said("Country not supported"), AUTH),
        (403, said("insufficient credits"), QUOTA),
        (400, said("bad", type="invalid_request_error"), INVALID),
        (404, said("The model `x` does not exist", code="model_not_found"), INVALID),
        (405, "", INVALID),
        (422, said("unprocessable"), INVALID),
        (501, said("not implemented"), INVALID),
        (
            400,
            said("This model's maximum context length is 8192 tokens", code="context_length_exceeded"),
            CONTEXT,
        ),
        (
            400,
            said(
                "request (4476 tokens) exceeds the available context size", type="exceed_context_size_error"
            ),
            CONTEXT,
        ),
        (400, said("This model's maximum context length is 8192 tokens."), CONTEXT),
        (400, said("the prompt is too long"), CONTEXT),
        (413, said("Please reduce the length of the messages"), CONTEXT),
        (413, said("Request too large for tokens per minute", code="rate_limit_exceeded"), RATE_LIMITED),
        (413, said("Payload too large"), INVALID),
        (500, said("the input is too long for the context window"), CONTEXT),
        (400, said("flagged", code="content_filter"), FILTERED),
        (400, said("flagged", code="content_policy_violation"), FILTERED),
        (402, said("pay first"), QUOTA),
        (
            429,
            said("You exceeded your current quota", code="insufficient_quota", type="insufficient_quota"),
            QUOTA,
        ),
        (429, said("Insufficient balance"), QUOTA),
        (429, said("Rate limit reached", code="rate_limit_exceeded"), RATE_LIMITED),
        (429, said("You exceeded your current quota, please check your plan", code=429), RATE_LIMITED),
        (429, "", RATE_LIMITED),
        (408, "", OVERLOADED),
        (409, "", OVERLOADED),
        (500, said("oops"), OVERLOADED),
        (502, "<html>Bad gateway</html>", OVERLOADED),
        (503, said("loading model", code=503, type="unavailable_error"), OVERLOADED),
        (529, said("Overloaded", type="overloaded_error"), OVERLOADED),
        (302, "", UNKNOWN),
        (None, said("server had an error", type="server_error"), OVERLOADED),
        (None, said("provider returned error", code=502), OVERLOADED),
        (None, said("slow down", code="rate_limit_exceeded"), RATE_LIMITED),
        (None, said("too many", code="429"), RATE_LIMITED),
        (None, said("wrong", type="BadRequestError", code=400), INVALID),
        (None, said("too long", code="context_length_exceeded"), CONTEXT),
        (None, said("filtered", code="content_filter"), FILTERED),
        (None, said("something else"), UNKNOWN),
        (None, None, UNKNOWN),
    ],
)
def test_categories(status: int | None, body: object, category: common.ModelErrorCategory.ValueType) -> None:
    assert vendor_error(status, body).category == category


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        ({"message": " no ", "code": "bad", "type": "t"}, "no", "HTTP 400 bad"),
        ({"message": "no", "code": 400, "type": "t"}, "no", "HTTP 400 t"),
        ({"message": "no", "code": None}, "no", "HTTP 400"),
        ([{"error": {"message": "in a list", "code": 400}}], "in a list", "HTTP 400"),
        ({"error": "just a text"}, "just a text", "HTTP 400"),
        ({"detail": "Not Found"}, "Not Found", "HTTP 400"),
        ({"detail": [{"msg": "x"}]}, "the server gave no reason", "HTTP 400"),
        ("<html>no</html>", "<html>no</html>", "HTTP 400"),
        ("", "the server gave no reason", "HTTP 400"),
        (None, "the server gave no reason", "HTTP 400"),
        ([], "the server gave no reason", "HTTP 400"),
    ],
)
def test_message_and_code_wherever_they_are(body: object, message: str, code: str) -> None:
    found = vendor_error(400, body)
    assert (found.message, found.code) == (message, code)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"message": "no", "code": 503}, "503"),
        ({"message": "no", "code": 500, "type": "server_error"}, "server_error"),
        ({"message": "no"}, ""),
    ],
)
def test_the_code_of_an_error_in_a_stream_claims_no_http_status(body: object, code: str) -> None:
    assert vendor_error(None, body).code == code
