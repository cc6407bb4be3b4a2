"""Writes `version-0.sql`, a log in the earliest layout, as SQL text: `python -m tests.golden.make_version_0`.

Version 0 was one table, its sessions named by their ids, with nothing derived beside it. The events are those of
`events.jsonl` and of two short sessions between them, one of which a killed daemon left open.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from turnd.store.schema import APPLICATION_ID
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd.v1.jsonform import event_from_json

HERE = Path(__file__).parent
SCRIPT = HERE / "version-0.sql"
SCHEMA = """
CREATE TABLE events (
    position INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    seq INTEGER NOT NULL,
    event BLOB NOT NULL
);
CREATE UNIQUE INDEX events_of_session ON events (session, seq);
"""


def version_0() -> str:
    """The statements that make the file."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        for event in _events():
            connection.execute(
                "INSERT INTO events (session, seq, event) VALUES (?, ?, ?)",
                (event.session, event.seq, event.SerializeToString(deterministic=True)),
            )
        connection.commit()
        lines = [f"PRAGMA application_id = {APPLICATION_ID};", *connection.iterdump()]
    return "\n".join(lines) + "\n"


def _events() -> list[event_pb2.Event]:
    text = (HERE / "events.jsonl").read_text(encoding="utf-8")
    long = [event_from_json(line) for line in text.splitlines()]
    short = [
        *_session("01JZY3K5V7Q8W9E0R1T2Y3U4A1", [event_pb2.TurnStart(turn=0)]),
        *_session("01JZY3K5V7Q8W9E0R1T2Y3U4B2", [event_pb2.Note(text="nothing to do")]),
    ]
    return [*long[:10], *short, *long[10:]]


def _session(session: str, payloads: list[event_pb2.TurnStart | event_pb2.Note]) -> list[event_pb2.Event]:
    created = event_pb2.SessionCreated(cwd="/project", profile=common.ProfileSnapshot(name="default"))
    events = [event_pb2.Event(session=session, seq=1, session_created=created)]
    for payload in payloads:
        event = event_pb2.Event(session=session, seq=len(events) + 1)
        match payload:
            case event_pb2.TurnStart():
                event.turn = payload.turn
                event.turn_start.CopyFrom(payload)
            case event_pb2.Note():
                event.note.CopyFrom(payload)
        events.append(event)
    for event in events:
        event.time.FromMicroseconds(1_700_000_000_000_000 + event.seq)
    return events


if __name__ == "__main__":
    SCRIPT.write_text(version_0(), encoding="utf-8")
