"""How much of a session is shown at once, so that what was accepted can always be answered (RPC-01).

A list shows what waits without its content; one session is shown whole up to a size. What was left out is marked
`cut`, and is in the log.
"""

from __future__ import annotations

from typing import Final

from turnd.v1 import common_pb2 as common
from turnd.v1 import sessions_pb2

WHOLE_BYTES: Final = 2 * 2**20
"""Of the queue, and as much of the open requests, where one session is shown."""
_TEXT_CHARACTERS: Final = 200
_WITH_TEXT: Final = 20
"""Queued messages of which the beginning is shown in a list."""


def in_list(session: sessions_pb2.Session) -> sessions_pb2.Session:
    """The session as a list shows it: of each message its beginning, of each request what it is about."""
    return _shown(session, 0)


def alone(session: sessions_pb2.Session) -> sessions_pb2.Session:
    """The session as it is shown by itself: whole, up to `WHOLE_BYTES` of what waits."""
    return _shown(session, WHOLE_BYTES)


def _shown(session: sessions_pb2.Session, room: int) -> sessions_pb2.Session:
    shown = sessions_pb2.Session()
    shown.CopyFrom(session)
    left = room
    for index, message in enumerate(shown.queued):
        left -= message.ByteSize()
        if left < 0:
            _cut_message(message, _TEXT_CHARACTERS if index < _WITH_TEXT else 0)
    left = room
    for request in shown.open_requests:
        left -= request.ByteSize()
        if left < 0:
            _cut_request(request)
    return shown


def _cut_message(message: sessions_pb2.QueuedMessage, characters: int) -> None:
    texts = [block.text.text for block in message.blocks if block.HasField("text")]
    text = "\n".join(texts[:_TEXT_CHARACTERS])
    if len(texts) == len(message.blocks) == 1 and len(text) <= characters:
        return
    del message.blocks[:]
    if characters:
        message.blocks.append(common.ContentBlock(text=common.TextBlock(text=text[:characters])))
    message.cut = True


def _cut_request(request: sessions_pb2.OpenRequest) -> None:
    if request.HasField("approval"):
        item = request.approval.item
        for name in ("input", "preview", "preconditions"):
            item.ClearField(name)
        item.description = item.description[:_TEXT_CHARACTERS]
        item.reason = item.reason[:_TEXT_CHARACTERS]
        request.approval.ClearField("grant")
    else:
        request.interactive.ClearField("input")
        request.interactive.ClearField("output_schema")
    request.cut = True
