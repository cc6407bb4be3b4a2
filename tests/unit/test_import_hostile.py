"""Files that are no honest export: each is refused with its line, or imported with a report; nothing of it acts."""

from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.going_on import as_in_their_file, desk, events_of
from tests.unit.stored import query

from turnd.rules.event import Draft
from turnd.sessions.refusal import Code, CommandRefused
from turnd.store import lines as lines_module
from turnd.v1 import event_pb2

pytestmark = [pytest.mark.req("LOG-17"), pytest.mark.timeout(60)]

S = "01JZY3K5V7Q8W9E0R1T2Y3U4I5"


def line(seq: object, kind: str, data: object, **more: object) -> bytes:
    whole: dict[str, Any] = {
        "session": S,
        "seq": seq,
        "time": "2026-01-02T03:04:05Z",
        "type": kind,
        "data": data,
    }
    return json.dumps(whole | more).encode() + b"\n"


CREATED = line(1, "session/created", {"cwd": "/x"})
TURN = line(2, "turn/start", {"turn": 0}, turn=0)
STEP = line(3, "step/start", {"turn": 0, "step": 1}, turn=0, step=1)
OPEN = CREATED + TURN + STEP


def usage(**money: object) -> bytes:
    return line(4, "usage", {"model": "m", **money}, turn=0, step=1)


def called(seq: int, call_id: str) -> bytes:
    data = {"call_id": call_id, "provider": "p", "tool": "t", "kind": "data_source", "input": {}}
    return line(seq, "tool/call", data, turn=0, step=1)


def note(seq: int, text: str) -> bytes:
    return line(seq, "note", {"text": text})


