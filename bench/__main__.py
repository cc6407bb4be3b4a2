"""`python -m bench [log] [--quick] [--json] [--directory DIR]`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench import log
from bench.machine import facts
from bench.report import Row, as_json, as_text
from bench.scale import FULL, QUICK, Scale
from turnd.telemetry import Redactor, configure_logs

BENCHMARKS: Final[Mapping[str, Callable[[Path, Scale], Sequence[Row]]]] = {"log": log.measure}


def main() -> None:
    """Measures into files of its own, which are gone afterwards, and prints what it found."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a look at every row, with few samples")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("build/bench"),
        help="where the files are made: which disk is measured (default: %(default)s)",
    )
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark is named {unknown[0]!r}: there are {', '.join(BENCHMARKS)}")
    configure_logs(sys.stderr, logging.WARNING, Redactor())
    scale = QUICK if given.quick else FULL
    given.directory.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=given.directory.absolute()) as directory:
        machine = facts(Path(directory))
        for name in given.names or BENCHMARKS:
            rows += BENCHMARKS[name](Path(directory), scale)
    print(json.dumps(as_json(machine, rows), indent=2) if given.json else as_text(machine, rows))


if __name__ == "__main__":
    main()
