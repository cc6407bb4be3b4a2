"""The descriptors of a program's output: closed once, by their one owner, on every loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest
import uvloop

from turnd.cells.output import Output

LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
Loop = Callable[[], asyncio.AbstractEventLoop]


@LOOPS
@pytest.mark.parametrize("ended", [True, False])
def test_a_number_that_was_given_back_is_not_closed_again(loop: Loop, ended: bool) -> None:
    async def main() -> None:
        ours, theirs = os.pipe()
        output = Output(ours)
        os.write(theirs, b"said")
        assert await output.reader.readexactly(4) == b"said"
        if ended:
            os.close(theirs)
            assert await output.reader.read() == b""
        output.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(ours)
        # Somebody else is given the number at once; it must stay theirs.
        other = os.open(os.devnull, os.O_RDONLY)
        os.dup2(other, ours)
        output.close()
        del output
        for _ in range(10):
            await asyncio.sleep(0)
        os.fstat(ours)
        for number in {other, ours} | (set() if ended else {theirs}):
            os.close(number)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@LOOPS
def test_a_flood_waits_in_the_pipe_and_all_of_it_arrives(loop: Loop) -> None:
    async def main() -> None:
        ours, theirs = os.pipe()
        output = Output(ours)
        sent = os.urandom(1 << 20)

        def write() -> None:
            with os.fdopen(theirs, "wb") as pipe:
                pipe.write(sent)

        writing = asyncio.create_task(asyncio.to_thread(write))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not writing.done()
        assert await output.reader.read() == sent
        await writing
        output.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
