"""Patterns over canonical paths and over names of hosts."""

from __future__ import annotations

import functools
import re
from typing import Final
from urllib.parse import urlsplit

_HOST: Final = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?|(?:\*\.)?\[?[0-9a-f:.]+\]?")


def path_problem(pattern: str) -> str | None:
    """Why a text is no pattern over paths; None where it is one."""
    if not pattern:
        return "is empty, and matches nothing; leave it out"
    if pattern[0] == "~":
        return "begins with ~, which is not expanded: write the whole path"
    if any(part in (".", "..") for part in pattern.split("/")):
        return "has a part . or ..: it is matched against canonical paths, which have none"
    if any("**" in part and part != "**" for part in pattern.split("/")):
        return "has ** beside other characters: it stands for whole directories, as in src/**/*.py"
    return None


def path_matches(pattern: str, path: str, workspace: str) -> bool:
    """Whether a canonical path fits: `*` and `?` stay within a name, `**` is any number of directories.

    Relative patterns begin at the workspace. What ends in `/**` is also the directory itself.
    """
    if not pattern.startswith("/"):
        if not workspace or not f"{path}/".startswith(f"{workspace.rstrip('/')}/"):
            return False
        path, pattern = path[len(workspace.rstrip("/")) :], f"/{pattern}"
    return _path_expression(pattern.rstrip("/")).fullmatch(path.rstrip("/")) is not None


def host_problem(pattern: str) -> str | None:
    """Why a text is no pattern over hosts; None where it is one."""
    if not _HOST.fullmatch(pattern.lower()):
        return "is no host: write a name such as example.org, or *.example.org for all below it"
    return None


def host_matches(pattern: str, address: str) -> bool:
    """Whether the host of an address (a URL, or a name with or without a port) fits; `*.` is one label or more."""
    host, pattern = host_of(address), pattern.lower().strip("[]")
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def host_of(address: str) -> str:
    """The host of an address in lower case; empty where it is not certain."""
    if any(character.isspace() or character in "\\\0" for character in address):
        return ""
    try:
        host = urlsplit(address if "://" in address else f"//{address}").hostname or ""
        return host.rstrip(".").encode("idna" if not host.isascii() else "ascii").decode().lower()
    except ValueError:
        return ""


@functools.lru_cache(maxsize=1024)
def _path_expression(pattern: str) -> re.Pattern[str]:
    parts = []
    for part in pattern.split("/")[1:]:
        if part == "**":
            parts.append("(?:/[^/]+)*")
        else:
            name = re.escape(part).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
            parts.append(f"/{name}")
    return re.compile("".join(parts), re.DOTALL)
