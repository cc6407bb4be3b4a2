"""What systemd is told: ready, stopping, and that the event loop is alive (OPS-01)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Self


class Notifier:
    """Speaks sd_notify where NOTIFY_SOCKET is set, and nothing elsewhere."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        usec = environment.get("WATCHDOG_USEC", "")
        self._watchdog_s = int(usec) / 1_000_000 if usec.isdigit() else 0.0
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()

    def ready(self) -> None:
        """The daemon answers."""
        self._say("READY=1")

    def stopping(self) -> None:
        """The daemon drains."""
        self._say("STOPPING=1")

    async def feed_watchdog(self) -> None:
        """Says so twice in each period, as long as the event loop gets to it; ends at once without a watchdog."""
        while self._socket is not None and self._watchdog_s > 0:
            self._say("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_s / 2)

    def _say(self, message: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(message.encode(), self._address)
        except BlockingIOError:
            # The manager is slow; the next period says it again.
            return
