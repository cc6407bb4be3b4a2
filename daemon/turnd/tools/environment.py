"""Which of a client's environment variables a session's commands get (TOOL-11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DEFAULT_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
MAX_VALUE_BYTES: Final = 16 * 1024

# Names, never patterns: people pass secrets as LC_SOMETHING, because ssh lets that through.
ALLOWED: Final = frozenset(
    (
        "PATH",
        "TZ",
        "TERM",
        "NO_COLOR",
        "LANG",
        "LANGUAGE",
        "LC_ADDRESS",
        "LC_ALL",
        "LC_COLLATE",
        "LC_CTYPE",
        "LC_IDENTIFICATION",
        "LC_MEASUREMENT",
        "LC_MESSAGES",
        "LC_MONETARY",
        "LC_NAME",
        "LC_NUMERIC",
        "LC_PAPER",
        "LC_TELEPHONE",
        "LC_TIME",
        "VIRTUAL_ENV",
        "CONDA_DEFAULT_ENV",
        "CONDA_PREFIX",
        "PYENV_ROOT",
        "PYENV_VERSION",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUNBUFFERED",
        "NVM_BIN",
        "NVM_DIR",
        "NODE_ENV",
        "CARGO_HOME",
        "RUSTUP_HOME",
        "RUSTUP_TOOLCHAIN",
        "GOPATH",
        "GOROOT",
        "JAVA_HOME",
        "RBENV_ROOT",
        "RBENV_VERSION",
        "SOURCE_DATE_EPOCH",
    )
)
"""Tool chains, locale and the like. No keys, no tokens, no addresses of sockets: those are grants of their
own.
"""


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """What a session keeps of its client's environment; values that no program could use are left out."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name in ALLOWED and "\0" not in value and len(value.encode(errors="replace")) <= MAX_VALUE_BYTES
    }


def for_commands(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a session's commands: what is allowed of the session's own, and a PATH in any case.

    Nobody is there to edit anything, and an editor is a program that no rule for git names: git takes `:` for none.
    """
    return {"PATH": DEFAULT_PATH, "LANG": "C.UTF-8", **allowed(environment), "GIT_EDITOR": ":"}
