"""Which workspaces' files the user trusts: by directory, and by the digest of the content that was shown (OPS-04)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

_VERSION: Final = 1
_MOST: Final = 10_000


class TrustFull(Exception):
    """There is no room for one more workspace."""


@dataclass(frozen=True, slots=True)
class Trusted:
    """What the user has trusted in one workspace."""

    digest: str
    at_us: int


class TrustFile:
    """A file of the daemon's state. The mutable state is what it says, read once.

    Where it is there and cannot be read, nothing is trusted, and `problem` says so.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = asyncio.Lock()
        self.problem = ""
        trusted: dict[str, Trusted] = {}
        try:
            trusted = _read(file)
        except (OSError, ValueError) as error:
            self.problem = (
                f"{file} cannot be read, so that no workspace is trusted until `turn trust` does: {error}"
            )
        self._trusted: Mapping[str, Trusted] = MappingProxyType(trusted)

    def all(self) -> Mapping[str, Trusted]:
        """What is trusted, by canonical directory."""
        return self._trusted

    def trusts(self, workspace: str, digest: str) -> bool:
        """Whether this very content is trusted there."""
        trusted = self._trusted.get(workspace)
        return trusted is not None and trusted.digest == digest

    async def add(self, workspace: str, digest: str, at_us: int) -> None:
        """Trusts a content, in place of what was trusted there. Raises OSError, TrustFull; then nothing changed."""
        async with self._lock:
            if workspace not in self._trusted and len(self._trusted) >= _MOST:
                raise TrustFull(
                    f"{_MOST} workspaces are trusted, which is all there can be: `turn untrust` one"
                )
            await self._replace({**self._trusted, workspace: Trusted(digest, at_us)})

    async def remove(self, workspace: str) -> bool:
        """Ends the trust; False where there was none. Raises OSError; then nothing changed."""
        async with self._lock:
            if workspace not in self._trusted:
                return False
            await self._replace({name: each for name, each in self._trusted.items() if name != workspace})
            return True

    async def _replace(self, trusted: dict[str, Trusted]) -> None:
        # Whole before it counts: a kill leaves the old or the new one.
        await asyncio.to_thread(_write, self._file, trusted)
        self._trusted, self.problem = MappingProxyType(trusted), ""


def _read(file: Path) -> dict[str, Trusted]:
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    try:
        if said["version"] != _VERSION:
            raise ValueError(f"expected version {_VERSION}, found {said['version']!r}")
        return {
            str(name): Trusted(str(each["digest"]), int(each["at_us"]))
            for name, each in said["workspaces"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not a list of trusted workspaces: {error!r}") from None


def _write(file: Path, trusted: Mapping[str, Trusted]) -> None:
    said = {
        "version": _VERSION,
        "workspaces": {
            name: {"digest": each.digest, "at_us": each.at_us} for name, each in sorted(trusted.items())
        },
    }
    new = file.with_name(f"{file.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as written:
        written.write(json.dumps(said, indent=1).encode())
        written.flush()
        os.fsync(written.fileno())
    new.replace(file)
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
