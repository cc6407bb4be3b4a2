"""What commands need of the log and of the spool as a whole, with refusals for what is not there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from turnd.ports import UnknownSession
from turnd.sessions.importing import Arrived
from turnd.sessions.refusal import invalid, not_found
from turnd.store.arrival import Arrival, NotImportable
from turnd.store.catalogue import AmbiguousSession, BadPageToken
from turnd.store.faults import Fault
from turnd.store.ledger import DIMENSIONS
from turnd.store.log import EventLog
from turnd.store.transfer import (
    Report,
    Verifier,
    export_lines,
    pieces,
    verify_stored,
)
from turnd.tools.spool import NoSpool, Spool
from turnd.v1 import daemon_pb2, sessions_pb2

OUTPUT_PART_BYTES = 256 * 1024


class LogArchive:
    """Ids by prefix, lists, export and verify over the stored log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def count(self) -> int:
        """All sessions."""
        return await self._log.catalogue.count()

    async def resolve(self, prefix: str) -> str:
        """The id that a unique prefix stands for. Raises CommandRefused."""
        try:
            return await self._log.resolve(prefix)
        except UnknownSession as unknown:
            raise not_found("turnd.v1.Session", prefix, str(unknown)) from None
        except AmbiguousSession as ambiguous:
            raise invalid("session", str(ambiguous)) from None

    async def cost(self, request: daemon_pb2.CostRequest) -> daemon_pb2.CostResponse:
        """What was spent, told apart as the request says. Raises CommandRefused."""
        session = await self.resolve(request.session) if request.session else ""
        default = "session" if session else "model"
        by = [name.strip() for name in (request.by or default).split(",")]
        for name in by:
            if name not in DIMENSIONS:
                raise invalid(
                    "by", f"expected some of {', '.join(DIMENSIONS)}, separated by commas, found {name!r}"
                )
        rows = await self._log.catalogue.costs(session, by)
        total = sum(row.cost_nano_usd for row in rows)
        return daemon_pb2.CostResponse(rows=rows, total_nano_usd=total)

    async def list_(
        self, request: sessions_pb2.ListSessionsRequest, page_size: int
    ) -> sessions_pb2.ListSessionsResponse:
        """One page of sessions, newest first. Raises CommandRefused for a token that no list gave out."""
        try:
            page = await self._log.catalogue.sessions(
                statuses=request.statuses,
                cwd=request.cwd,
                parent=request.parent,
                include_children=request.include_children,
                page_size=page_size,
                page_token=request.page_token,
            )
        except BadPageToken as bad:
            raise invalid("page_token", str(bad)) from None
        return sessions_pb2.ListSessionsResponse(sessions=page.sessions, next_page_token=page.next_page_token)

    async def export(self, session: str) -> AsyncGenerator[bytes, None]:
        """The session's log as JSON Lines, in parts of less than 1 MiB."""
        async for lines in export_lines(self._log, session):
            yield lines

    async def verify(
        self, requests: AsyncIterator[sessions_pb2.VerifyRequest]
    ) -> sessions_pb2.VerifyResponse:
        """Checks a stored session, or the bytes of a file, by the same rules. Raises CommandRefused."""
        first = await anext(requests, sessions_pb2.VerifyRequest(lines=b""))
        if first.HasField("session"):
            session = await self.resolve(first.session)
            report = await verify_stored(self._log, session, judge_history=first.judge_history)
            return _verified(report)
        verifier = Verifier(judge_history=first.judge_history)
        async with aclosing(pieces(_lines(first, requests))) as parts:
            async for part in parts:
                await asyncio.to_thread(verifier.feed, part)
                if verifier.full:
                    break
        return _verified(await asyncio.to_thread(verifier.finish))

    async def receive(self, lines: AsyncIterator[bytes]) -> Arrived:
        """Reads the log of one session that is to be imported. Raises CommandRefused for anything else."""
        arrival = Arrival()
        try:
            async with aclosing(pieces(lines)) as parts:
                async for part in parts:
                    await asyncio.to_thread(arrival.feed, part)
            events, report = await asyncio.to_thread(arrival.finish)
        except NotImportable as not_a_log:
            raise invalid("lines", f"{not_a_log}; nothing was imported") from None
        return Arrived(events, arrival.digest, _faults(report.faults), report.faults_in_all, report.causes)


class SpoolOutputs:
    """Reads spools part by part, so that no part passes the message limit."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    async def read(
        self, request: sessions_pb2.ReadOutputRequest
    ) -> AsyncGenerator[sessions_pb2.ReadOutputResponse, None]:
        """What was kept of a call's output, from an offset on. Raises CommandRefused where nothing was."""
        offset = request.offset
        end = offset + request.limit if request.limit else None
        while end is None or offset < end:
            wanted = OUTPUT_PART_BYTES if end is None else min(OUTPUT_PART_BYTES, end - offset)
            try:
                page = await asyncio.to_thread(
                    self._spool.read, request.session, request.call_id, offset, wanted
                )
            except NoSpool as missing:
                raise not_found("turnd.v1.Output", request.call_id, str(missing)) from None
            yield sessions_pb2.ReadOutputResponse(
                data=page.data,
                offset=page.offset,
                spooled_bytes=page.spooled_bytes,
                total_bytes=page.total_bytes,
            )
            offset = page.offset + len(page.data)
            if not page.data or offset >= page.spooled_bytes:
                return


async def _lines(
    first: sessions_pb2.VerifyRequest, rest: AsyncIterator[sessions_pb2.VerifyRequest]
) -> AsyncIterator[bytes]:
    if not first.HasField("lines"):
        raise invalid("part", "expected a session or lines, found neither")
    yield first.lines
    async for request in rest:
        if not request.HasField("lines"):
            raise invalid("part", "expected further lines, found none")
        yield request.lines


def _verified(report: Report) -> sessions_pb2.VerifyResponse:
    return sessions_pb2.VerifyResponse(
        events=report.events,
        sessions=report.sessions,
        faults=_faults(report.faults),
        open=report.open,
        history=report.history,
        faults_in_all=report.faults_in_all,
        causes=report.causes,
    )


def _faults(faults: Sequence[Fault]) -> list[sessions_pb2.LogFault]:
    return [
        sessions_pb2.LogFault(
            line=fault.line,
            session=fault.session,
            seq=fault.seq,
            message=fault.message,
            follows_from=fault.follows_from,
            followers=fault.followers,
            history=fault.history,
        )
        for fault in faults
    ]
