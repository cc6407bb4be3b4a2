"""approve, deny, answer: settling a request by its id."""

from __future__ import annotations

import sys

import click

from turnd.v1 import common_pb2, event_pb2, sessions_pb2
from turnd.v1.jsonform import message_to_json
from turnd_client.answers import NotAnAnswer, answer_json
from turnd_client.cli.app import Caller, Misused, command, json_option, print_json
from turnd_client.cli.asking import REMEMBERED, request_id
from turnd_client.cli.corrected import edited, input_of
from turnd_client.cli.session_id import SESSION
from turnd_client.client import Client
from turnd_client.screen import Screen

_SCOPES = {
    "once": common_pb2.APPROVAL_SCOPE_ONCE,
    "session": common_pb2.APPROVAL_SCOPE_SESSION,
    "always": common_pb2.APPROVAL_SCOPE_ALWAYS,
}


@click.command()
@click.argument("session", metavar="ID", type=SESSION)
@click.argument("item", metavar="[ITEM]", required=False, default="")
@click.option(
    "--scope",
    type=click.Choice(list(_SCOPES)),
    default="once",
    show_default=True,
    help="`session` and `always` remember the rule that `turn show ID` prints with the request: for the session and "
    "its sub-agents until it ends, or for the workspace and the profile until `turn policy remove`.",
)
@click.option(
    "--input",
    "given",
    metavar="JSON|@FILE",
    help="Runs with this input in the place of the proposed one; @- reads it from the standard input. It must fit the "
    "tool and be allowed by policy, or else the request stays open. The model is told what ran.",
)
@click.option("--edit", is_flag=True, help="The same, with the proposed input in $VISUAL or $EDITOR.")
@click.option("--reason", default="", help="Goes into the log.")
@json_option
@command
async def approve(
    caller: Caller,
    session: str,
    item: str,
    scope: str,
    given: str | None,
    edit: bool,
    reason: str,
    as_json: bool,
) -> int:
    """Approve what a session waits to do. ITEM may be left out where exactly one approval is open."""
    if edit and given is not None:
        raise Misused("--input gives the input, --edit asks for it: give one of them")
    remembers = _SCOPES[scope] in REMEMBERED
    if (edit or given is not None) and remembers:
        raise Misused("another input is approved once: what is remembered is what was proposed")
    corrected = b"" if given is None else input_of(given)
    async with caller.client() as client:
        request = await _the_one(client, session, item, "approval")
        approval = request.approval
        if remembers and request.cut:
            raise Misused(
                "the rule is too large to be shown here, and is not remembered unseen: approve once"
            )
        if edit:
            corrected = edited(approval.item.input)
        if remembers and not as_json:
            Screen(sys.stderr).grant(approval.grant, REMEMBERED[_SCOPES[scope]])
        decided = await client.decide(
            request.session,
            approval.request_id,
            approve=True,
            scope=_SCOPES[scope],
            reason=reason,
            # A request that is settled already has no rule here, and is refused whatever it says.
            grant=approval.grant if remembers and approval.HasField("grant") else None,
            corrected_input=corrected,
        )
    _print_decided(decided, as_json)
    return 0


@click.command()
@click.argument("session", metavar="ID", type=SESSION)
@click.argument("item", metavar="[ITEM]", required=False, default="")
@click.option("--reason", default="", help="Told to the model, and in the log.")
@json_option
@command
async def deny(caller: Caller, session: str, item: str, reason: str, as_json: bool) -> int:
    """Deny what a session waits to do. ITEM may be left out where exactly one approval is open."""
    async with caller.client() as client:
        request = await _the_one(client, session, item, "approval")
        decided = await client.decide(
            request.session, request.approval.request_id, approve=False, reason=reason
        )
    _print_decided(decided, as_json)
    return 0


@click.command()
@click.argument("session", metavar="ID", type=SESSION)
@click.argument("item_and_text", metavar="[ITEM] TEXT", nargs=-1, required=True)
@json_option
@command
async def answer(caller: Caller, session: str, item_and_text: tuple[str, ...], as_json: bool) -> int:
    """Answer a question of the model's. ITEM may be left out where exactly one question is open."""
    if len(item_and_text) > 2:
        raise Misused("expected ID, ITEM and one TEXT: put the text in quotes")
    *items, text = item_and_text
    async with caller.client() as client:
        request = await _the_one(client, session, items[0] if items else "", "interactive")
        question = request.interactive
        try:
            output = answer_json(text, question.output_schema)
        except NotAnAnswer as wrong:
            raise Misused(str(wrong)) from wrong
        answered = await client.answer(request.session, question.request_id, output)
    if as_json:
        print_json(message_to_json(answered))
    else:
        click.echo(f"answered {answered.request_id}")
    return 0


async def _the_one(client: Client, session: str, item: str, kind: str) -> sessions_pb2.OpenRequest:
    """The request that is meant; where that is not clear, all are listed and nothing is decided."""
    shown = (await client.get_session(session)).session
    requests = [request for request in shown.open_requests if request.WhichOneof("request") == kind]
    word = "approval" if kind == "approval" else "question"
    if not item:
        if not requests:
            raise Misused(f"no {word} is open in session {shown.id}")
        if len(requests) > 1:
            raise Misused(f"{len(requests)} {word}s are open, name one of them:\n{_listed(requests)}")
        return requests[0]
    found = [request for request in requests if request_id(request).startswith(item)]
    exact = [request for request in found if request_id(request) == item]
    if len(exact or found) > 1:
        raise Misused(f"several {word}s begin with {item}:\n{_listed(found)}")
    if exact or found:
        return (exact or found)[0]
    # One that is settled already is the daemon's to refuse: it knows who was first (GATE-07).
    placeholder = sessions_pb2.OpenRequest(session=shown.id)
    if kind == "approval":
        placeholder.approval.request_id = item
    else:
        placeholder.interactive.request_id = item
    return placeholder


def _listed(requests: list[sessions_pb2.OpenRequest]) -> str:
    return "\n".join(f"  {request_id(request)}  {_subject(request)}" for request in requests)


def _subject(request: sessions_pb2.OpenRequest) -> str:
    if request.HasField("approval"):
        return f"{request.approval.item.provider}.{request.approval.item.tool}"
    return f"{request.interactive.provider}.{request.interactive.tool}"


def _print_decided(decided: event_pb2.ApprovalDecided, as_json: bool) -> None:
    if as_json:
        print_json(message_to_json(decided))
        return
    outcome = common_pb2.ApprovalOutcome.Name(decided.outcome).removeprefix("APPROVAL_OUTCOME_").lower()
    changed = " with another input" if decided.corrected_input else ""
    click.echo(f"{outcome} {decided.request_id}{changed}")
    if decided.HasField("stored"):
        click.echo(f"stored {decided.stored.name}")