def nested(depth: int, raw: str = "1") -> bytes:
    data = '{"text": "x", "data": ' + "[" * depth + raw + "]" * depth + "}"
    return note(2, "@").replace(b'{"text": "@"}', data.encode())


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (CREATED + line(2**64, "note", {"text": "x"}), "line 2 is no event of a log: seq: "),
        (CREATED + line(-1, "note", {"text": "x"}), "line 2 is no event of a log: seq: "),
        (CREATED + line("2", "note", {"text": "x"}, turn=2.5), "line 2 is no event of a log: "),
        (OPEN + usage(cost_nano_usd=-1), "line 4 is no event of a log: data.cost_nano_usd: "),
        (OPEN + usage(cost_nano_usd=2**64), "line 4 is no event of a log: data.cost_nano_usd: "),
        (OPEN + usage(cost_nano_usd=7).replace(b": 7", b": " + b"9" * 5000), "line 4 is no event of a log: "),
        (OPEN + usage(cost_nano_usd=1e300), "line 4 is no event of a log: data.cost_nano_usd: "),
        (OPEN + usage(cost_nano_usd=True), "line 4 is no event of a log: data.cost_nano_usd: "),
        (CREATED + nested(100_000), "line 2 is no event of a log: "),
        (CREATED + b"[" * 500_000 + b"\n", "line 2 is no event of a log: "),
        (CREATED + b'{"a":' * 200_000 + b"\n", "line 2 is no event of a log: "),
        (CREATED + nested(3, "NaN"), "line 2 is no event of a log: "),
        (CREATED + note(2, "\ud800"), "line 2 is no event of a log: "),
        (CREATED + note(2, "@").replace(b"@", b"\xed\xa0\x80"), "line 2 is no event of a log: not UTF-8"),
        (
            CREATED + line(2, "note", {"text": "x"}, session="\udfff"),
            "line 2 is no event of a log: session: ",
        ),
        (CREATED + CREATED.replace(b'"seq": 1', b'"seq": 2, "seq": 3'), "seq: given twice"),
        (codecs.BOM_UTF8 + CREATED, "line 1 is no event of a log: it begins with a byte order mark"),
        (
            CREATED.decode().encode("utf-16"),
            "line 1 is no event of a log: not UTF-8: it begins as a file in UTF-16",
        ),
        (gzip.compress(CREATED)[:-9], "line 1 is no event of a log: not UTF-8: it is compressed with gzip"),
        (CREATED + b"\r\n\n" + b"null\n", "line 4 is no event of a log: expected an object"),
        (CREATED + b"\0" * 100, "line 2 is no event of a log: "),
        (CREATED.replace(b"2026", b"9999999"), "line 1 is no event of a log: time: "),
    ],
)
async def test_a_line_that_is_no_event_is_named_and_leaves_nothing(
    tmp_path: Path, file: bytes, problem: str
) -> None:
    async with desk(tmp_path) as at:
        with pytest.raises(CommandRefused) as refused:
            await at.import_(file[: len(file) // 2], file[len(file) // 2 :])
        assert refused.value.code is Code.INVALID_ARGUMENT
        assert problem in refused.value.text
        assert refused.value.text.endswith("nothing was imported")
        assert len(refused.value.text) < 1000
        assert query(tmp_path, "SELECT count(*) FROM events, sessions") == [(0,)]
        assert (await at.import_(CREATED)).events == 1


HUGE = (2**63 - 1, 2**63, 2**64 - 1)


@pytest.mark.req("LOG-22")
@pytest.mark.parametrize(
    ("file", "faults"),
    [
        (CREATED + note(3, "x"), {"seq gap"}),
        (CREATED + note(1, "x"), {"seq gap"}),
        (CREATED + note(0, "x"), {"seq gap"}),
        *((CREATED + note(seq, "x") + note(2, "y"), {"seq gap"}) for seq in HUGE),
        *((OPEN + usage(cost_nano_usd=money) + usage(cost_nano_usd=money), {"seq gap"}) for money in HUGE),
        (OPEN + usage(tokens={"input_tokens": 2**64 - 1}), set()),
        (OPEN + called(4, "c") + called(5, "c"), {"tool/call id already used"}),
        (OPEN + called(4, "c") + called(4, "c"), {"seq gap", "tool/call id already used"}),
        (CREATED + CREATED, {"seq gap", "session/created twice"}),
        (
            CREATED + line(2, "turn/start", {"turn": 2**64 - 1}, turn=2**64 - 1),
            {"turn/start expected turn 0"},
        ),
        (OPEN.replace(b"\n", b"\r\n"), set()),
        (b"\r\n\n \t\n" + OPEN.replace(b"\n", b"\n\n") + b"\n\r\n", set()),
        (OPEN[:-1], set()),
        (CREATED + nested(150), set()),
        (CREATED + nested(1, "9223372036854775808, 18446744073709551616, 1.10, 1e400"), set()),
        (CREATED + note(2, "\U0001f600 \u2028 \x7f \u0000"), set()),
        (CREATED + line(2, "moon/phase", {"deep": [[1.10]]}), set()),
    ],
)
async def test_what_is_lawful_json_is_kept_and_what_it_breaks_is_told(
    tmp_path: Path, file: bytes, faults: set[str]
) -> None:
    """Nothing is lost, nothing of it acts, and the session can go on and be read after a restart."""
    async with desk(tmp_path) as at:
        imported = await at.import_(file)
        session = imported.session.id
        told = {fault.message for fault in imported.faults}
        for fault in faults:
            assert any(message.startswith(fault) for message in told), told
        assert bool(told) == bool(faults)
        exported = events_of(await at.export(session))
        lines = [part for part in file.splitlines() if part.strip()]
        original = events_of(b"\n".join(lines)) if b"\xe2\x80\xa8" not in file else events_of(file)
        assert as_in_their_file(exported) == original
        assert imported.events == len(original)
        view = at.log.view(session)
        assert (view.cost_nano_usd, view.tokens.input) == (0, 0)
        turn = at.log.state(session).next_turn
        await at.log.append(Draft(session, event_pb2.TurnStart(turn=turn)))
    async with desk(tmp_path) as at:
        await at.log.load(session)
        assert at.log.state(session).open_turn is None, "repaired"
        assert events_of(await at.export(session))[: len(exported)] == exported


@pytest.mark.parametrize("parts", [[b"y" * 2000], [b"y" * 600, b"y" * 600], [b"y" * 300] * 9 + [b"\n"] * 3])
async def test_a_line_over_the_limit_is_refused_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: list[bytes]
) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 1000)
    async with desk(tmp_path) as at:
        with pytest.raises(CommandRefused, match="line 2 is no event of a log: line of more than 1000 bytes"):
            await at.import_(CREATED, *parts)
        assert await at.log.catalogue.count() == 0
