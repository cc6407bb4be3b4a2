"""Where the output of one call goes: what is shown, what is spooled, what is told while it runs."""

from __future__ import annotations

from turnd.tools.bounded import Excerpt, HeadAndTail
from turnd.tools.progress import Progress
from turnd.tools.spool import SpoolWriter


class CallOutput:
    """The spool and the live output of one call, which all its commands share."""

    def __init__(self, spool: SpoolWriter, progress: Progress) -> None:
        self._spool = spool
        self.progress = progress

    @property
    def spooled_bytes(self) -> int:
        """Bytes in the spool; 0 where all of the output was shown."""
        return self._spool.spooled

    def stream(self) -> OutputStream:
        """One stream of output: of a command, or of a provider."""
        return OutputStream(self._spool, self.progress)

    def close(self) -> None:
        """Nothing more comes."""
        self._spool.close()


class OutputStream:
    """One stream: it is spooled from its beginning once it is longer than what is shown of it."""

    def __init__(self, spool: SpoolWriter, progress: Progress) -> None:
        self._shown = HeadAndTail()
        self._spool = spool
        self._progress = progress

    def feed(self, data: bytes) -> None:
        """Takes one more piece."""
        before = None if self._shown.overflowed else self._shown.kept()
        self._shown.feed(data)
        if self._shown.overflowed:
            self._spool.write(data if before is None else before + data)
        self._progress.output(data)

    def excerpt(self) -> Excerpt:
        """What is shown of it, at its end; what still waited to be told live is in there."""
        self._progress.skip()
        return self._shown.excerpt()
