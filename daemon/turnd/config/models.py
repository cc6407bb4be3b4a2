"""Models: their names, and servers of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from turnd.config.kinds import Choice, Flag, Record, Whole, key
from turnd.config.prices import PRICING, Pricing
from turnd.config.problems import KeyPath, Problem, Refused, did_you_mean, expected
from turnd.config.secrets import SECRET, Secret

VENDORS = ("anthropic", "openai", "openai-compatible")
MODEL_KINDS = {vendor: vendor for vendor in VENDORS}


@dataclass(frozen=True, slots=True)
class ModelName:
    """`VENDOR/MODEL`, `openai-compatible/SERVER/MODEL` or `replay:FILE`."""

    name: str = "a model: anthropic/MODEL, openai/MODEL, openai-compatible/SERVER/MODEL or replay:FILE"

    def read(self, value: object, path: KeyPath) -> str:
        if not isinstance(value, str):
            raise Refused([Problem(path, expected(self.name, value))])
        if value.startswith("replay:") and value != "replay:":
            return value
        vendor, _, model = value.partition("/")
        server, _, of_server = model.partition("/")
        if vendor not in VENDORS:
            text = f"{expected(self.name, value)}; {did_you_mean(vendor, (*VENDORS, 'replay'))}"
            raise Refused([Problem(path, text)])
        if not model or (vendor == "openai-compatible" and not (server and of_server)):
            raise Refused([Problem(path, expected(self.name, value))])
        return value


def server_of(model: str) -> str | None:
    """The name in `[models]` that a model's name speaks of; None where it speaks of none."""
    vendor, _, rest = model.partition("/")
    return rest.partition("/")[0] if vendor == "openai-compatible" else None


@dataclass(frozen=True, slots=True)
class Url:
    """An absolute http or https URL."""

    name: str = "a URL such as http://127.0.0.1:8080"

    def read(self, value: object, path: KeyPath) -> str:
        try:
            parts = urlsplit(value) if isinstance(value, str) else None
            fits = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
            fits = fits and (parts is None or parts.port != 0)
        except ValueError:
            fits = False
        if not fits or not isinstance(value, str):
            raise Refused([Problem(path, expected(self.name, value))])
        return value


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A server that models are asked at, under a name of the user's choice. Sizes in tokens."""

    kind: str = key(Choice(MODEL_KINDS), "the API that it speaks")
    base_url: str | None = key(Url(), "where it is; needed for openai-compatible", default=None)
    api_key: Secret | None = key(
        SECRET, "where its key is; omitted: none, or the vendor's usual one", default=None
    )
    pricing: Pricing | None = key(
        PRICING,
        "what all its models cost; omitted: looked up for each in the built-in table, and unknown is never zero",
        default=None,
    )
    context_window: int | None = key(Whole(1, "tokens"), "window of its models", default=None)
    max_output_tokens: int | None = key(Whole(1, "tokens"), "most that its models put out", default=None)
    tool_use: bool = key(Flag(), "its models can call tools", default=True)
    parallel_tool_calls: bool = key(Flag(), "its models can call several tools at once", default=True)
    vision: bool = key(Flag(), "its models take images", default=False)


def _check_server(server: ModelServer) -> Mapping[str, str]:
    if server.kind == "openai-compatible" and server.base_url is None:
        return {"base_url": f"missing; expected {Url().name}"}
    return {}


MODEL_SERVER = Record(ModelServer, "a table", _check_server)
