"""How a failure is told on the command line: in one line where that is enough, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from turnd_client.errors import ClientError, ConnectionLost, Refused, StayedAway
from turnd_client.text import visible

DEBUG = "TURND_DEBUG"
"""Of the environment: with it, what gRPC said is told as well."""

_OPTIONS = {
    "session": "ID",
    "session.after_seq": "--after",
    "approval": "ITEM",
    "question": "ITEM",
    "output": "TEXT",
    "blocks": "TEXT",
    "seq": "--at",
    "profile": "--profile",
    "bounds.max_turns": "--max-turns",
    "bounds.max_cost_nano_usd": "--max-cost",
    "bounds.max_wall_clock_ms": "--max-time",
    "older_than_days": "--older-than",
}
"""What the command line calls the fields of requests."""

_ADVICE = {
    errno.ENOENT: "check the path: the directory of a file must be there",
    errno.ENOTDIR: "check the path: something in it is no directory",
    errno.EISDIR: "name a file",
    errno.EACCES: "name one that you may use, or change its permissions",
    errno.EPERM: "name one that you may use, or change its permissions",
    errno.EROFS: "name one on a file system that can be written",
    errno.ENOSPC: "make room, and run the command again",
    errno.EDQUOT: "make room, and run the command again",
}


def failure_text(error: ClientError, environment: Mapping[str, str]) -> str:
    """What a command says that ends by an error of the client library's."""
    text = str(error)
    match error:
        case StayedAway():
            pass
        case ConnectionLost():
            text += "; any turn command starts it again: look at what was done before you repeat this one"
        case Refused():
            text = _with_option(text, error.field)
        case _:
            pass
    return f"{text}\n  {visible(error.detail)}" if environment.get(DEBUG) and error.detail else text


def waiting_text(error: ClientError, environment: Mapping[str, str]) -> str:
    """What is said while the daemon is waited for."""
    text = f"{str(error).partition(': ')[0]}; waiting for it"
    return f"{text} ({visible(error.detail)})" if environment.get(DEBUG) and error.detail else text


def file_failure_text(error: OSError) -> str:
    """What a command says that could not read or write a file."""
    if error.filename is None and error.errno == errno.ENOENT:
        return "the working directory is gone: change to one that is there"
    cause = error.strerror or str(error)
    what = cause if error.filename is None else f"{visible(str(error.filename))}: {cause}"
    advice = _ADVICE.get(error.errno or 0)
    return f"{what}; {advice}" if advice else what


def _with_option(text: str, field: str) -> str:
    option = _OPTIONS.get(field.partition("[")[0])
    if option is None or option in text:
        return text
    text = text.removeprefix(f"{field}: ")
    # A name that is also a word stays where it stands in a sentence.
    return f"{option}: {text.replace(field, option) if '_' in field else text}"
