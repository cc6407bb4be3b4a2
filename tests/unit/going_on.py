"""Imports and forks over a real log in a file, without a daemon around them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.sim.world import SimLayers
from tests.unit.session_log import SessionLog
from tests.unit.stored import TickingClock, opened, stored_events

from turnd.archive import LogArchive
from turnd.models.catalogue import Catalogue
from turnd.models.keys import Keys
from turnd.rules.history import History, HistoryMessage
from turnd.sessions.fork import Forking
from turnd.sessions.importing import Importing, parts_of
from turnd.sessions.requests import Answering
from turnd.sessions.surroundings import Surroundings
from turnd.store.log import EventLog
from turnd.system import UlidIds
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2
from turnd.v1.jsonform import event_from_json, event_to_json


@dataclass
class Desk:
    """Where sessions are imported, forked and read back."""

    log: EventLog
    archive: LogArchive
    importing: Importing
    forking: Forking
    cwd: Path

    async def import_(self, *parts: bytes, **start: str) -> sessions_pb2.ImportResponse:
        """Imports a file that comes in these parts."""
        first = sessions_pb2.ImportStart(
            client="cli", cwd=str(self.cwd), environment={"LANG": "C", "SECRET": "x"}, **start
        )

        end = sessions_pb2.ImportEnd(bytes=sum(map(len, parts)))
        return await self.send(
            sessions_pb2.ImportRequest(start=first),
            *(sessions_pb2.ImportRequest(lines=part) for part in parts),
            sessions_pb2.ImportRequest(end=end),
        )

    async def send(self, *parts: sessions_pb2.ImportRequest) -> sessions_pb2.ImportResponse:
        """Imports what these parts say."""

        async def requests() -> AsyncIterator[sessions_pb2.ImportRequest]:
            for part in parts:
                yield part

        start, lines = await parts_of(requests())
        return await self.importing.run(
            start, await self.archive.receive(lines), Answering("", "Import", b"")
        )

    async def fork(self, session: str, seq: int = 0) -> sessions_pb2.Session:
        await self.log.load(session)
        request = sessions_pb2.ForkRequest(client="cli", session=session, seq=seq)
        return (await self.forking.run(session, request, Answering("", "Fork", b""))).session

    async def export(self, session: str) -> bytes:
        return b"".join([part async for part in self.archive.export(session)])

    async def events(self, session: str) -> list[event_pb2.Event]:
        return await stored_events(self.log, session)

    async def history(self, session: str) -> tuple[HistoryMessage, ...]:
        """What a model would be sent now."""
        history = History()
        for event in await self.events(session):
            history.advance(event)
        return history.messages()


@asynccontextmanager
async def desk(directory: Path, clock: TickingClock | None = None) -> AsyncIterator[Desk]:
    """A desk over the log in a directory."""
    transcript = directory / "model.jsonl"
    transcript.write_text(json.dumps({"stream": [{"text": "done"}]}) + "\n")
    cwd = directory / "project"
    cwd.mkdir(exist_ok=True)
    profile = common.ProfileSnapshot(name="default", model=f"replay:{transcript}", tools=["*"])
    around = Surroundings(
        profiles=lambda: ("default", {"default": profile}),
        environment=lambda given: {name: value for name, value in given.items() if name == "LANG"},
        sandbox=lambda: ("bubblewrap", ["processes"]),
        layers=SimLayers(),
        home="/nowhere",
        own_directories=(),
    )
    clock = clock or TickingClock()
    async with opened(directory, clock) as log:
        ids, models = UlidIds(), Catalogue(clock, Keys({}))
        try:
            yield Desk(
                log, LogArchive(log), Importing(log, ids, models, around), Forking(log, ids, around), cwd
            )
        finally:
            await models.close()


def file_of(events: Iterable[event_pb2.Event]) -> bytes:
    """The events as an exported file."""
    return b"".join(event_to_json(event).encode() + b"\n" for event in events)


def events_of(file: bytes) -> list[event_pb2.Event]:
    return [event_from_json(line) for line in file.decode().splitlines()]


def as_in_their_file(events: Sequence[event_pb2.Event]) -> list[event_pb2.Event]:
    """The imported ones among these events, as they were in the file that they came from."""
    restored = []
    for event in events:
        if event.HasField("imported"):
            original = event_pb2.Event()
            original.CopyFrom(event)
            original.session, original.seq = event.imported.session, event.imported.seq
            original.ClearField("imported")
            restored.append(original)
    return restored


def own(events: Sequence[event_pb2.Event]) -> list[event_pb2.Event]:
    """Those that are not history."""
    return [event for event in events if not event.HasField("imported")]


def raw(log: SessionLog, *payloads_and_places: tuple[event_pb2.Event, int | None, int | None]) -> None:
    """Puts events into a log in memory that its rules would not take."""
    for event, turn, step in payloads_and_places:
        event.session, event.seq = log.events[-1].session, len(log.events) + 1
        event.time.CopyFrom(log.events[-1].time)
        if turn is not None:
            event.turn = turn
        if step is not None:
            event.step = step
        log.events.append(event)
        log.state = log.state._replace(seq=event.seq)
