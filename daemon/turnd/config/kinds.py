"""The kinds of value that a configuration may hold: each reads one out of TOML, or says what is wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, Protocol, TypeVar

from immutables import Map

from turnd.config.problems import KeyPath, Problem, Refused, did_you_mean, expected

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Check = Callable[[Any], Mapping[str, str]]
"""What is wrong with a whole record whose keys are each fine: text by key."""


class Kind(Protocol[T_co]):
    """One kind of value."""

    @property
    def name(self) -> str:
        """What is expected, as in "expected ..."."""

    def read(self, value: object, path: KeyPath) -> T_co:
        """The value, checked. Raises Refused."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is not empty."""

    name: str = "a text"

    def read(self, value: object, path: KeyPath) -> str:
        if not isinstance(value, str) or not value:
            raise Refused([Problem(path, expected(self.name, value))])
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false."""

    name: str = "true or false"

    def read(self, value: object, path: KeyPath) -> bool:
        if not isinstance(value, bool):
            raise Refused([Problem(path, expected(self.name, value))])
        return value


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number with a lowest value; never a flag, a fraction or a text (BOUND-13)."""

    least: int
    unit: str = ""

    @property
    def name(self) -> str:
        return f"a whole number{_of(self.unit)}, {self.least} or more"

    def read(self, value: object, path: KeyPath) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value < 2**63:
            raise Refused([Problem(path, expected(self.name, value))])
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number within limits; never a flag, NaN, infinity or a text (BOUND-13)."""

    least: Decimal = Decimal(0)
    most: Decimal | None = None
    above: bool = False
    """`least` itself is refused."""
    unit: str = ""

    @property
    def name(self) -> str:
        low = f"more than {self.least}" if self.above else f"{self.least} or more"
        high = "" if self.most is None else f" and at most {self.most}"
        return f"a number{_of(self.unit)}, {low}{high}"

    def read(self, value: object, path: KeyPath) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            raise Refused([Problem(path, expected(self.name, value))])
        number = Decimal(value)
        too_low = not number.is_finite() or number < self.least or (self.above and number == self.least)
        if too_low or (self.most is not None and number > self.most) or not math.isfinite(float(number)):
            raise Refused([Problem(path, expected(self.name, value))])
        return number


@dataclass(frozen=True, slots=True)
class Scaled:
    """A number that is kept as an integer of a smaller unit: USD as nano-USD, seconds as milliseconds."""

    number: Number
    factor: int

    @property
    def name(self) -> str:
        return f"{self.number.name}, in steps of {Decimal(1) / self.factor:f}"

    def read(self, value: object, path: KeyPath) -> int:
        scaled = self.number.read(value, path) * self.factor
        if scaled != scaled.to_integral_value() or scaled >= 2**63:
            raise Refused([Problem(path, expected(self.name, value))])
        return int(scaled)


@dataclass(frozen=True, slots=True)
class Fraction:
    """A number that is kept as a float."""

    number: Number

    @property
    def name(self) -> str:
        return self.number.name

    def read(self, value: object, path: KeyPath) -> float:
        return float(self.number.read(value, path))


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """One of a closed set of texts, each standing for a value."""

    values: Mapping[str, T]

    @property
    def name(self) -> str:
        return "one of " + ", ".join(f'"{text}"' for text in self.values)

    def read(self, value: object, path: KeyPath) -> T:
        if not isinstance(value, str):
            raise Refused([Problem(path, expected(self.name, value))])
        if value not in self.values:
            raise Refused(
                [Problem(path, f"{expected(self.name, value)}; {did_you_mean(value, self.values)}")]
            )
        return self.values[value]


@dataclass(frozen=True, slots=True)
class Many(Generic[T]):
    """An array of values of one kind."""

    kind: Kind[T]
    least: int = 0

    @property
    def name(self) -> str:
        return f"an array of {self.kind.name}" + (f" with at least {self.least}" if self.least else "")

    def read(self, value: object, path: KeyPath) -> tuple[T, ...]:
        if not isinstance(value, list) or len(value) < self.least:
            raise Refused([Problem(path, expected(self.name, value))])
        problems: list[Problem] = []
        items: list[T] = []
        for index, item in enumerate(value):
            try:
                items.append(self.kind.read(item, (*path, index)))
            except Refused as refused:
                problems += refused.problems
        if problems:
            raise Refused(problems)
        return tuple(items)


@dataclass(frozen=True, slots=True)
class OneOrMany(Generic[T]):
    """A value, or an array of such values that is not empty."""

    kind: Kind[T]

    @property
    def name(self) -> str:
        return f"{self.kind.name}, or an array of such"

    def read(self, value: object, path: KeyPath) -> tuple[T, ...]:
        if isinstance(value, list):
            return Many(self.kind, least=1).read(value, path)
        return (self.kind.read(value, path),)


@dataclass(frozen=True, slots=True)
class Named(Generic[T]):
    """A table of values of one kind, each under a name that the user chooses."""

    kind: Kind[T]

    @property
    def name(self) -> str:
        return f"a table of {self.kind.name}"

    def read(self, value: object, path: KeyPath) -> Mapping[str, T]:
        if not isinstance(value, dict):
            raise Refused([Problem(path, expected(self.name, value))])
        problems: list[Problem] = []
        items: dict[str, T] = {}
        for key, item in value.items():
            try:
                items[key] = self.kind.read(item, (*path, key))
            except Refused as refused:
                problems += refused.problems
        if problems:
            raise Refused(problems)
        return Map(items)


@dataclass(frozen=True, slots=True)
class Either(Generic[T]):
    """One word that stands for a value, or else a value of the other kind."""

    word: str
    value: T
    other: Kind[T]

    @property
    def name(self) -> str:
        return f'"{self.word}", or {self.other.name}'

    def read(self, value: object, path: KeyPath) -> T:
        if value == self.word:
            return self.value
        try:
            return self.other.read(value, path)
        except Refused as refused:
            if all(problem.path != path for problem in refused.problems):
                raise
        raise Refused([Problem(path, expected(self.name, value))])


@dataclass(frozen=True, slots=True)
class Record(Generic[T]):
    """A table whose keys are the fields of a dataclass that was made with `key`."""

    type: Callable[..., T]
    what: str = "a table"
    check: Check | None = None

    @property
    def name(self) -> str:
        return self.what

    def read(self, value: object, path: KeyPath) -> T:
        if not isinstance(value, dict):
            raise Refused([Problem(path, expected(self.name, value))])
        keys = keys_of(self.type)
        problems = [
            Problem((*path, name), f"unknown key; {did_you_mean(name, keys)}")
            for name in value
            if name not in keys
        ]
        items: dict[str, Any] = {}
        for name, key in keys.items():
            if name in value:
                try:
                    items[key.field] = key.kind.read(value[name], (*path, name))
                except Refused as refused:
                    problems += refused.problems
            elif key.required:
                problems.append(Problem((*path, name), f"missing; expected {key.kind.name}"))
        if problems:
            raise Refused(problems)
        record = self.type(**items)
        if self.check is not None:
            problems = [Problem((*path, name), text) for name, text in self.check(record).items()]
            if problems:
                raise Refused(problems)
        return record


@dataclass(frozen=True, slots=True)
class Key:
    """What the schema says of one key."""

    field: str
    kind: Kind[Any]
    meaning: str
    required: bool
    default: object


def key(kind: Kind[T], meaning: str, *, default: object = dataclasses.MISSING, name: str = "") -> Any:
    """A dataclass field that is read from the key of its name, or of `name`; required without a default."""
    return dataclasses.field(default=default, metadata={"kind": kind, "meaning": meaning, "name": name})


def keys_of(record: object) -> dict[str, Key]:
    """The keys of a record's table, by name, in the order of the schema."""
    return {
        field.metadata["name"] or field.name: Key(
            field=field.name,
            kind=field.metadata["kind"],
            meaning=field.metadata["meaning"],
            required=field.default is dataclasses.MISSING,
            default=field.default,
        )
        for field in dataclasses.fields(record)  # type: ignore[arg-type]
        if "kind" in field.metadata
    }


def _of(unit: str) -> str:
    return f" of {unit}" if unit else ""
