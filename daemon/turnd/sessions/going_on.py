"""Continue and Resume: a new Turn that no message of a person opens (LOOP-11, BOUND-04)."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message as Payload

from turnd.loop.session import LiveSession
from turnd.ports import AnsweredRequest, Log
from turnd.rules import bounds, lifecycle
from turnd.rules.event import Draft
from turnd.rules.lifecycle import Transition
from turnd.rules.state import Violation
from turnd.rules.status import SessionView, merged_bounds
from turnd.sessions.refusal import CommandRefused, invalid, not_now
from turnd.sessions.tree import Tree
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd.v1.jsonform import enum_text

CONTINUED = (
    "The session goes on with a new allowance: tools can be used again. Go on with the task where it stopped."
)
RESUMED = (
    "The previous turn ended before its task was done ({reason}). Continue where it stopped. Look at the state of "
    "things first: a call that was cut off may have had effects, or none."
)


_FIELDS = {
    common.LIMIT_DIMENSION_MAX_TURNS: "max_turns",
    common.LIMIT_DIMENSION_MAX_COST_USD: "max_cost_nano_usd",
    common.LIMIT_DIMENSION_MAX_WALL_CLOCK_S: "max_wall_clock_ms",
}


class GoingOn:
    """Opens a Turn with a synthetic message, in one transaction with what allows it."""

    def __init__(self, log: Log, tree: Tree) -> None:
        self._log = log
        self._tree = tree

    async def continue_(
        self,
        live: LiveSession,
        transition: Transition,
        allowance: common.Bounds,
        client: str,
        answered: AnsweredRequest | None,
    ) -> None:
        """Goes on behind a bound. Raises CommandRefused where the allowance leaves nothing, naming what is short."""
        view = self._log.view(live.session)
        self._check_allowance(view, merged_bounds(view.bounds, allowance))
        changed = event_pb2.SessionChanged(allowance=allowance, client=client)
        await self._begin(live, transition, [changed], CONTINUED, client, answered)

    async def resume(
        self,
        live: LiveSession,
        transition: Transition,
        client: str,
        answered: AnsweredRequest | None,
    ) -> None:
        """Goes on after a Turn that was cut off. Raises CommandRefused where the last Turn had nothing left to do."""
        reason = self._log.view(live.session).last_reason
        if not lifecycle.can_resume(reason):
            how = (
                f"the last turn is {enum_text(common.TurnEndReason, reason)}"
                if reason
                else "no turn has ended yet"
            )
            raise not_now(
                f"there is nothing to resume: {how}; only one that was interrupted, aborted, or "
                "ended by an error or at the output limit can be resumed. Send a message instead"
            )
        text = RESUMED.format(reason=enum_text(common.TurnEndReason, reason))
        await self._begin(live, transition, [], text, client, answered)

    def _check_allowance(self, view: SessionView, merged: common.Bounds) -> None:
        spent = bounds.Spent(
            steps=view.steps,
            cost_nano_usd=self._tree.spent_nano_usd(view.id),
            wall_clock_ms=view.active_ms,
        )
        short = bounds.hits(merged, spent)
        if short:
            said = "; ".join(bounds.describe(hit) for hit in short)
            field = _FIELDS[short[0].dimension]
            raise invalid(f"allowance.{field}", f"the new allowance is used up already: {said}; give more")

    async def _begin(
        self,
        live: LiveSession,
        transition: Transition,
        before: Sequence[Payload],
        text: str,
        client: str,
        answered: AnsweredRequest | None,
    ) -> None:
        session = live.session
        block = common.ContentBlock(text=common.TextBlock(text=text))
        opening = [Draft(session, payload) for payload in before]
        if transition.reopen:
            opening.insert(0, Draft(session, event_pb2.SessionReopened(client=client)))
        opening += [
            Draft(session, event_pb2.TurnStart(turn=self._log.state(session).next_turn)),
            Draft(session, event_pb2.UserMessage(blocks=[block], client=client), synthetic=True),
        ]
        try:
            await live.begin(opening, answered)
        except Violation as violation:
            raise _overtaken(violation) from violation


def _overtaken(violation: Violation) -> CommandRefused:
    return not_now(f"another command was first: {violation}; look at the session again")
