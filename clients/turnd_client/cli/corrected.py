"""The input that a person puts in the place of the proposed one: from the command line, a file, or an editor."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from turnd_client.cli.told import Misused


def input_of(given: str) -> bytes:
    """What `--input` names, as it is. Raises Misused where that is no JSON object, or cannot be read."""
    if not given.startswith("@"):
        return _object(given.encode(), "--input")
    name = given[1:]
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise Misused(f"{name} could not be read: {error.strerror or error}") from None
    return _object(data, "the standard input" if name == "-" else name)


def edited(proposed: bytes) -> bytes:
    """The proposed input after a person has had it in an editor. Raises Misused where it was left as it was."""
    if not proposed:
        raise Misused("what was proposed is not known here: give the input with --input")
    shown = json.dumps(json.loads(proposed), indent=2, ensure_ascii=False) + "\n"
    try:
        typed = click.edit(shown, extension=".json")
    except click.ClickException as failed:
        raise Misused(f"the editor failed, and nothing was decided: {failed.message}") from None
    if typed is None or typed == shown:
        raise Misused("the input was left as it was, and nothing was decided: approve without --edit")
    return _object(typed.encode(), "what the editor left")


def _object(data: bytes, where: str) -> bytes:
    try:
        value = json.loads(data)
    except ValueError as wrong:
        raise Misused(f"expected a JSON object in {where}: {wrong}") from None
    if not isinstance(value, dict):
        raise Misused(f"expected a JSON object in {where}, found {json.dumps(value)[:40]}")
    return data
