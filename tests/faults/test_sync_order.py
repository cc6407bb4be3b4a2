"""What is synced before what: a commitment is on the disk before anything acts on it, other events cost no sync."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.faults.forge import Forge
from tests.faults.preload import NEEDS_SHIM
from tests.faults.rich_session import ORDER

pytestmark = NEEDS_SHIM

COMMITMENTS = {"usage", "approval/decided", "turn/end"}
RESOURCE = "TOOL_KIND_RESOURCE"


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one commit wrote. Each event is its type and what tells it from others of its type."""

    events: tuple[str, ...]
    synced: bool
    """After its last write into the WAL, and before the commit returned."""
    end: int
    """Its place in the order."""


@pytest.fixture(scope="module")
def order(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A whole rich session: calls into the kernel, what was committed, published and dispatched."""
    directory = tmp_path_factory.mktemp("order")
    with Forge("tests.faults.rich_session", shim) as forge:
        assert forge.run("in_order", directory).whole
    return (directory / ORDER).read_text().splitlines()


def transactions(order: Sequence[str]) -> list[Transaction]:
    """All commits with events, in order."""
    found, events, synced = [], [], False
    for place, line in enumerate(order):
        if line.startswith("mark insert "):
            events.append(line.removeprefix("mark insert "))
        elif line == "write .db-wal":
            synced = False
        elif line == "sync .db-wal":
            synced = True
        elif line == "mark committed":
            if events:
                found.append(Transaction(tuple(events), synced, place))
            events = []
    return found


def resource_calls(order: Sequence[str]) -> set[str]:
    """The ids of the calls that change something."""
    words = [line.split() for line in order if line.startswith("mark insert tool/call ")]
    return {call_id for *_, call_id, kind in words if kind == RESOURCE}


def is_commitment(event: str, resources: set[str]) -> bool:
    match event.split():
        case ["tool/started", call_id, _]:
            return call_id in resources
        case [kind, *_]:
            return kind in COMMITMENTS
        case _:
            raise AssertionError(event)


@pytest.mark.req("LOG-12", "S13")
def test_a_resource_call_is_synced_before_it_is_dispatched(order: list[str]) -> None:
    resources = resource_calls(order)
    commits = {event: one for one in transactions(order) for event in one.events}
    dispatched = 0
    for place, line in enumerate(order):
        match line.split():
            case ["mark", "dispatch", call_id, attempt] if call_id in resources:
                commit = commits[f"tool/started {call_id} {attempt}"]
                assert commit.synced
                assert commit.end < place
                dispatched += 1
            case _:
                pass
    assert dispatched >= 5


@pytest.mark.req("LOG-12", "S13", "S09")
def test_every_commitment_is_synced_before_it_is_published(order: list[str]) -> None:
    resources = resource_calls(order)
    seen = set()
    for commit in transactions(order):
        for event in commit.events:
            assert commit.end < order.index(f"mark publish {event}")
            if is_commitment(event, resources):
                assert commit.synced, event
                seen.add(event.split()[0])
    assert seen == {*COMMITMENTS, "tool/started"}


@pytest.mark.req("LOG-12")
def test_an_ordinary_event_waits_for_no_sync(order: list[str]) -> None:
    resources = resource_calls(order)
    ordinary = 0
    for commit in transactions(order):
        if not any(is_commitment(event, resources) for event in commit.events):
            assert not commit.synced, commit.events
            ordinary += 1
    assert ordinary > 30
