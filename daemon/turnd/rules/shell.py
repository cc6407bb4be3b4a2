"""Which programs a command line of bash would run, where that is certain (GATE-14).

Two readings have to agree: a small scanner that knows nothing but plain words, quoted text and separators, and
tree-sitter's grammar of bash. Whatever either does not know makes the line one that is not understood.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import tree_sitter

MAX_LINE_BYTES: Final = 64 * 1024
MAX_PROGRAMS: Final = 256
"""Of one line; a line that is longer than people read is asked about."""
MAX_DEPTH: Final = 4
"""Of shells and wrappers in each other."""

BUILTINS: Final = frozenset(
    (":", "true", "false", "echo", "printf", "pwd", "cd", "exit", "kill", "type", "umask", "times")
)
"""What bash does itself, whatever is on PATH, and what changes the meaning of no later word."""

EVALUATING: Final = frozenset(
    (
        *(".", "alias", "bg", "bind", "break", "builtin", "caller", "command", "compgen", "complete"),
        "compopt",
        *("continue", "declare", "dirs", "disown", "enable", "eval", "exec", "export", "fc", "fg", "getopts"),
        *("hash", "help", "history", "jobs", "let", "local", "logout", "mapfile", "popd", "pushd", "read"),
        *("readarray", "readonly", "return", "set", "shift", "shopt", "source", "suspend", "test"),
        *("[", "trap"),
        *("typeset", "ulimit", "unalias", "unset", "wait", "chdir"),
    )
)
"""Builtins that run text, change what later words mean, or evaluate array subscripts: never understood."""

RESERVED: Final = frozenset(
    (
        *("!", "{", "}", "[[", "]]", "((", "if", "then", "else", "elif", "fi", "case", "esac", "for"),
        "select",
        *("while", "until", "do", "done", "in", "function", "time", "coproc"),
    )
)

BASH: Final = frozenset(("bash", "/bin/bash", "/usr/bin/bash"))
SH: Final = frozenset(("sh", "/bin/sh", "/usr/bin/sh"))
_DURATION: Final = re.compile(r"\d+(?:\.\d+)?[smhd]?")
# %n stores into a variable, PATH for one.
_STORING: Final = re.compile(r"%[-+ #0'*.\d]*[hlLjztq]*n")

_TOKEN: Final = re.compile(
    r"""(?P<blank>[ \t]+)
    |(?P<newline>\n)
    |(?P<separator>&&|\|\||;|\|(?!&))
    |(?P<redirect>(?:[0-2]?(?:>>|>|<)[ \t]*/dev/null|&>>?[ \t]*/dev/null|>&[ \t]*/dev/null|[0-2]?[<>]&[0-2])
        (?=[ \t\n;|&]|\Z))
    |(?P<word>(?:[A-Za-z0-9_@%+=:,./^*?\[\]-]+|'[^']*'|"[^"$`\\]*")+)""",
    re.VERBOSE,
)
_PIECE: Final = re.compile(r"(?P<plain>[^'\"]+)|'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\"")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

_NODES: Final = frozenset(
    (
        *("program", "list", "pipeline", "redirected_statement", "command", "command_name", "word", "number"),
        *("raw_string", "string", "string_content", "concatenation", "file_redirect", "file_descriptor"),
        *(";", "&&", "||", "|", "\n", '"', ">", ">>", "<", ">&", "<&", "&>", "&>>"),
    )
)


@dataclass(frozen=True, slots=True)
class Word:
    """A word after quotes are taken off."""

    text: str
    glob: bool = False
    """It may become the names of files, any number of them."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program that a line would run."""

    words: tuple[Word, ...]
    """The first is its name; there is always one."""
    inner: tuple[Program, ...] | None = None
    """What it would run itself, where it is a shell or a wrapper that was looked into."""
    by_shell: bool = True
    """A shell runs it, which does its builtins itself; a wrapper does not."""

    @property
    def name(self) -> str:
        return self.words[0].text

    @property
    def builtin(self) -> bool:
        """The shell does it itself: nothing on PATH has to do with it."""
        return self.by_shell and self.name in BUILTINS


@dataclass(frozen=True, slots=True)
class Line:
    """What is known of a command line."""

    text: str
    programs: tuple[Program, ...] = ()
    """In the order of the line; empty where it is not understood."""
    problem: str = ""
    """Why it is not understood; empty where it is."""

    @property
    def names(self) -> frozenset[str]:
        """The names that PATH will be searched for."""
        return frozenset(
            program.name
            for program in every(self.programs)
            if not program.builtin and "/" not in program.name
        )


def understood(text: str) -> Line:
    """The programs of a line for bash, or why they are not certain. Never raises for what a line holds."""
    try:
        return Line(text, programs=_programs(text, 0, posix=False))
    except _NotUnderstood as problem:
        return Line(text, problem=str(problem))


def every(programs: Sequence[Program]) -> Iterator[Program]:
    """The programs and all that they would run."""
    for program in programs:
        yield program
        yield from every(program.inner or ())


class _NotUnderstood(Exception):
    """Says which part of the line is not on the list."""


