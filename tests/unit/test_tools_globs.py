"""Which providers a session's globs name."""

from __future__ import annotations

import pytest

from turnd.tools.toolset import names_provider


@pytest.mark.parametrize(
    ("glob", "provider", "named"),
    [
        ("workspace.*", "workspace", True),
        ("workspace.read_file", "workspace", True),
        ("workspace.*", "core", False),
        ("*", "workspace", True),
        ("*.read_*", "workspace", True),
        ("work*.x", "workspace", True),
        ("workspace", "workspace", False),
        ("", "workspace", False),
        ("mcp:*.x", "mcp:github", True),
    ],
)
def test_a_glob_names_a_provider(glob: str, provider: str, named: bool) -> None:
    assert names_provider(glob, provider) is named
