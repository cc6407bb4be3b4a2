"""Third parties' servers, for every test here."""

from __future__ import annotations

from tests.third_party import llmock_process, llmock_server

__all__ = ["llmock_process", "llmock_server"]
