"""cost: what was spent, sub-agents included."""

from __future__ import annotations

import click

from turnd.v1 import daemon_pb2
from turnd_client.cli.app import Caller, Misused, command, json_option, print_json
from turnd_client.cli.session_id import SESSION
from turnd_client.cli.table import print_table
from turnd_client.text import visible
from turnd_client.units import cost_text, usd

_HEADS = {"day": "DAY (UTC)", "step": "TURN.STEP"}
_DIMENSIONS = ("session", "model", "day", "step", "purpose")


@click.command()
@click.argument("session", metavar="[ID]", type=SESSION, required=False, default="")
@click.option(
    "--by",
    metavar="WHAT",
    default="",
    help="What is told apart: some of session, model, day, step, purpose, with commas between. Without it session "
    "where ID is given, else model.",
)
@json_option
@command
async def cost(caller: Caller, session: str, by: str, as_json: bool) -> int:
    """Show what a session spent with its sub-agents, or what all sessions spent.

    Every request to a model is counted, those that failed, titles and compaction included. A ~ says that some of it
    was cut off and is estimated, a + that the price of some of it was not known. Days are those of UTC.

    \b
    turn cost --by day,model       what each model cost on each day
    turn cost ID --by step         where in a session the money went
    """
    wanted = [name.strip() for name in by.split(",")] if by else ["session" if session else "model"]
    for name in wanted:
        if name not in _DIMENSIONS:
            raise Misused(f"--by takes some of {', '.join(_DIMENSIONS)}, with commas between, found {name!r}")
    async with caller.client() as client:
        spent = await client.cost(session, by=wanted)
    if as_json:
        print_json({"total_cost_usd": usd(spent.total_nano_usd), "rows": [_json(row) for row in spent.rows]})
        return 0
    if not spent.rows:
        click.echo("nothing was spent")
        return 0
    names = [name for name in _DIMENSIONS if name in wanted]
    if "step" in names and "session" not in names:
        names.insert(0, "session")
    heads = (
        *(_HEADS.get(name, name.upper()) for name in names),
        "REQUESTS",
        "INPUT",
        "CACHED",
        "OUTPUT",
        "COST",
    )
    print_table((heads, *(_row(row, names) for row in spent.rows)))
    total = cost_text(
        spent.total_nano_usd,
        estimated=any(row.estimated for row in spent.rows),
        unpriced=any(row.unpriced for row in spent.rows),
    )
    click.echo(f"total {total}")
    return 0


def _row(row: daemon_pb2.CostRow, names: list[str]) -> tuple[str, ...]:
    tokens = row.tokens
    told = {
        "session": row.session,
        "model": visible(row.model),
        "day": row.day,
        "step": f"{row.turn}.{row.step}" if row.HasField("step") else "-",
        "purpose": row.purpose,
    }
    return (
        *(told[name] for name in names),
        str(row.requests),
        str(tokens.input_tokens + tokens.cache_write_tokens),
        str(tokens.cache_read_tokens),
        str(tokens.output_tokens + tokens.reasoning_tokens),
        cost_text(row.cost_nano_usd, estimated=row.estimated, unpriced=row.unpriced),
    )


def _json(row: daemon_pb2.CostRow) -> dict[str, object]:
    """What is not told apart is null."""
    return {
        "session": row.session or None,
        "model": row.model or None,
        "day": row.day or None,
        "turn": row.turn if row.HasField("turn") else None,
        "step": row.step if row.HasField("step") else None,
        "purpose": row.purpose or None,
        "requests": row.requests,
        "tokens": {field.name: getattr(row.tokens, field.name) for field in row.tokens.DESCRIPTOR.fields},
        "cost_usd": usd(row.cost_nano_usd),
        "estimated": row.estimated,
        "unpriced": row.unpriced,
    }
