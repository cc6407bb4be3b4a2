"""What the log is told of a model request, whatever it is for: the request, and what it cost (BOUND-05, BOUND-14)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from turnd.loop.run import Run, StepFailed
from turnd.ports import Model, ModelRequest
from turnd.rules import canon, estimate, price
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2


def compact_json(value: object) -> bytes:
    """A value as compact JSON, every integer exact."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def estimated(request: ModelRequest) -> int:
    """The estimate of a whole request, in tokens."""
    return estimate.request_tokens(
        request.system,
        (message.tokens for message in request.messages),
        ((tool.wire_name, tool.description, tool.input_schema) for tool in request.tools),
    )


def agent_request(
    model: str, request: ModelRequest, offered: Sequence[event_pb2.OfferedTool] = (), whole: bytes = b""
) -> event_pb2.AgentRequest:
    """The event of a request that is about to be made."""
    parameters = compact_json(request.parameters) if request.parameters else b""
    return event_pb2.AgentRequest(
        purpose=request.purpose,
        model=model,
        parameters=parameters,
        tools=offered,
        tools_withheld=request.tools_withheld,
        estimated_tokens=estimated(request),
        messages=len(request.messages),
        digest=canon.request_digest(
            model,
            request.system,
            (message.digest for message in request.messages),
            ((t.wire_name, t.description, t.input_schema) for t in request.tools),
            request.tools_withheld,
            parameters,
        ),
        whole=whole,
    )


def usage(
    run: Run,
    model: Model,
    request: ModelRequest,
    attempt: int,
    counted: common.TokenCounts | None,
    received_bytes: int,
    reasoning_bytes: int,
) -> event_pb2.Usage:
    """What one attempt cost; an estimate where the vendor's counts never came, from the bytes that did.

    `reasoning_bytes` are apart from `received_bytes`.
    """
    tokens = counted or common.TokenCounts(
        input_tokens=estimated(request),
        output_tokens=estimate.tokens_of_bytes(received_bytes),
        reasoning_tokens=estimate.tokens_of_bytes(reasoning_bytes),
    )
    settings = run.settings
    known = model.price(run.world.clock.now_us(), tokens)
    return event_pb2.Usage(
        purpose=request.purpose,
        attempt=attempt,
        model=model.spec.id,
        tokens=tokens,
        cost_nano_usd=0 if known is None else price.cost(known, tokens),
        free=known is not None and known.free,
        estimated=counted is None,
        unpriced=known is None,
        weighted_tokens=price.weighted_tokens(
            tokens, settings.sampling_token_weight, settings.prefill_token_weight
        ),
    )


def unpriced(run: Run, model: Model) -> bool:
    """No price is known for the model, and the session or one above it has a cost bound (BOUND-08)."""
    bounded = any(view.bounds.HasField("max_cost_nano_usd") for view in run.path)
    return bounded and model.price(run.world.clock.now_us(), common.TokenCounts()) is None


def refuse_unpriced(run: Run) -> None:
    """Before anything is spent. Raises StepFailed where what is spent could not be counted."""
    if unpriced(run, run.model):
        raise StepFailed(
            event_pb2.ErrorStop(
                source="model",
                category="unpriced",
                message=f"no price is known for {run.model.spec.id}, and max_cost_usd is set, for the session or for "
                f'one above it: add [prices."{run.model.spec.id}"] with input_per_mtok and output_per_mtok, or with '
                "free = true, to the configuration, or leave max_cost_usd out",
            )
        )
