"""Failures as programs read them: with --json each is one object, `{"error": {"code", "message", "details"}}`."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from turnd_client.errors import ClientError, Refused

_USAGE = "USAGE"


class Failed(click.ClickException):
    """A command that failed or was refused: exit code 1, the message on stderr, or on stdout as JSON.

    `beside_output`: stdout is what the command writes out, so that the object goes to stderr.
    """

    exit_code = 1

    def __init__(self, message: str, *, beside_output: bool = False) -> None:
        super().__init__(message)
        self.beside_output = beside_output

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {self.message}", err=True)


class Misused(Failed):
    """A command that does not say enough, or names what there is not: exit code 2."""

    exit_code = 2


class JsonGroup(click.Group):
    """A group whose commands tell their failures as JSON where --json is among the arguments."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        as_json = "--json" in _options(args)
        with _told(as_json):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_AS_JSON] = as_json
        return context

    def invoke(self, ctx: click.Context) -> Any:
        with _told(ctx.meta[_AS_JSON]):
            return super().invoke(ctx)


_AS_JSON = f"{__name__}.as_json"


def error_json(failure: click.ClickException) -> dict[str, object]:
    """`code` is a gRPC code's name where the daemon refused; `details` has what else programs may want."""
    code, details = _code(failure)
    return {"error": {"code": code, "message": _message(failure), "details": details}}


@contextmanager
def _told(as_json: bool) -> Iterator[None]:
    try:
        yield
    except click.ClickException as failure:
        # Help is asked for by saying nothing at all, and is no failure.
        if not as_json or isinstance(failure, click.exceptions.NoArgsIsHelpError):
            raise
        beside = isinstance(failure, Failed) and failure.beside_output
        click.echo(json.dumps(error_json(failure), ensure_ascii=False), err=beside)
        raise click.exceptions.Exit(failure.exit_code) from failure


def _options(args: Sequence[str]) -> Sequence[str]:
    return args[: args.index("--")] if "--" in args else args


def _message(failure: click.ClickException) -> str:
    # Of usage errors click knows more than their message: which option it is.
    return failure.format_message() if isinstance(failure, click.UsageError) else failure.message


def _code(failure: click.ClickException) -> tuple[str, dict[str, object]]:
    match failure.__cause__:
        case Refused() as refused:
            return refused.code.name, _facts(refused)
        case ClientError() as error:
            return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).upper(), {}
        case OSError() as error:
            name: dict[str, object] = {"errno": errno.errorcode.get(error.errno or 0, "")}
            return "FILE", name if error.filename is None else name | {"path": str(error.filename)}
        case _:
            misused = isinstance(failure, click.UsageError | Misused)
            return (_USAGE if misused else "FAILED"), {}


def _facts(refused: Refused) -> dict[str, object]:
    named = {"field": refused.field, "resource": refused.resource}
    return {**{name: value for name, value in named.items() if value}, **refused.facts}
