"""Keys of model vendors: from the daemon's environment or a private file, never in a text (MODEL-10)."""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from turnd.models.regular_file import open_regular

LONGEST_KEY_BYTES = 16_384
KEYS_REMEMBERED = 64

_LOOKS_LIKE_A_KEY = re.compile(
    r"""\b(?:sk|gsk|csk|xai|hf|nvapi)[-_][A-Za-z0-9*._-]{8,}   # the forms that vendors mint
      | \bAIza[A-Za-z0-9_-]{20,}
      | (?<=[Bb]earer[ ])[A-Za-z0-9+/=*._~-]{8,}""",
    re.VERBOSE,
)
_REDACTED = "[redacted]"


class KeyUnavailable(Exception):
    """A key cannot be had; the text says where it was looked for and what to do, and holds nothing of it."""


@dataclass(frozen=True, slots=True)
class EnvironmentKey:
    """A variable of the daemon's own environment."""

    variable: str

    def __str__(self) -> str:
        return f"the environment variable {self.variable}"


@dataclass(frozen=True, slots=True)
class FileKey:
    """A file that only its owner can read; `~` stands for the home directory."""

    path: str

    def __str__(self) -> str:
        return f"the key file {self.path}"


KeySource = EnvironmentKey | FileKey


class Keys:
    """Reads keys when they are needed, so that a changed file counts at once, and takes them out of texts."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        # The mutable state: what was read last, to be redacted; also what a request under way still uses.
        self._read: deque[str] = deque(maxlen=KEYS_REMEMBERED)

    def read(self, source: KeySource) -> str:
        """The key itself. Raises KeyUnavailable."""
        match source:
            case EnvironmentKey(variable):
                key = self._environment.get(variable, "")
                if not key:
                    raise KeyUnavailable(
                        f"{source} is not set in the daemon's environment: set it there and start the daemon "
                        "again, or name a file with the key under api_key"
                    )
            case FileKey(path):
                key = _from_file(Path(path).expanduser(), source)
            case _:
                assert_never(source)
        key = key.strip()
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise KeyUnavailable(f"{source} must hold one key in printable ASCII and nothing else")
        if key not in self._read:
            self._read.append(key)
        return key

    def redact(self, text: str) -> str:
        """The text without the keys that were read, and without whatever else has the form of one."""
        for key in self._read:
            text = text.replace(key, _REDACTED)
        return _LOOKS_LIKE_A_KEY.sub(_REDACTED, text)


def _from_file(path: Path, source: FileKey) -> str:
    try:
        file = open_regular(str(path))
    except OSError as failed:
        raise KeyUnavailable(f"{source} cannot be read: {failed.strerror}") from None
    with file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid():
            raise KeyUnavailable(f"{source} belongs to another user (uid {status.st_uid}); it must be yours")
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise KeyUnavailable(f"{source} has mode {mode:04o}, others can reach it: chmod 600 {path}")
        data = file.read(LONGEST_KEY_BYTES + 1)
    if len(data) > LONGEST_KEY_BYTES:
        raise KeyUnavailable(f"{source} is longer than {LONGEST_KEY_BYTES} bytes, so it is no key")
    return data.decode("utf-8", errors="replace")
