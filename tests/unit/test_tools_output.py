"""Output of any length: what is shown, what is spooled, what is told live."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from turnd.rules.state import Violation
from turnd.tools.bounded import HEAD_BYTES, TAIL_BYTES, HeadAndTail
from turnd.tools.calloutput import CallOutput
from turnd.tools.progress import MAX_CALL_CHARACTERS, MAX_MESSAGES, Progress
from turnd.tools.spool import MAX_PAGE_BYTES, NoSpool, Spool
from turnd.v1 import event_pb2

BOUND = HEAD_BYTES + TAIL_BYTES


@pytest.mark.req("TOOL-05")
@given(st.lists(st.tuples(st.integers(1, 255), st.integers(0, 20_000)), max_size=8))
def test_head_and_tail_are_the_first_and_last_bytes_however_they_come(pieces: list[tuple[int, int]]) -> None:
    shown, whole = HeadAndTail(), b""
    for byte, length in pieces:
        shown.feed(bytes([byte]) * length)
        whole += bytes([byte]) * length
    assert shown.total == len(whole)
    assert shown.overflowed == (len(whole) > BOUND)
    if not shown.overflowed:
        assert shown.kept() == whole
        assert shown.excerpt().omitted_bytes == 0


@pytest.mark.req("TOOL-05")
@pytest.mark.parametrize("shift", range(4))
def test_no_character_is_cut_in_two(shift: int) -> None:
    shown = HeadAndTail()
    shown.feed(b"x" * shift + "👩".encode() * BOUND)
    excerpt = shown.excerpt()
    assert "�" not in excerpt.text
    kept = len(excerpt.text.replace(f"\n[... {excerpt.omitted_bytes} bytes left out ...]\n", "").encode())
    assert kept + excerpt.omitted_bytes == excerpt.total_bytes


def test_bytes_that_are_no_text_are_shown_at_a_cut_too() -> None:
    shown = HeadAndTail()
    shown.feed(b"\x80" * (BOUND + 5))
    assert shown.excerpt().omitted_bytes in range(5, 9)


class Told:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[event_pb2.ToolProgress] = []

    async def __call__(self, payload: Message) -> None:
        assert isinstance(payload, event_pb2.ToolProgress)
        self.events.append(payload)


@pytest.mark.req("TOOL-05")
async def test_short_output_is_not_spooled_and_long_output_is_spooled_from_its_beginning(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path)
    output = CallOutput(spool.writer("s", "c"), Progress(Told(), "c", 1))
    short = output.stream()
    short.feed(b"a" * BOUND)
    assert output.spooled_bytes == 0
    with pytest.raises(NoSpool):
        spool.read("s", "c")
    long = output.stream()
    for _ in range(5):
        long.feed(b"0123456789" * 1000)
    await output.progress.abandon()
    output.close()
    assert output.spooled_bytes == 50_000
    page = spool.read("s", "c", offset=49_995)
    assert (page.data, page.spooled_bytes, page.total_bytes) == (b"56789", 50_000, 50_000)


def test_the_spool_is_capped_and_says_how_much_there_was(tmp_path: Path) -> None:
    spool = Spool(tmp_path, cap=10)
    writer = spool.writer("s", "c")
    for _ in range(3):
        writer.write(b"123456")
    writer.close()
    page = spool.read("s", "c")
    assert (page.data, page.spooled_bytes, page.total_bytes) == (b"1234561234", 10, 18)


def test_a_spool_is_read_in_pages_and_never_outside_of_itself(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    (tmp_path / "secret").write_text("hidden")
    writer = spool.writer("s", "c")
    writer.write(b"x" * (MAX_PAGE_BYTES + 1))
    writer.close()
    assert len(spool.read("s", "c").data) == MAX_PAGE_BYTES
    assert spool.read("s", "c", offset=MAX_PAGE_BYTES, limit=50).data == b"x"
    assert spool.read("s", "c", offset=10**12).data == b""
    for session, call in (("..", "secret"), ("s", "../../secret"), ("s/..", "c"), ("other", "c")):
        with pytest.raises(NoSpool):
            spool.read(session, call)
    spool.remove("s")
    with pytest.raises(NoSpool):
        spool.read("s", "c")


def test_a_full_disk_does_not_end_the_call(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("a file where the directory should be")
    writer = Spool(tmp_path).writer("s", "c")
    writer.write(b"lost")
    writer.write(b"lost too")
    writer.close()
    assert (writer.spooled, writer.total) == (0, 12)


async def test_live_output_is_coalesced_and_bounded(tmp_path: Path) -> None:
    told = Told()
    progress = Progress(told, "c", 2)
    for _ in range(1000):
        progress.output(b"0123456789" * 100)
    await progress.finish()
    assert len(told.events) == 1
    assert (told.events[0].call_id, told.events[0].attempt) == ("c", 2)
    assert told.events[0].output.endswith("[... more output than is shown live ...]\n")
    while sum(len(e.output) for e in told.events) < MAX_CALL_CHARACTERS:
        progress.output(b"x" * 10_000)
        await progress.finish()
    before = len(told.events)
    progress.output(b"x")
    await progress.finish()
    assert len(told.events) == before


async def test_messages_are_bounded_in_number_and_size(tmp_path: Path) -> None:
    told = Told()
    progress = Progress(told, "c", 1)
    for _ in range(MAX_MESSAGES + 50):
        await progress.say("\x1b" + "x" * 100_000, 0.5)
    assert len(told.events) == MAX_MESSAGES
    assert told.events[0].message.startswith("␛x")
    assert len(told.events[0].message) < 5000


async def test_output_is_told_while_the_call_runs_and_not_after_it_was_given_up() -> None:
    told = Told()
    progress = Progress(told, "c", 1)
    progress.output(b"\xf0\x9f")
    progress.output(b"\x91\xa9 seen")
    async with asyncio.timeout(20):
        while not told.events:
            await asyncio.sleep(0.01)
    assert told.events[0].output == "👩 seen"
    progress.output(b"never told")
    await progress.abandon()
    await progress.abandon()
    assert len(told.events) == 1


async def test_a_log_that_takes_no_more_ends_the_live_output_only() -> None:
    asked = 0

    async def refuse(_: Message) -> None:
        nonlocal asked
        asked += 1
        raise Violation("tool/progress without open attempt")

    progress = Progress(refuse, "c", 1)
    await progress.say("a", None)
    await progress.say("b", None)
    progress.output(b"c")
    await progress.finish()
    assert asked == 1
