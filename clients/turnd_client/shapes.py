"""The JSON shapes of clients.md that are not events: sessions, bounds, the daemon's status, verdicts on logs."""

from __future__ import annotations

from collections.abc import Sequence

from turnd.v1 import common_pb2, daemon_pb2, sessions_pb2
from turnd.v1.jsonform import message_to_json
from turnd_client.times import utc_text
from turnd_client.units import cost_text, usd, usd_text

Json = dict[str, object]


def status_text(status: common_pb2.SessionStatus.ValueType) -> str:
    """As in the documents: `error_max_turns`."""
    return common_pb2.SessionStatus.Name(status).removeprefix("SESSION_STATUS_").lower()


def reason_text(reason: common_pb2.TurnEndReason.ValueType) -> str:
    """As in the documents: `max-tokens`."""
    return common_pb2.TurnEndReason.Name(reason).removeprefix("TURN_END_REASON_").lower().replace("_", "-")


def limit_text(hit: common_pb2.LimitHit) -> str:
    """For people: the dimension, the limit and the value that reached it (M07)."""
    name = common_pb2.LimitDimension.Name(hit.dimension).removeprefix("LIMIT_DIMENSION_").lower()
    limit, value = (
        usd_text(number) if hit.unit == "nano_usd" else f"{number} {hit.unit}"
        for number in (hit.limit, hit.value)
    )
    return f"{name} is {limit}, used {value}"


def session_cost(session: sessions_pb2.Session) -> str:
    """For people: what it cost with its sub-agents, marked where that is not all of it."""
    return cost_text(session.cost_nano_usd, estimated=session.estimated, unpriced=session.unpriced)


def is_imported(session: sessions_pb2.Session) -> bool:
    """It was made of a file, not of another session."""
    return session.history > 0 and not session.HasField("forked_from")


def session_json(session: sessions_pb2.Session) -> Json:
    """One session, as `turn ls --json` prints it."""
    return {
        "id": session.id,
        "status": status_text(session.status),
        "title": session.title,
        "cwd": session.cwd,
        "profile": session.profile,
        "model": session.model,
        "parent": session.parent or None,
        "depth": session.depth,
        "turns": session.turns,
        "steps": session.steps,
        "cost_usd": usd(session.cost_nano_usd),
        "estimated": session.estimated,
        "unpriced": session.unpriced,
        "weighted_tokens": session.weighted_tokens,
        "tokens": {
            field.name: getattr(session.tokens, field.name) for field in session.tokens.DESCRIPTOR.fields
        },
        "created": utc_text(session.created),
        "last_seq": session.last_seq,
        "forked_from": message_to_json(session.forked_from) if session.HasField("forked_from") else None,
        "imported": is_imported(session),
        "history": session.history,
        "last_reason": reason_text(session.last_reason) if session.last_reason else None,
        "unattended": session.unattended,
        "plan_mode": session.plan_mode,
        "open_requests": [message_to_json(request) for request in session.open_requests],
        "queued": [message_to_json(message) for message in session.queued],
    }


def shown_json(shown: sessions_pb2.GetSessionResponse) -> Json:
    """One session whole, as `turn show --json` prints it. A bound that is not set is null, and so is its rest."""
    bounds, left = shown.bounds, shown.left
    mode = common_pb2.LimitMode.Name(bounds.limit_mode or common_pb2.LIMIT_MODE_HARD)
    return {
        **session_json(shown.session),
        "bounds": {
            "max_turns": bounds.max_turns if bounds.HasField("max_turns") else None,
            "max_cost_usd": usd(bounds.max_cost_nano_usd) if bounds.HasField("max_cost_nano_usd") else None,
            "max_wall_clock_s": _seconds(bounds.max_wall_clock_ms)
            if bounds.HasField("max_wall_clock_ms")
            else None,
            "limit_mode": mode.removeprefix("LIMIT_MODE_").lower(),
        },
        "left": {
            "max_turns": left.turns if left.HasField("turns") else None,
            "max_cost_usd": usd(left.cost_nano_usd) if left.HasField("cost_nano_usd") else None,
            "max_wall_clock_s": _seconds(left.wall_clock_ms) if left.HasField("wall_clock_ms") else None,
        },
        "next_turn": shown.next_turn,
        "next_step": shown.next_step,
        "open_turn": shown.open_turn if shown.HasField("open_turn") else None,
        "open_step": shown.open_step if shown.HasField("open_step") else None,
        "as_of_seq": shown.as_of_seq,
        "environment": dict(sorted(shown.environment.items())),
        "sandbox": shown.sandbox,
        "unenforced": list(shown.unenforced),
        "problems": list(shown.problems),
        "warnings": list(shown.warnings),
    }


def daemon_json(status: daemon_pb2.StatusResponse) -> Json:
    """The daemon, as `turn status --json` prints it."""
    return {
        "version": status.version,
        "protocol": status.protocol,
        "pid": status.pid,
        "socket": status.socket,
        "sessions": status.sessions,
        "running": status.running,
        "started": utc_text(status.started),
        "state_dir": status.state_dir,
        "sandbox": status.sandbox,
        "unenforced": list(status.unenforced),
        "draining": status.draining,
        "problems": list(status.problems),
    }


def verdict_json(verdict: sessions_pb2.VerifyResponse) -> Json:
    """What `turn log verify --json` prints."""
    return {
        "ok": not verdict.faults,
        "events": verdict.events,
        "history": verdict.history,
        "sessions": list(verdict.sessions),
        "open": verdict.open,
        "faults_in_all": verdict.faults_in_all,
        "causes": verdict.causes,
        "faults": _faults(verdict.faults),
    }


def imported_json(imported: sessions_pb2.ImportResponse) -> Json:
    """What `turn import --json` prints."""
    return {
        "session": session_json(imported.session),
        "events": imported.events,
        "faults": _faults(imported.faults),
        "faults_in_all": imported.faults_in_all,
        "causes": imported.causes,
    }


def _faults(faults: Sequence[sessions_pb2.LogFault]) -> list[Json]:
    """`follows_from` is the place in this list, from 0, of the fault without which it would be none."""
    return [
        {
            "line": fault.line or None,
            "session": fault.session or None,
            "seq": fault.seq or None,
            "message": fault.message,
            "history": fault.history,
            "follows_from": fault.follows_from - 1 if fault.follows_from else None,
            "followers": fault.followers,
        }
        for fault in faults
    ]


def _seconds(milliseconds: int) -> float:
    return milliseconds / 1000
