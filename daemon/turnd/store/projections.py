"""The rows that stand beside the events, written in the transaction of their event (LOG-19)."""

from __future__ import annotations

import sqlite3
from typing import Final

from turnd.rules.shown import in_list
from turnd.rules.status import to_session
from turnd.store.batch import Change
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd.v1.jsonform import enum_text

_MAX: Final = 2**63 - 1
"""The greatest integer of SQLite; counts of the contract can be twice as great."""
_DECISIONS: Final = {
    common.APPROVAL_OUTCOME_APPROVED: common.POLICY_ACTION_ALLOW,
    common.APPROVAL_OUTCOME_DENIED: common.POLICY_ACTION_DENY,
}
"""What a person's decision makes of a plan item; one that was cancelled or has expired stays as it was."""


def write_event_rows(connection: sqlite3.Connection, position: int, key: int, event: event_pb2.Event) -> None:
    """Writes what one event means for the ledger, the plan items and the producers; history means nothing."""
    if event.HasField("imported"):
        return
    match event.WhichOneof("data"):
        case "usage":
            _usage(connection, position, key, event)
        case "plan_ready":
            _plan_ready(connection, key, event)
        case "plan_applied":
            _plan_applied(connection, key, event.plan_applied)
        case "approval_decided":
            _decided(connection, key, event.approval_decided)
        case _:
            pass
    if event.HasField("producer"):
        _producer(connection, key, event)


def write_session_row(connection: sqlite3.Connection, change: Change) -> None:
    """Writes the session's row as it is after its last event of the transaction."""
    view = change.view
    connection.execute(
        "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (key) DO UPDATE SET "
        "profile = excluded.profile, status = excluded.status, unsettled = excluded.unsettled, "
        "last_seq = excluded.last_seq, cost_nano_usd = excluded.cost_nano_usd, "
        "input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens, "
        "updated_us = excluded.updated_us, session = excluded.session",
        (
            change.key,
            view.id,
            view.parent,
            view.depth,
            view.profile.name,
            int(view.status),
            view.cwd,
            int(change.unsettled),
            view.last_seq,
            min(view.cost_nano_usd, _MAX),
            min(view.tokens.input, _MAX),
            min(view.tokens.output, _MAX),
            view.created_us,
            change.updated_us,
            in_list(to_session(view)).SerializeToString(),
        ),
    )


def _usage(connection: sqlite3.Connection, position: int, key: int, event: event_pb2.Event) -> None:
    usage = event.usage
    tokens = usage.tokens
    counts = (
        tokens.input_tokens,
        tokens.output_tokens,
        tokens.cache_read_tokens,
        tokens.cache_write_tokens,
        tokens.reasoning_tokens,
        usage.cost_nano_usd,
    )
    connection.execute(
        "INSERT INTO usage_ledger VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            position,
            key,
            *_place(event),
            event.time.ToMicroseconds(),
            enum_text(common.RequestPurpose, usage.purpose),
            usage.model,
            *(min(count, _MAX) for count in counts),
            usage.free,
            usage.estimated,
            usage.unpriced,
        ),
    )


def _plan_ready(connection: sqlite3.Connection, key: int, event: event_pb2.Event) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO plan_items VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '')",
        [
            (
                key,
                item.call_id,
                *_place(event),
                place,
                item.provider,
                item.tool,
                enum_text(common.ToolKind, item.kind),
                enum_text(common.Risk, item.risk),
                enum_text(common.PolicyAction, item.decision),
                enum_text(common.DecidedByKind, item.decided_by.kind),
                item.decided_by.name,
                item.reason,
            )
            for place, item in enumerate(event.plan_ready.items)
        ],
    )


def _plan_applied(connection: sqlite3.Connection, key: int, applied: event_pb2.PlanApplied) -> None:
    connection.executemany(
        "UPDATE plan_items SET outcome = ? WHERE session = ? AND call_id = ?",
        [(enum_text(common.ItemOutcome, item.outcome), key, item.call_id) for item in applied.items],
    )


def _decided(connection: sqlite3.Connection, key: int, decided: event_pb2.ApprovalDecided) -> None:
    decision = _DECISIONS.get(decided.outcome)
    if decision is None:
        return
    connection.execute(
        "UPDATE plan_items SET decision = ?, decided_by = ?, decided_by_name = ?, reason = ? "
        "WHERE session = ? AND call_id = ?",
        (
            enum_text(common.PolicyAction, decision),
            enum_text(common.DecidedByKind, common.DECIDED_BY_KIND_CLIENT),
            decided.client,
            decided.reason,
            key,
            decided.call_id,
        ),
    )


def _producer(connection: sqlite3.Connection, key: int, event: event_pb2.Event) -> None:
    producer = event.producer
    connection.execute(
        "INSERT OR IGNORE INTO producers VALUES (?, ?, ?, ?, ?)",
        (key, enum_text(common.ProducerKind, producer.kind), producer.name, producer.version, event.seq),
    )


def _place(event: event_pb2.Event) -> tuple[int | None, int | None]:
    return (
        event.turn if event.HasField("turn") else None,
        event.step if event.HasField("step") else None,
    )
