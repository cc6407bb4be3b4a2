"""Line 9b: interactive calls ask people, one after another, and are never invoked."""

from __future__ import annotations

from collections.abc import Sequence

from turnd.loop.calls import Call, record, refuse
from turnd.loop.run import Run
from turnd.rules.results import capped
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2


async def ask_in_turn(run: Run, calls: Sequence[Call]) -> None:
    """Puts each question and waits for its answer before the next (SCHED-05)."""
    for call in calls:
        if run.view.unattended:
            await refuse(
                run,
                call,
                common.TOOL_ERROR_CATEGORY_DENIED,
                "nobody is there to answer: the session runs unattended; go on with what you know",
            )
        else:
            await _ask(run, call)


async def _ask(run: Run, call: Call) -> None:
    request = event_pb2.InteractiveRequest(
        request_id=run.world.ids.request(),
        call_id=call.id,
        provider=call.event.provider,
        tool=call.event.tool,
        input=call.input,
        output_schema=call.spec.output_schema,
    )
    expires_us = run.world.clock.now_us() + round(run.settings.approval_timeout_s * 1_000_000)
    request.expires.FromMicroseconds(expires_us)
    await run.append(request)
    attributes = {"gen_ai.tool.name": call.spec.name, "turnd.provider": call.event.provider}
    with run.meter.waiting(), run.world.trace.span("turnd.tool", attributes) as span:
        answered = await run.world.people.answer(run.session, request.request_id)
        span.set({"turnd.is_error": answered.outcome != common.ANSWER_OUTCOME_ANSWERED})
    if answered.outcome != common.ANSWER_OUTCOME_ANSWERED:
        await refuse(
            run,
            call,
            common.TOOL_ERROR_CATEGORY_DENIED,
            "nobody answered in time; go on with what you know, or ask again",
        )
        return
    call.raw_result = answered.output
    await record(
        run,
        call,
        event_pb2.ToolResult(
            call_id=call.id, content=capped(answered.output, run.settings.tool_result_bytes)
        ),
    )
