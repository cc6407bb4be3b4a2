"""Which adapter has a model, and what is said where none has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.models_fakes import VirtualClock, received, request

from turnd.models.catalogue import LARGEST_TRANSCRIPT_BYTES, TRANSCRIPTS_KEPT, Catalogue
from turnd.models.endpoint import CompatibleEndpoint
from turnd.models.keys import Keys
from turnd.models.pricing import FREE
from turnd.ports import Models, TextDelta, UnknownModel
from turnd.v1 import common_pb2 as common

LOCAL = CompatibleEndpoint(name="local", base_url="http://127.0.0.1:1/v1", pricing=FREE, context_window=8192)


def catalogue(*endpoints: CompatibleEndpoint) -> Catalogue:
    return Catalogue(VirtualClock(), Keys({}), endpoints)


def refusal(models: Models, name: str) -> str:
    with pytest.raises(UnknownModel) as refused:
        models.open(name)
    return str(refused.value)


async def text_of(models: Models, path: Path) -> str:
    events, error = await received(models.open(f"replay:{path}").stream(request()))
    assert error is None
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def test_a_transcript_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "a b.jsonl"
    path.write_text('{"stream": [{"text": "hi"}]}\n')
    models = catalogue()
    assert models.open(f"replay:{path}").spec.id == f"replay:{path}"
    assert await text_of(models, path) == "hi"


async def test_a_transcript_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"stream": [{"text": "old"}]}\n')
    models = catalogue()
    opened = models.open(f"replay:{path}")
    assert await text_of(models, path) == "old"
    path.write_text('{"stream": [{"text": "new"}]}\n')
    os.utime(path, ns=(1, 1))
    assert await text_of(models, path) == "new"
    events, _ = await received(opened.stream(request()))
    assert TextDelta("old") in events, "a model that is open keeps the transcript that it was opened with"


async def test_a_transcript_that_did_not_change_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"stream": [{"text": "one"}]}\n')
    os.utime(path, ns=(1, 1))
    models = catalogue()
    assert await text_of(models, path) == "one"
    path.write_text('{"stream": [{"text": "two"}]}\n')
    os.utime(path, ns=(1, 1))
    assert await text_of(models, path) == "one"
    for number in range(TRANSCRIPTS_KEPT):
        other = tmp_path / f"{number}.jsonl"
        other.write_text('{"stream": []}\n')
        models.open(f"replay:{other}")
    assert await text_of(models, path) == "two", "only so many are kept"


def test_transcripts_that_cannot_be_played(tmp_path: Path) -> None:
    models = catalogue()
    assert "must be absolute" in refusal(models, "replay:t.jsonl")
    assert "must be absolute" in refusal(models, "replay:")
    assert refusal(models, f"replay:{tmp_path}/none") == (
        f"replay:{tmp_path}/none: cannot be read: No such file or directory"
    )
    assert "it is not a regular file" in refusal(models, f"replay:{tmp_path}")
    assert "NUL" in refusal(models, "replay:/a\0b")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert "it is not a regular file" in refusal(models, f"replay:{fifo}")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"stream": []}\n{"strem": []}\n')
    assert refusal(models, f"replay:{broken}") == (
        f"replay:{broken}: line 2: unknown key 'strem'; did you mean 'stream'?"
    )
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(LARGEST_TRANSCRIPT_BYTES + 1)
    assert "is larger than" in refusal(models, f"replay:{large}")


def test_a_server_of_the_configuration_is_a_model() -> None:
    models = catalogue(LOCAL)
    model = models.open("openai-compatible/local/meta/llama-3.1")
    assert model.spec.id == "openai-compatible/local/meta/llama-3.1"
    assert (model.spec.context_window, model.spec.max_output_tokens) == (8192, 2048)
    assert model.price(0, common.TokenCounts()) == FREE.tiers[0]


def test_a_server_without_a_price_has_none() -> None:
    models = catalogue(CompatibleEndpoint(name="local", base_url="http://127.0.0.1:1/v1"))
    assert models.open("openai-compatible/local/m").price(0, common.TokenCounts()) is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("anthropic/claude-sonnet-5", "this version has replay:FILE and openai-compatible/NAME/MODEL"),
        ("openai/gpt-5", 'base_url = "https://api.openai.com/v1"'),
        ("openai-compatible/remote/m", "no model server is named 'remote' (configured: local)"),
        ("openai-compatible/local", "must have the form openai-compatible/NAME/MODEL"),
        ("openai-compatible/local/", "must have the form openai-compatible/NAME/MODEL"),
        ("openai-compatible//m", "must have the form openai-compatible/NAME/MODEL"),
        ("gpt-5", "'gpt-5' names no model: this version has"),
        ("", "'' names no model"),
    ],
)
def test_names_that_mean_no_model(name: str, says: str) -> None:
    assert says in refusal(catalogue(LOCAL), name)


def test_two_servers_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two model servers are named 'local'"):
        catalogue(LOCAL, LOCAL)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"name": "a/b"}, "without slashes"),
        ({"name": ""}, "not empty"),
        ({"base_url": "127.0.0.1:8080"}, "base_url must begin with http:// or https://"),
        ({"base_url": "ftp://a/v1"}, "base_url must begin with http:// or https://"),
        ({"base_url": "http://"}, "base_url must begin with"),
        ({"base_url": "http://a:x/v1"}, "base_url is not a URL"),
        ({"base_url": "http://a/v1?key=1"}, "without ?"),
        ({"context_window": 0}, "context_window must be 1 or more"),
        ({"context_window": 100, "max_output_tokens": 101}, "max_output_tokens must be from 1"),
        ({"max_output_tokens": 0}, "max_output_tokens must be from 1"),
        ({"idle_timeout_s": 0}, "idle_timeout_s must be more than 0"),
        ({"idle_timeout_s": float("inf")}, "idle_timeout_s must be more than 0"),
    ],
)
def test_servers_that_mean_nothing_are_refused_by_key(values: dict[str, object], says: str) -> None:
    arguments: dict[str, object] = {"name": "local", "base_url": "http://127.0.0.1:1/v1", **values}
    with pytest.raises(ValueError, match=says.replace("?", r"\?")):
        CompatibleEndpoint(**arguments)  # type: ignore[arg-type]


@pytest.mark.req("MODEL-10")
def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="must not hold a user or a password") as refused:
        CompatibleEndpoint(name="local", base_url="https://me:hunter22@example.org/v1")
    assert "hunter22" not in str(refused.value)


def test_the_sdk_is_not_loaded_before_it_is_needed() -> None:
    program = (
        "import sys; from turnd.models.catalogue import Catalogue; from turnd.models.keys import Keys\n"
        "from turnd.models.endpoint import CompatibleEndpoint as E\n"
        "Catalogue(None, Keys({}), [E(name='a', base_url='http://127.0.0.1:1')]).open('openai-compatible/a/m')\n"
        "print([name for name in sys.modules if name in ('openai', 'httpx', 'pydantic')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
