"""What one append hands to the writer, and what the writer answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnd.rules.status import SessionView
from turnd.v1 import event_pb2


@dataclass(frozen=True, slots=True)
class Entry:
    """One accepted event, encoded once: the blob is the row's, and the wire's."""

    key: int
    """The session's key in the file."""
    event: event_pb2.Event
    blob: bytes


@dataclass(frozen=True, slots=True)
class Change:
    """What a batch makes of one session."""

    key: int
    expected_seq: int
    """Of the session's last event before the batch; another one on disk means that an earlier batch failed."""
    view: SessionView
    unsettled: bool
    """A Turn or a request is open, or it is a sub-agent's that has not ended: a start after a crash repairs it."""
    updated_us: int
    """Time of the last event."""


@dataclass(frozen=True, slots=True)
class Request:
    """A client's command and its answer, stored with the events that carry it out (RPC-04)."""

    request_id: str
    method: str
    digest: bytes
    answer: bytes
    at_us: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What one append stores, which is committed together or not at all."""

    entries: Sequence[Entry]
    changes: Sequence[Change]
    request: Request | None
    """The command that the append answers."""
    commitment: bool
    """It must survive a power cut (LOG-12)."""
    size: int
    """Bytes of all blobs and of the answer."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The batch is committed; its events, if it has any, have contiguous positions from the first one on."""

    first_position: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing of the batch is in the file, nor will be."""

    error: Exception
    gone: bool = True
    """False: the disk did not let it be cut off yet, and it may be in the file if the daemon is killed before."""

    @property
    def text(self) -> str:
        """For whoever asked for the append."""
        if self.gone:
            return f"the log could not be written: {self.error}; nothing of this append was stored"
        return (
            f"the log could not be written: {self.error}; nothing of this append holds, but the disk did not let it "
            "be taken out of the file yet: should turnd be killed before it does, look whether it is there"
        )


Outcome = Stored | Failed
