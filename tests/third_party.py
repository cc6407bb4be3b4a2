"""Servers that others wrote, started as processes of their own on loopback and ended by pid."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Llmock:
    """The server `llmock`, in a process of its own."""

    port: int

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def scenario(self, *behaviors: Mapping[str, object]) -> None:
        """What the next requests get, in this order."""
        self._call("/_llmock/scenario", {"behaviors": list(behaviors)})

    def reset(self) -> None:
        self._call("/_llmock/reset", {})

    def requests(self) -> list[dict[str, Any]]:
        """What it was asked."""
        return cast(list[dict[str, Any]], self._call("/_llmock/requests")["requests"])

    def verdict(self) -> list[str]:
        """What it finds wrong with its client."""
        return [str(finding["code"]) for finding in self._call("/_llmock/verdict")["findings"]]

    def answers(self) -> bool:
        """Whether it has started."""
        try:
            self._call("/health")
        except OSError:
            return False
        return True

    def _call(self, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(asked, timeout=10) as answer:
            return cast(dict[str, Any], json.load(answer))


@pytest.fixture(scope="module")
def llmock_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llmock]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = Path(sys.executable).with_name("llmock")
    log = tmp_path_factory.mktemp("llmock") / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [command, "serve", "--port", str(port), "--log-level", "warning"], stdout=output, stderr=output
        )
    try:
        server = Llmock(port)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not server.answers():
            assert process.poll() is None, f"llmock ended: {log.read_text()}"
            assert time.monotonic() < deadline, f"llmock does not answer: {log.read_text()}"
            time.sleep(0.05)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)


@pytest.fixture
def llmock_server(llmock_process: Llmock) -> Iterator[Llmock]:
    llmock_process.reset()
    yield llmock_process
    llmock_process.reset()
