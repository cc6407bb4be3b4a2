"""policy: which rules there are, what they say of one call, and the end of those that decisions have stored."""

from __future__ import annotations

import json
from pathlib import Path

import click

from turnd.v1 import common_pb2 as common
from turnd.v1 import daemon_pb2
from turnd.v1.jsonform import enum_text
from turnd_client.cli.app import Caller, Misused, command, json_option, print_json
from turnd_client.cli.table import print_table
from turnd_client.text import visible


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def policy(context: click.Context, as_json: bool) -> None:
    """Show the policy rules in force, or what they say of one call; remove one that a decision has stored."""
    if context.invoked_subcommand is None:
        policies(as_json)


@policy.command()
@click.argument("tool")
@click.argument("data", metavar="JSON")
@click.option("--profile", metavar="NAME", default="", help="Only the tools of this profile.")
@json_option
@command
async def explain(caller: Caller, tool: str, data: str, profile: str, as_json: bool) -> int:
    """Say what policy decides for a call of TOOL with the input JSON in this directory.

    Nobody is asked, and nothing of the call runs. TOOL may be written with its provider, as workspace.run_command.
    """
    try:
        value = json.loads(data)
    except ValueError as wrong:
        raise Misused(f'expected the input as JSON, such as \'{{"command": "ls"}}\': {wrong}') from None
    if not isinstance(value, dict):
        raise Misused("expected the input as a JSON object")
    async with caller.client() as client:
        said = await client.explain_policy(
            str(Path.cwd()), tool, data.encode(), profile=profile, environment=caller.environment
        )
    decision = enum_text(common.PolicyAction, said.decision)
    if as_json:
        print_json({"decision": decision, "rule": said.rule or None, "downgraded": said.downgraded})
    else:
        click.echo(f"{decision}: {visible(said.reason)}")
    return 0


@policy.command()
@click.argument("name", metavar="NAME")
@json_option
@command
async def remove(caller: Caller, name: str, as_json: bool) -> int:
    """Remove a rule that a decision for always has stored: the next plan asks again."""
    async with caller.client() as client:
        await client.remove_policy(name)
    if as_json:
        print_json({"removed": name})
    else:
        click.echo(f"removed {name}")
    return 0


@command
async def policies(caller: Caller, as_json: bool) -> int:
    async with caller.client() as client:
        listed = await client.list_policy(str(Path.cwd()))
    rules = listed.rules
    for warning in listed.warnings:
        caller.say(visible(warning))
    if as_json:
        for rule in rules:
            print_json(_json(rule))
    elif rules:
        rows = [(*map(visible, (_action(rule), rule.name, _match(rule), rule.source)),) for rule in rules]
        print_table((("ACTION", "NAME", "MATCH", "SOURCE"), *rows))
    else:
        click.echo("there are no rules: what changes something is asked about")
    return 0


def _action(rule: daemon_pb2.PolicyRule) -> str:
    return enum_text(common.PolicyAction, rule.action)


def _match(rule: daemon_pb2.PolicyRule) -> str:
    fields = json.loads(rule.match)
    return (
        " ".join(f"{name}={json.dumps(values, ensure_ascii=False)}" for name, values in fields.items()) or "*"
    )


def _json(rule: daemon_pb2.PolicyRule) -> dict[str, object]:
    return {
        "action": _action(rule),
        "name": rule.name,
        "match": json.loads(rule.match),
        "source": rule.source,
        "layer": rule.layer,
    }
