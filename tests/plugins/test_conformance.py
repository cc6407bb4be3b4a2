"""The report on requirements, run on small projects of its own."""

from __future__ import annotations

import pytest

PAGE = """
| id | lvl | requirement | claimed |
| --- | --- | --- | --- |
| AA-01 | M | one | {one} |
| AA-02 | M | two, with a `|` in it | {two} |
| V11 | M | three |  |
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    # Each run would import all plugins anew.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makefile(
        ".py",
        test_marks="""
            import pytest

            @pytest.mark.req("AA-01", "V11")
            def test_passes():
                pass

            @pytest.mark.req("AA-02")
            @pytest.mark.skip(reason="no such machine")
            def test_skipped():
                pass
        """,
    )
    pytester.makeini("[pytest]\nmarkers =\n    req(*ids): requirements\n")
    pytester.mkdir("docs")
    claim(pytester, one="yes", two="")
    return pytester


def claim(project: pytest.Pytester, *, one: str, two: str) -> None:
    page = PAGE.format(one=one, two=two)
    (project.path / "docs" / "requirements.md").write_text(page, encoding="utf-8")


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-p", "tests.plugins.conformance", *arguments)


def test_a_claimed_line_with_a_passing_test_is_shown(project: pytest.Pytester) -> None:
    result = run(project, "--conformance=report")
    result.stdout.fnmatch_lines(
        [
            "AA-01 *shown *claimed *1 passed",
            "AA-02 *NOT SHOWN *not claimed *1 skipped",
            "2 of 3 lines * 1 claimed",
        ]
    )
    assert result.ret == pytest.ExitCode.OK


def test_a_claimed_line_whose_only_test_is_skipped_fails_the_run(project: pytest.Pytester) -> None:
    claim(project, one="yes", two="yes")
    result = run(project, "--conformance=check")
    result.stdout.fnmatch_lines(["FAILED: claimed, and no passing test shows it: AA-02*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_claimed_line_without_a_test_fails_the_run(project: pytest.Pytester) -> None:
    result = run(project, "--conformance=check", "--deselect", "test_marks.py::test_passes")
    result.stdout.fnmatch_lines(["FAILED: claimed, and no passing test shows it: AA-01*no test"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_partial_run_is_not_held_to_the_claims(project: pytest.Pytester) -> None:
    assert run(project, "--deselect", "test_marks.py::test_passes").ret == pytest.ExitCode.OK


def test_skipped_tests_are_counted_by_reason(project: pytest.Pytester) -> None:
    result = run(project)
    result.stdout.fnmatch_lines(["*1 skipped*", "   1  no such machine"])


def test_an_id_that_is_not_on_the_page_is_an_error(project: pytest.Pytester) -> None:
    project.makepyfile(test_typo="import pytest\n\n@pytest.mark.req('AA-99')\ndef test_it():\n    pass\n")
    result = run(project)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*not in docs/requirements.md: AA-99 (in test_typo.py::test_it)*"])


def test_a_claim_that_is_neither_yes_nor_empty_is_an_error(project: pytest.Pytester) -> None:
    claim(project, one="almost", two="")
    result = run(project)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*expected yes or nothing, found 'almost'*"])


def test_lines_are_counted_where_other_processes_run_the_tests(project: pytest.Pytester) -> None:
    side_by_side = ("-p", "xdist", "-n", "2")
    result = run(project, "--conformance=check", *side_by_side)
    result.stdout.fnmatch_lines(["* 1 skipped *", "*1  no such machine", "2 of 3 lines * 1 claimed"])
    assert result.ret == pytest.ExitCode.OK
    claim(project, one="yes", two="yes")
    result = run(project, "--conformance=check", *side_by_side)
    result.stdout.fnmatch_lines(["FAILED: claimed, and no passing test shows it: AA-02 *"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
