"""Following a session: every event after a cursor, once and in order, across lost connections (RPC-01)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from turnd.v1 import event_pb2, sessions_pb2
from turnd_client.client import Client
from turnd_client.errors import ClientError, ConnectionLost, NoDaemon, StayedAway

SILENCE_S = 45.0
"""The daemon sends a heartbeat every 15 s; after so long without one it is taken for dead."""

PATIENCE_S = 10.0
"""How long a daemon may be away before following ends; one that is started anew is back sooner."""

_SECOND_CHANCE_S = 5.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Update:
    """What came with one message of the stream."""

    events: Sequence[event_pb2.Event]
    seq: int
    """The cursor after these events."""
    caught_up: bool
    """What was there when following began has been given."""


async def follow(
    client: Client,
    session: str,
    after_seq: int = 0,
    *,
    lost: Callable[[ClientError], None] = lambda _: None,
    patience_s: float = PATIENCE_S,
    silence_s: float = SILENCE_S,
) -> AsyncGenerator[Update, None]:
    """Events after a cursor, without end.

    A lost connection is made anew from the last cursor; `lost` is told of each. Raises StayedAway where
    the daemon does not come back within the patience, and Refused. Times in seconds.
    """
    clock = asyncio.get_running_loop().time
    cursor = after_seq
    pause = _FIRST_PAUSE_S
    away_since: float | None = None
    caught_up = False
    while True:
        try:
            async with aclosing(_audible(client.attach(session, cursor), silence_s)) as responses:
                async for response in responses:
                    away_since, pause = None, _FIRST_PAUSE_S
                    # A heartbeat has no cursor.
                    if response.events or (response.caught_up and not caught_up):
                        cursor = max(cursor, response.seq)
                        caught_up = caught_up or response.caught_up
                        yield Update(response.events, cursor, caught_up)
            error: ClientError = ConnectionLost("the daemon ended the stream")
        except (ConnectionLost, NoDaemon) as lost_it:
            error = lost_it
        if away_since is None:
            away_since = clock()
            lost(error)
        if clock() - away_since >= patience_s:
            raise StayedAway(
                f"the daemon did not come back within {patience_s:.0f} s; "
                f"any turn command starts it again, then: turn attach {session}",
                error.detail or str(error),
            ) from error
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_S)


async def _audible(
    stream: AsyncGenerator[sessions_pb2.AttachResponse, None], silence_s: float
) -> AsyncGenerator[sessions_pb2.AttachResponse, None]:
    async with aclosing(stream):
        while True:
            waiting = asyncio.ensure_future(anext(stream, None))
            try:
                done, _ = await asyncio.wait({waiting}, timeout=silence_s)
                if not done:
                    # This process itself may have been stopped for a while: then what came meanwhile is
                    # read now (C07).
                    done, _ = await asyncio.wait({waiting}, timeout=min(silence_s, _SECOND_CHANCE_S))
            finally:
                if not waiting.done():
                    waiting.cancel()
                    await asyncio.wait({waiting})
            if not done:
                raise ConnectionLost(f"the daemon has been silent for {silence_s:.0f} s")
            response = waiting.result()
            if response is None:
                return
            yield response