def _programs(text: str, depth: int, *, posix: bool) -> tuple[Program, ...]:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise _NotUnderstood("it holds characters that are none") from None
    if len(data) > MAX_LINE_BYTES:
        raise _NotUnderstood(f"it is longer than {MAX_LINE_BYTES} bytes")
    if (control := _CONTROL.search(text)) is not None:
        raise _NotUnderstood(f"it holds the control character U+{ord(control[0]):04X}")
    if depth > MAX_DEPTH:
        raise _NotUnderstood("shells are nested too deeply")
    commands = _scanned(text, posix=posix)
    if not commands:
        raise _NotUnderstood("there is no command in it")
    if len(commands) > MAX_PROGRAMS:
        raise _NotUnderstood(f"it runs more than {MAX_PROGRAMS} programs")
    if [_in_bytes(text, spans) for spans in commands] != _parsed(data):
        raise _NotUnderstood("it cannot be taken apart with certainty")
    return tuple(_program([_word(text[a:b]) for a, b in spans], depth, by_shell=True) for spans in commands)


def _scanned(text: str, *, posix: bool) -> list[list[tuple[int, int]]]:
    """The spans of the words of each command, by the scanner."""
    commands: list[list[tuple[int, int]]] = []
    words: list[tuple[int, int]] = []
    owed = False
    end_of_word = -1
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise _NotUnderstood(f"{_shown(text[place])} is not on the list of what is understood")
        match found.lastgroup:
            case "word":
                if place == end_of_word:
                    raise _NotUnderstood("two words touch each other")
                words.append(found.span())
                end_of_word = found.end()
                owed = False
            case "redirect":
                number = words and words[-1][1] == place and text[slice(*words[-1])].isdigit()
                if not words or number or (posix and found[0].startswith(("&", ">&")) and "/" in found[0]):
                    raise _NotUnderstood("a redirection stands where it is not understood")
                end_of_word = found.end()
            case "separator":
                if not words:
                    raise _NotUnderstood(f"there is no command before {found[0]}")
                commands.append(words)
                words = []
                owed = found[0] != ";"
            case "newline" if words:
                commands.append(words)
                words = []
            case _:
                pass
        place = found.end()
    if owed:
        raise _NotUnderstood("the line ends where a command is expected")
    return [*commands, words] if words else commands


def _parsed(data: bytes) -> list[list[tuple[int, int]]]:
    """The same by tree-sitter, in bytes."""
    root = _parser().parse(data).root_node
    if root.has_error:
        raise _NotUnderstood("it is not valid")
    commands = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.type not in _NODES or node.is_missing:
            raise _NotUnderstood(f"{node.type.replace('_', ' ')} is not on the list of what is understood")
        if node.type == "command":
            commands.append([(child.start_byte, child.end_byte) for child in node.children])
        waiting.extend(reversed(node.children))
    return commands


@functools.cache
def _parser() -> tree_sitter.Parser:
    # Loaded with the first line: a daemon that runs no commands does not pay for the grammar.
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def _in_bytes(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if text.isascii():
        return spans
    return [(len(text[:a].encode()), len(text[:b].encode())) for a, b in spans]


def _word(raw: str) -> Word:
    text, glob = "", False
    for piece in _PIECE.finditer(raw):
        plain = piece["plain"]
        if plain is None:
            text += piece["single"] if piece["single"] is not None else piece["double"]
            continue
        special = re.search(r"[*?\[]", plain)
        if special is not None and not glob:
            before = text + plain[: special.start()]
            if not before or before.startswith("-"):
                raise _NotUnderstood("a word that begins with a wildcard could become an option")
            glob = True
        text += plain
    return Word(text, glob)


def _program(words: list[Word], depth: int, *, by_shell: bool) -> Program:
    name = words[0].text
    if not name or words[0].glob or "=" in name or name in RESERVED or name[0] in "-%":
        raise _NotUnderstood(f"{_shown(name)} is not understood where the name of a program stands")
    if name in EVALUATING:
        raise _NotUnderstood(f"{name} can change what the rest means")
    if name == "printf":
        _check_printf(words)
    return Program(tuple(words), _inner(words, depth), by_shell)


def _check_printf(words: list[Word]) -> None:
    options = [word.text for word in words[1:2]]
    if any(text.startswith("-") and text != "--" for text in options):
        raise _NotUnderstood("an option of printf can set a variable")
    if any(_STORING.search(word.text) for word in words[1:3]) or any(word.glob for word in words[1:3]):
        raise _NotUnderstood("a format of printf can set a variable")


def _inner(words: list[Word], depth: int) -> tuple[Program, ...] | None:
    """What a shell or wrapper runs, where it can be looked into; None for every other program too."""
    texts = [word.text for word in words]
    if any(word.glob for word in words[:3]):
        return None
    try:
        match texts:
            case [name, "-c" | "-lc", line] if name in BASH:
                return _programs(line, depth + 1, posix=False)
            case [name, "-c", line] if name in SH:
                return _programs(line, depth + 1, posix=True)
            case ["timeout", duration, name, *_] if _DURATION.fullmatch(duration) and name[:1] != "-":
                return (_wrapped(words[2:], depth),)
            case ["nice" | "nohup", name, *_] if name[:1] != "-":
                return (_wrapped(words[1:], depth),)
            case _:
                return None
    except _NotUnderstood:
        return None


def _wrapped(words: list[Word], depth: int) -> Program:
    if depth >= MAX_DEPTH:
        raise _NotUnderstood("wrappers are nested too deeply")
    return _program(words, depth + 1, by_shell=False)


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 40 else f"{text[:40]!r}..."
