"""Where a secret is. The configuration never holds one itself."""

from __future__ import annotations

from dataclasses import dataclass

from turnd.config.kinds import Record, Text, key
from turnd.config.problems import KeyPath, Problem, Refused

WAYS = 'a table with one of env = "VARIABLE", file = "PATH" or keyring = "NAME"'


@dataclass(frozen=True, slots=True)
class Secret:
    """Exactly one of these is set."""

    env: str | None = key(Text(), "a variable of the daemon's environment", default=None)
    file: str | None = key(Text(), "a file that only its owner can read", default=None)
    keyring: str | None = key(Text(), "an entry of the keyring", default=None)


@dataclass(frozen=True, slots=True)
class SecretKind:
    """A place of a secret; a literal is refused, and never repeated in the message."""

    name: str = WAYS

    def read(self, value: object, path: KeyPath) -> Secret:
        if isinstance(value, str):
            raise Refused(
                [Problem(path, f"a secret is not written into the configuration; expected {self.name}")]
            )
        secret = _TABLE.read(value, path)
        if sum(place is not None for place in (secret.env, secret.file, secret.keyring)) != 1:
            raise Refused([Problem(path, f"expected {self.name}")])
        return secret


_TABLE = Record(Secret, WAYS)

SECRET = SecretKind()
