"""Writes `docs/configuration.md` from the schema: `python -m turnd.config.document`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from turnd.config.kinds import (
    Choice,
    Either,
    Fraction,
    Key,
    Kind,
    Many,
    Named,
    OneOrMany,
    Record,
    Scaled,
    keys_of,
)
from turnd.config.profile import SHIPPED_PROFILE
from turnd.config.schema import Document

_HEAD: Final = """\
# Configuration

`$XDG_CONFIG_HOME/turnd/config.toml`, mostly `~/.config/turnd/config.toml`. It is read when the daemon starts, and
again by `turn reload` or SIGHUP; a file with an error is refused whole, by file, line and key, and what was in force
stays. `turnd check-config` checks it without a daemon. Without a file everything has its default.

This page is written from the schema that checks the file. A dash as the default means that the key may be left out, and
what that means is said beside it. Two parts are checked and not acted on yet, so that a file which has them is refused:
`[providers.NAME]`, and model servers of another kind than `openai-compatible`.
"""
_NAME: Final = "NAME"


def written() -> str:
    """The whole page."""
    sections = [_HEAD, *_sections((), Document, "keys at the top of the file")]
    return "\n".join(sections) + "\n" + _shipped()


def _sections(path: tuple[str, ...], record: object, what: str, repeated: bool = False) -> Iterator[str]:
    """A section for a table, and behind it one for each table inside of it."""
    keys = keys_of(record)
    plain = {name: key for name, key in keys.items() if _inner(key.kind) is None}
    if plain:
        yield _title(path, repeated)
        yield f"{what[:1].upper()}{what[1:]}.\n"
        yield "| key | value | default | meaning |\n| --- | --- | --- | --- |"
        yield from (_row(name, key) for name, key in plain.items())
        yield ""
    for name, key in keys.items():
        inner = _inner(key.kind)
        if inner is not None:
            kind, below, many = inner
            yield from _sections((*path, name, *below), kind.type, key.meaning, many)


def _title(path: tuple[str, ...], repeated: bool) -> str:
    if not path:
        return "## Top level\n"
    name = ".".join(path)
    return f"## `[[{name}]]`\n" if repeated else f"## `[{name}]`\n"


def _inner(kind: Kind[Any]) -> tuple[Record[Any], tuple[str, ...], bool] | None:
    """The table that a kind is or holds, the names that the user chooses before it, and whether it is repeated."""
    match kind:
        case Record():
            return kind, (), False
        case Many(kind=Record() as record):
            return record, (), True
        case Named(kind=Record() as record):
            return record, (_NAME,), False
        case Either(other=Record() as record):
            return record, (), False
        case _:
            return None


def _row(name: str, key: Key) -> str:
    default = "needed" if key.required else _shown(key.kind, key.default)
    return f"| `{name}` | {_cell(key.kind.name)} | {default} | {_cell(key.meaning)} |"


def _shown(kind: Kind[Any], value: object) -> str:
    if value is None or value in ((), b"{}") or (isinstance(value, Mapping) and not value):
        return "-"
    return f"`{_cell(_toml(kind, value))}`"


def _toml(kind: Kind[Any], value: Any) -> str:
    """The value as one writes it into the file."""
    match kind:
        case Choice(values=values):
            return json.dumps(next(text for text, meant in values.items() if meant == value))
        case Scaled(factor=factor):
            return _number(Decimal(value) / factor)
        case Fraction():
            return _number(Decimal(str(value)))
        case Many(kind=inner) | OneOrMany(kind=inner):
            return f"[{', '.join(_toml(inner, each) for each in value)}]"
        case _:
            return _number(value) if isinstance(value, Decimal) else json.dumps(value)


def _number(value: Decimal) -> str:
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _shipped() -> str:
    keys = keys_of(type(SHIPPED_PROFILE))
    told = {name: (key, getattr(SHIPPED_PROFILE, key.field)) for name, key in keys.items()}
    lines = [
        f"{name} = {_toml(key.kind, value)}" for name, (key, value) in told.items() if value != key.default
    ]
    return "\n".join(
        [
            "## The shipped profile",
            "",
            "Where the file has no profile `default`, it is this one:",
            "",
            "```toml",
            "[profiles.default]",
            *lines,
            "```",
            "",
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(written())
