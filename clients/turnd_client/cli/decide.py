"""approve, deny, answer: settling a request by its id."""

from __future__ import annotations

import sys

import click

from turnd.v1 import common_pb2, event_pb2, sessions_pb2
from turnd.v1.jsonform import message_to_json
from turnd_client.answers import NotAnAnswer, answer_json
from turnd_client.cli.app import Caller, Misused, command, json_option, print_json
from turnd_client.cli.asking import request_id
from turnd_client.client import Client
from turnd_client.screen import Screen

_SCOPES = {"once": common_pb2.APPROVAL_SCOPE_ONCE, "session": common_pb2.APPROVAL_SCOPE_SESSION}


@click.command()
@click.argument("session", metavar="ID")
@click.argument("item", metavar="[ITEM]", required=False, default="")
@click.option(
    "--scope",
    type=click.Choice(list(_SCOPES)),
    default="once",
    show_default=True,
    help="`session` remembers the rule that `turn show ID` prints with the request, until the session ends.",
)
@click.option("--reason", default="", help="Goes into the log.")
@json_option
@command
async def approve(caller: Caller, session: str, item: str, scope: str, reason: str, as_json: bool) -> int:
    """Approve what a session waits to do. ITEM may be left out where exactly one approval is open."""
    async with caller.client() as client:
        request = await _the_one(client, session, item, "approval")
        approval = request.approval
        if scope == "session" and not as_json:
            Screen(sys.stderr).grant(approval.grant)
        decided = await client.decide(
            request.session,
            approval.request_id,
            approve=True,
            scope=_SCOPES[scope],
            reason=reason,
        )
    _print_decided(decided, as_json)
    return 0


@click.command()
@click.argument("session", metavar="ID")
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
@click.argument("session", metavar="ID")
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
    click.echo(f"{outcome} {decided.request_id}")
