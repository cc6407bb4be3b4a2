"""JSON Schema from type hints, and values from JSON by the same hints.

Understood are str, int, float, bool, None, Any, list[T], dict[str, T], Literal, unions of these with None,
frozen dataclasses, and Annotated with a description (a str) and constraints (`Limits`).
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

Schema = dict[str, Any]

_PRIMITIVES: Mapping[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


class SchemaError(TypeError):
    """A type hint cannot be said in JSON Schema; the message names the parameter and the hint."""


class Mismatch(ValueError):
    """A JSON value does not fit its hint; the message names the place and says what was expected."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Constraints for Annotated: bounds of a number (inclusive), of a string's length, of a list's."""

    minimum: int | float | None = None
    maximum: int | float | None = None
    min_length: int | None = None
    min_items: int | None = None

    def keywords(self) -> Schema:
        """The keywords of JSON Schema."""
        named = {
            "minimum": self.minimum,
            "maximum": self.maximum,
            "minLength": self.min_length,
            "minItems": self.min_items,
        }
        return {keyword: value for keyword, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One input field of a tool."""

    name: str
    hint: object
    required: bool


def parameters(function: Callable[..., object]) -> tuple[Parameter, ...]:
    """The input fields of a tool: its parameters after the first, which is the context. Raises
    SchemaError.
    """
    hints = get_type_hints(function, include_extras=True)
    found: list[Parameter] = []
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise SchemaError(f"{function.__name__}: *{parameter.name} cannot be an input field")
        if position == 0:
            continue
        if parameter.name not in hints:
            raise SchemaError(f"{function.__name__}: parameter {parameter.name} needs a type hint")
        required = parameter.default is inspect.Parameter.empty
        found.append(Parameter(parameter.name, hints[parameter.name], required))
    return tuple(found)


def object_schema(fields: tuple[Parameter, ...]) -> Schema:
    """The schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": {field.name: schema_of(field.hint, field.name) for field in fields},
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }


def schema_of(hint: object, place: str = "value") -> Schema:
    """The schema of one hint. Raises SchemaError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        schema = schema_of(arguments[0], place)
        for note in arguments[1:]:
            if isinstance(note, str):
                schema["description"] = note
            elif isinstance(note, Limits):
                schema.update(note.keywords())
        return schema
    if hint is Any:
        return {}
    if hint is None or hint is type(None):
        return {"type": "null"}
    if hint in _PRIMITIVES:
        return {"type": _PRIMITIVES[hint]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(option, place) for option in arguments]}
    if origin is list and arguments:
        return {"type": "array", "items": schema_of(arguments[0], place)}
    if origin is dict and arguments and arguments[0] is str:
        return {"type": "object", "additionalProperties": schema_of(arguments[1], place)}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return object_schema(_fields_of(hint))
    raise SchemaError(f"{place}: {hint!r} cannot be said in JSON Schema")


def arguments_of(fields: tuple[Parameter, ...], value: object, place: str = "") -> dict[str, Any]:
    """The keyword arguments for a decoded object; `place` is where in the input it is. Raises Mismatch."""
    within = f"{place}: " if place else ""
    if not isinstance(value, dict):
        raise Mismatch(f"{within}expected an object of arguments, found {_kind(value)}")
    by_name = {field.name: field for field in fields}
    if unknown := sorted(value.keys() - by_name.keys()):
        raise Mismatch(f"{within}unknown argument {unknown[0]!r}; known are {', '.join(by_name) or 'none'}")
    if missing := [field.name for field in fields if field.required and field.name not in value]:
        raise Mismatch(f"{within}argument {missing[0]!r} is missing")
    below = f"{place}." if place else ""
    return {name: value_of(by_name[name].hint, part, f"{below}{name}") for name, part in value.items()}


def value_of(hint: object, value: object, place: str) -> Any:
    """A decoded JSON value as its hint wants it; 3.0 is an integer, as in JSON Schema. Raises Mismatch."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return value_of(arguments[0], value, place)
    if hint is Any:
        return value
    if origin is Literal:
        if value in arguments and not isinstance(value, bool):
            return value
        raise Mismatch(f"{place}: expected one of {', '.join(map(repr, arguments))}, found {value!r}")
    if origin in (Union, types.UnionType):
        return _first_that_fits(arguments, value, place)
    if origin is list and isinstance(value, list):
        return [value_of(arguments[0], part, f"{place}[{index}]") for index, part in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {key: value_of(arguments[1], part, f"{place}.{key}") for key, part in value.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint(**arguments_of(_fields_of(hint), value, place))
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    wanted = type(None) if hint is None else hint
    if isinstance(wanted, type) and type(value) is wanted:
        return value
    raise Mismatch(f"{place}: expected {schema_of(hint, place).get('type', hint)}, found {_kind(value)}")


def _fields_of(dataclass_type: Any) -> tuple[Parameter, ...]:
    hints = get_type_hints(dataclass_type, include_extras=True)
    return tuple(
        Parameter(
            field.name,
            hints[field.name],
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(dataclass_type)
    )


def _first_that_fits(options: tuple[object, ...], value: object, place: str) -> Any:
    failures: list[str] = []
    for option in options:
        try:
            return value_of(option, value, place)
        except Mismatch as mismatch:
            failures.append(str(mismatch))
    raise Mismatch("; or ".join(failures))


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"
