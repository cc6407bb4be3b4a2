"""An input that a person puts in the place of the proposed one goes through everything again (GATE-08)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from turnd.loop.calls import Call, called
from turnd.loop.gate import DENY, decided_item, propose
from turnd.loop.run import Run
from turnd.ports import CorrectionRefused, Effective
from turnd.rules import plan
from turnd.rules.state import Violation
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd.v1.jsonform import message_to_json


@dataclass(slots=True)
class Corrections:
    """The inputs that were offered for one call while it was asked about, by the digest of what they come to."""

    run: Run
    call: Call
    _offered: dict[str, tuple[plan.Proposal, common.PlanItem]] = field(default_factory=dict)

    async def correct(self, data: bytes) -> Effective:
        """What the call is with this input: by its schema, the vetoes, a preview of this moment, and policy.

        Implements `ports.Correct`.
        """
        run, call = self.run, replace(self.call, corrected=data, veto=None)
        wrong = run.tools.check_input(call.event.provider, call.event.tool, data)
        if wrong is not None:
            raise CorrectionRefused(wrong.message)
        before = await run.dispatch(
            common.HOOK_POINT_PRE_TOOL_CALL, lambda: {"call": message_to_json(called(call))}
        )
        call.veto = next((plan.vetoed(veto) for veto in before.vetoes), None)
        if run.state.open_step is None:
            raise Violation("the call's Step ended meanwhile")
        with run.meter.active():
            proposal = await propose(run, call)
        item = await decided_item(run, call, proposal)
        ready = await run.dispatch(common.HOOK_POINT_PLAN_READY, lambda: {"items": [message_to_json(item)]})
        (item,) = plan.with_vetoes([item], ready.vetoes)
        if item.decision == DENY:
            raise CorrectionRefused(item.reason)
        digest = plan.digest(item)
        self._offered[digest] = proposal, item
        return Effective(item, digest, proposal.rememberable)

    def chosen(self, decided: event_pb2.ApprovalDecided) -> tuple[plan.Proposal, common.PlanItem] | None:
        """What was approved in the place of what was asked about; None where that is as it was."""
        return self._offered[decided.digest] if decided.corrected_input else None
