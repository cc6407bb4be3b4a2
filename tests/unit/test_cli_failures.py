"""How failures are told: in the command line's own words, with what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from tests.unit.rpc_fakes import SESSION, served

from turnd.sessions.refusal import Code, CommandRefused
from turnd_client.cli import turn
from turnd_client.cli.failures import failure_text, file_failure_text, waiting_text
from turnd_client.errors import ConnectionLost, Refused, StayedAway, from_rpc

TRANSPORT = (
    "failed to connect to all addresses; last error: UNKNOWN: unix:%2Fa%2Fb: connect failed (unix:/a/b)"
)


def failed(code: grpc.StatusCode, said: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details=said)


def refused(field: str, text: str) -> Refused:
    violation = error_details_pb2.BadRequest.FieldViolation(field=field)
    detail: Any = error_details_pb2.BadRequest(field_violations=[violation])
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, text, [detail])


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (grpc.StatusCode.UNAVAILABLE, TRANSPORT),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        (grpc.StatusCode.CANCELLED, "CANCELLED"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "CLIENT: Sent message larger than max (17000000 vs. 16777216)"),
    ],
)
def test_what_the_transport_says_is_for_those_who_look_for_a_fault(code: grpc.StatusCode, said: str) -> None:
    error = from_rpc(failed(code, said))
    text = failure_text(error, {})
    assert said not in text
    assert "\n" not in text
    assert f"{code.name}: {said}" in failure_text(error, {"TURND_DEBUG": "1"})


def test_what_the_daemon_says_itself_is_kept() -> None:
    stopping = from_rpc(failed(grpc.StatusCode.UNAVAILABLE, "the daemon is stopping: attach again"))
    assert waiting_text(stopping, {}) == "the daemon is stopping; waiting for it"
    assert waiting_text(from_rpc(failed(grpc.StatusCode.UNAVAILABLE, TRANSPORT)), {}) == (
        "the daemon went away; waiting for it"
    )
    assert str(from_rpc(failed(grpc.StatusCode.NOT_FOUND, "no session x"))) == "no session x"


def test_a_daemon_that_went_away_is_told_with_what_to_do() -> None:
    assert failure_text(ConnectionLost("the daemon went away"), {}).startswith(
        "the daemon went away; any turn command starts it again"
    )
    assert failure_text(StayedAway("not back; then: turn attach X"), {}) == "not back; then: turn attach X"


@pytest.mark.parametrize(
    ("field", "text", "told"),
    [
        (
            "session.after_seq",
            "session.after_seq: expected 0 to 12, got 99; 0 gives everything",
            "--after: expected 0 to 12, got 99; 0 gives everything",
        ),
        ("older_than_days", "at most 9, got 10", "--older-than: at most 9, got 10"),
        ("blocks[0].text", "the text is empty", "TEXT: the text is empty"),
        ("bounds.max_turns", "bounds.max_turns is too large", "--max-turns: --max-turns is too large"),
        ("profile", "there is no profile 'x'", "--profile: there is no profile 'x'"),
        ("cwd", "/ cannot be a workspace", "/ cannot be a workspace"),
        ("", "the request is wrong", "the request is wrong"),
    ],
)
def test_fields_are_called_as_on_the_command_line(field: str, text: str, told: str) -> None:
    assert failure_text(refused(field, text), {}) == told


def test_files_that_cannot_be_used_are_told_in_one_line() -> None:
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "/a/\x1b[2J")
    assert file_failure_text(missing).startswith("/a/<U+001B>[2J: No such file or directory; check the path")
    assert "working directory is gone" in file_failure_text(FileNotFoundError(errno.ENOENT, "No such"))
    assert file_failure_text(OSError(errno.ENOSPC, "No space left on device")) == (
        "No space left on device; make room, and run the command again"
    )
    assert file_failure_text(OSError("odd")) == "odd"


async def test_an_upload_that_cannot_be_read_to_its_end_says_why(short_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"{}\n"
        raise OSError(errno.EIO, "Input/output error")

    async with served(short_path) as it, it.client() as client:
        with pytest.raises(OSError, match="Input/output error"):
            await client.verify_lines(parts())
        assert (await client.verify_lines([b"{}\n"])).events == 1


async def test_a_refusal_has_its_field(short_path: Path) -> None:
    async with served(short_path) as it, it.client() as client:
        it.commands.raises = CommandRefused(Code.INVALID_ARGUMENT, "at most 5", "older_than_days")
        with pytest.raises(Refused) as told:
            await client.get_session(SESSION)
    assert failure_text(told.value, {}) == "--older-than: at most 5"


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        (["log"], "Usage: turn log [OPTIONS] ID\n       turn log verify [OPTIONS] FILE\n"),
        (["log", "a", "b"], "Usage: turn log [OPTIONS] ID\n"),
        (["log", "--no-such-option"], "Usage: turn log [OPTIONS] ID\n"),
        (["log", "verify"], "Usage: turn log verify [OPTIONS] FILE\n"),
    ],
)
def test_log_says_how_it_is_used(arguments: list[str], usage: str) -> None:
    done = CliRunner().invoke(turn, arguments, prog_name="turn")
    assert done.exit_code == 2
    assert usage in done.output
    assert "log log" not in done.output


def test_log_lists_its_options() -> None:
    done = CliRunner().invoke(turn, ["log", "--help"], prog_name="turn")
    assert done.exit_code == 0
    assert all(option in done.output for option in ("-f, --follow", "--after", "--json", "log verify"))


def test_another_input_and_a_wider_scope_are_offered() -> None:
    done = CliRunner().invoke(turn, ["approve", "--help"], prog_name="turn")
    assert all(option in done.output for option in ("--scope", "--edit", "--input"))
