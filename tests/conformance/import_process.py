"""Imports one file over and over until it is killed: `python -m tests.conformance.import_process DIRECTORY`.

It says the id of each session, and how many events it has, once its import has returned.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.unit.going_on import desk, file_of
from tests.unit.test_import_long import long_log

EVENTS = 700


async def import_until_killed(directory: Path) -> None:
    file = file_of(long_log(EVENTS).events)
    async with desk(directory) as at:
        while True:
            session = (await at.import_(file)).session
            sys.stdout.write(f"{session.id} {session.last_seq}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(import_until_killed(Path(sys.argv[1])))
