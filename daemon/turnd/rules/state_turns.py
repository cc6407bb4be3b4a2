"""Rules for sessions, Turns, Steps and what a person says (LOG-01, LOG-02, LOG-03). Each raises Violation."""

from __future__ import annotations

from turnd.rules.state_model import SessionState, Tokens, Violation
from turnd.v1 import event_pb2


def session_created(state: SessionState, event: event_pb2.Event) -> SessionState:
    if state.created:
        raise Violation("session/created twice")
    created = event.session_created
    return state._replace(
        created=True,
        limit=None,
        parent=created.parent,
        unattended=created.unattended,
        limit_mode=created.profile.bounds.limit_mode,
    )


def session_changed(state: SessionState, event: event_pb2.Event) -> SessionState:
    changed = event.session_changed
    mode = state.limit_mode
    if changed.HasField("profile"):
        mode = changed.profile.bounds.limit_mode
    return state._replace(limit_mode=changed.allowance.limit_mode or mode)


def session_ended(state: SessionState, event: event_pb2.Event) -> SessionState:
    if state.open_turn is not None:
        raise Violation("session/ended while turn still open")
    return state._replace(ended=True)


def session_reopened(state: SessionState, event: event_pb2.Event) -> SessionState:
    if not state.ended:
        raise Violation("session/reopened without session/ended")
    return state._replace(ended=False)


def turn_start(state: SessionState, event: event_pb2.Event) -> SessionState:
    if state.open_turn is not None:
        raise Violation("turn/start while turn already open")
    turn = event.turn_start.turn
    if turn != state.next_turn:
        raise Violation(f"turn/start expected turn {state.next_turn}, got {turn}")
    return state._replace(open_turn=turn, next_step=1, stopping=None, limit=None)


def turn_stopping(state: SessionState, event: event_pb2.Event) -> SessionState:
    if state.open_turn is None:
        raise Violation("turn/stopping without open turn")
    if state.stopping is not None:
        raise Violation("turn/stopping twice")
    stopping = event.turn_stopping
    limit = stopping.limit.dimension or state.limit
    return state._replace(stopping=stopping, limit=limit)


def turn_end(state: SessionState, event: event_pb2.Event) -> SessionState:
    if state.open_turn is None:
        raise Violation("turn/end without open turn/start")
    turn = event.turn_end.turn
    if turn != state.open_turn:
        raise Violation(f"turn/end expected turn {state.open_turn}, got {turn}")
    if state.open_step is not None:
        raise Violation("turn/end while step still open")
    if state.stopping is None and not event.synthetic:
        raise Violation("turn/end without turn/stopping")
    # Where a log that breaks the rules was imported, a higher number may have been used.
    next_turn = max(state.next_turn, turn + 1)
    return state._replace(open_turn=None, next_turn=next_turn, stopping=None, limit=None)


def step_start(state: SessionState, event: event_pb2.Event) -> SessionState:
    start = event.step_start
    if state.open_turn is None:
        raise Violation("step/start without open turn")
    if start.turn != state.open_turn:
        raise Violation(f"step/start in turn {start.turn} but open turn is {state.open_turn}")
    if state.open_step is not None:
        raise Violation("step/start while step already open")
    if state.stopping is not None:
        raise Violation("step/start after turn/stopping")
    if start.step != state.next_step:
        raise Violation(f"step/start expected step {state.next_step}, got {start.step}")
    return state._replace(open_step=start.step, next_step=start.step + 1, step_tokens=Tokens())


def step_end(state: SessionState, event: event_pb2.Event) -> SessionState:
    end = event.step_end
    if state.open_step is None:
        raise Violation("step/end without open step/start")
    if end.turn != state.open_turn:
        raise Violation(f"step/end in turn {end.turn} but open turn is {state.open_turn}")
    if end.step != state.open_step:
        raise Violation(f"step/end expected step {state.open_step}, got {end.step}")
    if state.calls:
        raise Violation("step/end while tool/call still open")
    if any(not request.interactive for request in state.requests.values()):
        raise Violation("step/end while approval/request still open")
    if state.requests:
        raise Violation("step/end while interactive/request still open")
    if state.children:
        raise Violation("step/end while child/started still open")
    return state._replace(open_step=None, plan=None, step_tokens=Tokens())


def user_message(state: SessionState, event: event_pb2.Event) -> SessionState:
    if state.open_turn is None:
        raise Violation("user/message without open turn")
    if state.open_step is not None:
        raise Violation("user/message while step open")
    if state.stepped and not event.synthetic and not event.user_message.steering:
        raise Violation("user/message after step/end neither synthetic nor steering")
    return state


def limit_reached(state: SessionState, event: event_pb2.Event) -> SessionState:
    hits = event.limit_reached.hits
    if state.open_turn is None or state.limit is not None or not hits:
        return state
    return state._replace(limit=hits[0].dimension)
