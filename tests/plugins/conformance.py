"""Which lines of docs/requirements.md does a run of the tests show?

`--conformance=check` fails the run where a claimed line has no passing test; `--conformance=report` lists all
lines that have tests besides. Without either only the ids in `@pytest.mark.req(...)` are checked. Every run
ends with a count of the skipped tests by reason.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pytest

MARK = "req"
REQUIREMENTS = Path("docs", "requirements.md")
ROW = re.compile(r"^\| *(?P<id>[A-Z]+-?\d+) *\|.*\| *(?P<claimed>[^|]*?) *\|$")


class Claim(Enum):
    """What the last column may hold."""

    CLAIMED = "yes"
    NOT_CLAIMED = ""


class Outcome(Enum):
    """How a test ended."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(slots=True)
class Line:
    """A requirement, and how its tests ended."""

    id: str
    claim: Claim
    outcomes: Counter[Outcome] = field(default_factory=Counter)

    @property
    def shown(self) -> bool:
        """At least one test passed, and none failed."""
        return self.outcomes[Outcome.PASSED] > 0 and self.outcomes[Outcome.FAILED] == 0

    @property
    def broken(self) -> bool:
        """Claimed and not shown."""
        return self.claim is Claim.CLAIMED and not self.shown

    def describe(self) -> str:
        """Its id, whether it is claimed, and its tests."""
        tests = ", ".join(
            f"{count} {outcome.value}" for outcome, count in sorted(self.outcomes.items(), key=_rank)
        )
        claimed = "claimed" if self.claim is Claim.CLAIMED else "not claimed"
        return (
            f"{self.id:<9} {'shown' if self.shown else 'NOT SHOWN':<9}  {claimed:<11}  {tests or 'no test'}"
        )


class Conformance:
    """Follows a run: the tests' marks at collection, their outcomes as they come, the verdict at the end."""

    def __init__(self, lines: dict[str, Line], mode: str) -> None:
        self._lines = lines
        self._mode = mode
        self._shows: dict[str, tuple[str, ...]] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._reasons: Counter[str] = Counter()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        unknown: defaultdict[str, list[str]] = defaultdict(list)
        for item in items:
            ids = tuple(str(arg) for mark in item.iter_markers(MARK) for arg in mark.args)
            # Reports carry them to the process that counts, which need not be the one that runs the tests.
            item.user_properties.append((MARK, ids))
            for requirement in ids:
                if requirement not in self._lines:
                    unknown[requirement].append(item.nodeid)
        if unknown:
            texts = [
                f"{requirement} (in {', '.join(nodes)})" for requirement, nodes in sorted(unknown.items())
            ]
            raise pytest.UsageError(f"marked with ids that are not in {REQUIREMENTS}: {'; '.join(texts)}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._shows[report.nodeid] = tuple(
            requirement for name, ids in report.user_properties if name == MARK for requirement in ids
        )
        if report.failed:
            self._outcomes[report.nodeid] = Outcome.FAILED
        elif report.skipped:
            self._outcomes.setdefault(report.nodeid, Outcome.SKIPPED)
            self._reasons[_reason(report)] += 1
        elif report.when == "call":
            self._outcomes.setdefault(report.nodeid, Outcome.PASSED)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        for node, outcome in self._outcomes.items():
            for requirement in self._shows[node]:
                self._lines[requirement].outcomes[outcome] += 1
        if self._mode != "off" and session.exitstatus == pytest.ExitCode.OK and any(self._broken()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        if self._reasons:
            terminalreporter.section(f"{self._reasons.total()} skipped")
            for reason, count in sorted(self._reasons.items()):
                write(f"{count:>4}  {reason}")
        if self._mode == "off":
            return
        terminalreporter.section("requirements")
        if self._mode == "report":
            for line in self._lines.values():
                if line.outcomes or line.claim is Claim.CLAIMED:
                    write(line.describe())
        claimed = sum(line.claim is Claim.CLAIMED for line in self._lines.values())
        shown = sum(line.shown for line in self._lines.values())
        write(f"{shown} of {len(self._lines)} lines of {REQUIREMENTS} shown, {claimed} claimed")
        for line in self._broken():
            write(f"FAILED: claimed, and no passing test shows it: {line.describe()}", red=True)

    def _broken(self) -> Iterable[Line]:
        return (line for line in self._lines.values() if line.broken)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--conformance",
        choices=("off", "check", "report"),
        default="off",
        help="check: fail where a claimed requirement has no passing test; report: list the requirements too",
    )


def pytest_configure(config: pytest.Config) -> None:
    lines = read_lines(config.rootpath / REQUIREMENTS)
    # A process that runs a part of the tests has no verdict on all of them.
    mode = "off" if hasattr(config, "workerinput") else config.getoption("--conformance")
    config.pluginmanager.register(Conformance(lines, mode), "turnd-conformance")


def read_lines(path: Path) -> dict[str, Line]:
    """The rows of the tables in a file, by id. Raises pytest.UsageError where a row cannot be understood."""
    lines: dict[str, Line] = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        row = ROW.match(text)
        if row is None:
            continue
        if row["id"] in lines:
            raise pytest.UsageError(f"{path}:{number}: {row['id']} is there twice")
        try:
            claim = Claim(row["claimed"])
        except ValueError:
            raise pytest.UsageError(
                f"{path}:{number}: {row['id']}, column claimed: "
                f"expected yes or nothing, found {row['claimed']!r}"
            ) from None
        lines[row["id"]] = Line(row["id"], claim)
    return lines


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)


def _rank(item: tuple[Outcome, int]) -> int:
    return list(Outcome).index(item[0])
