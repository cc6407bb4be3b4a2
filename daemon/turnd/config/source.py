"""A configuration file as text: its values, and the line of each.

`tomllib` decides what the file says; it does not tell lines, so a second parse with tree-sitter finds them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import tree_sitter
import tree_sitter_toml

from turnd.config.problems import ConfigError, KeyPath, Origin

MOST_DOTS = 200
"""In one line. A dotted key costs the square of its parts, here and in `tomllib`."""
SYNTAX_ERROR_PLACE = re.compile(r" \(at (?:line (?P<line>\d+), column \d+|end of document)\)$")


@dataclass(frozen=True, slots=True)
class Source:
    """The values of a file, fractions as Decimal so that money stays exact, and where they are."""

    file: Path
    values: dict[str, Any]
    lines: Mapping[KeyPath, int]

    def origin(self, path: KeyPath) -> Origin:
        """The place of a key, or of the nearest thing around it that the file has."""
        while path and path not in self.lines:
            path = path[:-1]
        return Origin(self.file, self.lines.get(path, 1))


def read_source(file: Path) -> Source:
    """Reads a file. Raises ConfigError where it is not UTF-8 or not TOML, OSError where it cannot be read."""
    return parsed(file, file.read_bytes())


def parsed(file: Path, data: bytes) -> Source:
    """The content of a file. Raises ConfigError where it is not UTF-8, not TOML, or TOML that nobody would write."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            [f"{file}:{line}: expected UTF-8, found the byte 0x{data[error.start]:02x}"]
        ) from None
    for number, row in enumerate(data.splitlines(), 1):
        if row.count(b".") > MOST_DOTS:
            raise ConfigError(
                [f"{file}:{number}: expected at most {MOST_DOTS} dots in one line: break it up"]
            )
    try:
        values = tomllib.loads(text, parse_float=Decimal)
        return Source(file, values, key_lines(data))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([_syntax_error(file, text, str(error))]) from None
    except RecursionError:
        raise ConfigError([f"{file}:1: not valid TOML: it is nested too deeply"]) from None
    except ValueError as error:
        # A number with more digits than Python converts.
        raise ConfigError([f"{file}:1: not valid TOML: {error}"]) from None


def key_lines(data: bytes) -> dict[KeyPath, int]:
    """The line (from 1) at which each key, table and array element of a valid file is first named."""
    tree = tree_sitter.Parser(tree_sitter.Language(tree_sitter_toml.language())).parse(data)
    scan = _Scan()
    scan.document(tree.root_node)
    return scan.lines


class _Scan:
    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._tables_of_array: dict[KeyPath, int] = {}

    def document(self, root: tree_sitter.Node) -> None:
        for node in root.named_children:
            match node.type:
                case "pair":
                    self._pair(node, ())
                case "table":
                    self._body(node, self._enter((), _names(node.named_children[0]), node))
                case "table_array_element":
                    *outer, array = _names(node.named_children[0])
                    path = (*self._enter((), outer, node), array)
                    self._tables_of_array[path] = self._tables_of_array.get(path, 0) + 1
                    self._body(node, self._enter(path[:-1], [array], node))
                case _:
                    pass

    def _enter(self, path: KeyPath, names: list[str], node: tree_sitter.Node) -> KeyPath:
        # A name of an array of tables stands for the table that was begun last.
        for name in names:
            path += (name,)
            self._note(path, node)
            if path in self._tables_of_array:
                path += (self._tables_of_array[path] - 1,)
                self._note(path, node)
        return path

    def _body(self, node: tree_sitter.Node, path: KeyPath) -> None:
        for child in node.named_children:
            if child.type == "pair":
                self._pair(child, path)

    def _pair(self, node: tree_sitter.Node, path: KeyPath) -> None:
        key, value = (child for child in node.named_children if child.type != "comment")
        for name in _names(key):
            path += (name,)
            self._note(path, key)
        self._value(value, path)

    def _value(self, node: tree_sitter.Node, path: KeyPath) -> None:
        match node.type:
            case "inline_table":
                self._body(node, path)
            case "array":
                elements = (child for child in node.named_children if child.type != "comment")
                for index, element in enumerate(elements):
                    self._note((*path, index), element)
                    self._value(element, (*path, index))
            case _:
                pass

    def _note(self, path: KeyPath, node: tree_sitter.Node) -> None:
        self.lines.setdefault(path, node.start_point[0] + 1)


def _names(node: tree_sitter.Node) -> list[str]:
    match node.type:
        case "dotted_key":
            return [name for child in node.named_children for name in _names(child)]
        case "quoted_key":
            return list(tomllib.loads(f"{_text(node)} = 0"))
        case _:
            return [_text(node)]


def _text(node: tree_sitter.Node) -> str:
    return (node.text or b"").decode("utf-8")


def _syntax_error(file: Path, text: str, message: str) -> str:
    place = SYNTAX_ERROR_PLACE.search(message)
    line = text.count("\n") + 1
    if place is not None:
        message = message[: place.start()]
        line = int(place["line"] or line)
    return f"{file}:{line}: not valid TOML: {message[:1].lower()}{message[1:]}"
