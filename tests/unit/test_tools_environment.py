"""Which variables of a client reach a session's commands."""

from __future__ import annotations

import pytest

from turnd.tools.environment import DEFAULT_PATH, MAX_VALUE_BYTES, allowed, for_commands

SECRETS = (
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "SSH_AUTH_SOCK",
    "DBUS_SESSION_BUS_ADDRESS",
    "XDG_RUNTIME_DIR",
    "DOCKER_HOST",
    "LC_SECRET",
    "PATH_TO_KEY",
    "HOME",
    "LD_PRELOAD",
    "BASH_ENV",
    "PYTHONSTARTUP",
    "PROMPT_COMMAND",
    "TURND_HOME",
)


@pytest.mark.req("TOOL-11")
@pytest.mark.parametrize("name", SECRETS)
def test_keys_sockets_and_what_is_not_named_are_left_out(name: str) -> None:
    assert allowed({name: "x"}) == {}
    assert name not in for_commands({name: "x"})


@pytest.mark.req("TOOL-11")
def test_path_locale_and_tool_chains_are_kept() -> None:
    given = {"PATH": "/a:/b", "LC_ALL": "de_DE.UTF-8", "VIRTUAL_ENV": "/v", "TZ": "UTC", "JAVA_HOME": "/j"}
    assert allowed(given) == given
    assert for_commands(given) == {"LANG": "C.UTF-8", "GIT_EDITOR": ":", **given}


@pytest.mark.req("TOOL-11", "GATE-14")
def test_git_starts_no_editor_whatever_the_client_has() -> None:
    assert for_commands({"GIT_EDITOR": "vi", "EDITOR": "vi", "VISUAL": "vi"})["GIT_EDITOR"] == ":"


def test_values_that_no_program_could_use_are_left_out() -> None:
    assert allowed({"TZ": "a\0b", "TERM": "x" * (MAX_VALUE_BYTES + 1)}) == {}


def test_a_session_without_an_environment_has_a_path() -> None:
    assert for_commands({})["PATH"] == DEFAULT_PATH
