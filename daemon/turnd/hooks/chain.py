"""One pass over the subscribers of a point, in the order of their declaration (HOOK-02).

A failing observer is logged and forgotten (HOOK-03); a failing transform stops the chain (HOOK-04); a failing veto
denies (HOOK-05). Nothing that a subscriber does reaches the loop as an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from turnd.hooks.answer import check_messages
from turnd.hooks.subscriber import (
    Answer,
    Observed,
    Subscriber,
    SubscriberFailed,
    Transformed,
    Verdict,
)
from turnd.ports import At, Dispatched, Trace, Veto
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd.v1.jsonform import enum_text

OBSERVE, TRANSFORM, VETO = common.HOOK_MODE_OBSERVE, common.HOOK_MODE_TRANSFORM, common.HOOK_MODE_VETO
TRANSFORM_POINTS = frozenset((common.HOOK_POINT_CONTEXT_ASSEMBLE, common.HOOK_POINT_PRE_MODEL_CALL))
VETO_POINTS = frozenset((common.HOOK_POINT_PRE_TOOL_CALL, common.HOOK_POINT_PLAN_READY))


class WrongPoint(ValueError):
    """A subscriber's mode has no meaning at its point (HOOK-07)."""


class Chain:
    """Implements the port `Hooks`. Raises WrongPoint for a subscriber that could do nothing where it stands.

    The mutable state is the subscribers in force, which `configure` replaces.
    """

    def __init__(self, subscribers: Sequence[Subscriber], trace: Trace) -> None:
        self._trace = trace
        self._at_point: Mapping[int, Sequence[Subscriber]] = {}
        self.configure(subscribers)

    def configure(self, subscribers: Sequence[Subscriber]) -> None:
        """Others from the next dispatch on. Raises WrongPoint; then those before stay."""
        at_point: dict[int, list[Subscriber]] = {}
        for subscriber in subscribers:
            _check(subscriber)
            at_point.setdefault(subscriber.point, []).append(subscriber)
        self._at_point = at_point

    async def dispatch(
        self,
        point: common.HookPoint.ValueType,
        at: At,
        payload: Callable[[], Mapping[str, object]],
    ) -> Dispatched:
        """Calls every subscriber of the point, each seeing what those before it made of the payload."""
        name = enum_text(common.HookPoint, point)
        subscribers = self._at_point.get(point, [])
        with self._trace.span("turnd.hook", {"turnd.point": name, "turnd.subscribers": len(subscribers)}):
            if not subscribers:
                return Dispatched()
            return await self._pass(subscribers, at, payload())

    async def _pass(
        self, subscribers: Sequence[Subscriber], at: At, payload: Mapping[str, object]
    ) -> Dispatched:
        changed: Mapping[str, object] | None = None
        vetoes: list[Veto] = []
        errors: list[event_pb2.HookError] = []
        for group in _groups(subscribers):
            answers = await asyncio.gather(
                *(self._outcome(subscriber, at, changed or payload) for subscriber in group)
            )
            for subscriber, answer in zip(group, answers, strict=True):
                match answer:
                    case SubscriberFailed() as failed:
                        errors.append(_error(subscriber, failed))
                        if subscriber.mode == VETO:
                            why = f"{failed.failure}: {failed}"
                            vetoes.append(Veto(subscriber.name, why, failed=True))
                        if subscriber.mode == TRANSFORM:
                            return Dispatched(changed, tuple(vetoes), tuple(errors))
                    case Transformed(after):
                        changed = after
                    case Verdict(allow=False, reason=reason, denied_call_ids=denied):
                        vetoes.append(Veto(subscriber.name, reason, denied))
                    case Observed() | Verdict():
                        pass
                    case _:
                        assert_never(answer)
        return Dispatched(changed, tuple(vetoes), tuple(errors))

    async def _outcome(
        self, subscriber: Subscriber, at: At, payload: Mapping[str, object]
    ) -> Answer | SubscriberFailed:
        try:
            return await self._ask(subscriber, at, payload)
        except SubscriberFailed as failed:
            return failed

    async def _ask(self, subscriber: Subscriber, at: At, payload: Mapping[str, object]) -> Answer:
        attributes = {
            "turnd.subscriber": subscriber.name,
            "turnd.mode": enum_text(common.HookMode, subscriber.mode),
        }
        with self._trace.span("turnd.hook.subscriber", attributes) as span:
            try:
                async with asyncio.timeout(subscriber.timeout_s):
                    answer = await subscriber.answer(at, payload)
            except TimeoutError:
                span.event("turnd.failed", {"failure": "timeout"})
                raise SubscriberFailed("timeout", f"no answer within {subscriber.timeout_s:g} s") from None
            except SubscriberFailed as failed:
                span.event("turnd.failed", {"failure": failed.failure})
                raise
            except Exception as fault:  # a subscriber's own fault must stay its own
                span.event("turnd.failed", {"failure": "error"})
                raise SubscriberFailed("error", f"{type(fault).__name__}: {fault}") from fault
        return _lawful(subscriber, answer)


def _groups(subscribers: Sequence[Subscriber]) -> list[list[Subscriber]]:
    """In the order of declaration: neighbouring observers side by side, everybody else alone."""
    groups: list[list[Subscriber]] = []
    for subscriber in subscribers:
        if groups and subscriber.mode == groups[-1][-1].mode == OBSERVE:
            groups[-1].append(subscriber)
        else:
            groups.append([subscriber])
    return groups


def _lawful(subscriber: Subscriber, answer: Answer) -> Answer:
    """The answer, where its kind is that of the mode; an observer's is thrown away (HOOK-03)."""
    if subscriber.mode == OBSERVE:
        return Observed()
    expected = Transformed if subscriber.mode == TRANSFORM else Verdict
    if not isinstance(answer, expected):
        raise SubscriberFailed("nonsense", f"expected {expected.__name__}, got {type(answer).__name__}")
    if isinstance(answer, Transformed):
        check_messages(subscriber.point, answer.payload)
    return answer


def _error(subscriber: Subscriber, failed: SubscriberFailed) -> event_pb2.HookError:
    return event_pb2.HookError(
        point=subscriber.point,
        mode=subscriber.mode,
        subscriber=subscriber.name,
        failure=failed.failure,
        message=str(failed),
    )


def _check(subscriber: Subscriber) -> None:
    places = {TRANSFORM: TRANSFORM_POINTS, VETO: VETO_POINTS}.get(subscriber.mode)
    if places is not None and subscriber.point not in places:
        mode, point = (
            enum_text(common.HookMode, subscriber.mode),
            enum_text(common.HookPoint, subscriber.point),
        )
        raise WrongPoint(f"hook {subscriber.name}: a {mode} can do nothing at {point}")
