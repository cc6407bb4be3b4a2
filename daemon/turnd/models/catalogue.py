"""All adapters behind one door: a model's name says which of them has it."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable

from turnd.models.chat_connection import ChatConnection
from turnd.models.endpoint import CompatibleEndpoint
from turnd.models.keys import Keys
from turnd.models.openai_compatible import CompatibleModel
from turnd.models.regular_file import open_regular
from turnd.models.replay import ReplayModel
from turnd.models.transcript import Transcript
from turnd.models.transcript_reader import TranscriptError, parse_transcript
from turnd.ports import Clock, Model, UnknownModel

LARGEST_TRANSCRIPT_BYTES = 64 * 1024 * 1024
TRANSCRIPTS_KEPT = 16

_REPLAY = "replay:"
_FORMS = "this version has replay:FILE and openai-compatible/NAME/MODEL"


class Catalogue:
    """Implements the port Models. Close it when the daemon ends."""

    def __init__(self, clock: Clock, keys: Keys, endpoints: Iterable[CompatibleEndpoint] = ()) -> None:
        """Raises ValueError where two endpoints have one name."""
        self._clock = clock
        self._keys = keys
        self._connections: dict[str, ChatConnection] = {}
        self._retired: list[ChatConnection] = []
        self.configure(endpoints)
        # The mutable state: transcripts that were parsed, by path, mtime in ns and size; least used first.
        self._transcripts: OrderedDict[tuple[str, int, int], Transcript] = OrderedDict()

    def configure(self, endpoints: Iterable[CompatibleEndpoint]) -> None:
        """Puts these servers in the place of those before; requests that are under way end where they began.

        Raises ValueError where two have one name; then nothing has changed.
        """
        connections: dict[str, ChatConnection] = {}
        for endpoint in endpoints:
            if endpoint.name in connections:
                raise ValueError(f"two model servers are named {endpoint.name!r}")
            connections[endpoint.name] = ChatConnection(endpoint, self._clock, self._keys)
        self._retired += self._connections.values()
        self._connections = connections

    def open(self, name: str) -> Model:
        """The model of a name: `replay:/FILE` or `openai-compatible/NAME/MODEL`. Raises UnknownModel."""
        if name.startswith(_REPLAY):
            path = name.removeprefix(_REPLAY)
            return ReplayModel(path, self._transcript(path), self._clock)
        adapter, _, rest = name.partition("/")
        match adapter:
            case "openai-compatible":
                return self._compatible(name, rest)
            case "openai":
                raise UnknownModel(
                    f"{name}: there is no adapter {adapter!r} yet; {_FORMS}. OpenAI's own Chat Completions "
                    'are a compatible server: [models.NAME] with kind = "openai-compatible", '
                    'base_url = "https://api.openai.com/v1" and api_key = { env = "OPENAI_API_KEY" }'
                )
            case "anthropic":
                raise UnknownModel(
                    f"{name}: there is no adapter {adapter!r} yet; {_FORMS}: name a server that speaks Chat "
                    "Completions in [models.NAME]"
                )
            case _:
                raise UnknownModel(f"{name!r} names no model: {_FORMS}")

    async def close(self) -> None:
        """Closes the connections to all servers; requests that are under way fail."""
        for connection in (*self._retired, *self._connections.values()):
            await connection.close()

    def _compatible(self, name: str, rest: str) -> Model:
        server, _, model = rest.partition("/")
        if not server or not model:
            raise UnknownModel(f"{name!r} must have the form openai-compatible/NAME/MODEL")
        connection = self._connections.get(server)
        if connection is None:
            known = ", ".join(sorted(self._connections)) or "none"
            raise UnknownModel(
                f"{name}: no model server is named {server!r} (configured: {known}); add [models.{server}] "
                'with kind = "openai-compatible" and base_url = "http://..." to the configuration'
            )
        return CompatibleModel(model, connection)

    def _transcript(self, path: str) -> Transcript:
        if not path.startswith("/"):
            raise UnknownModel(
                f"replay:{path}: the path of a transcript must be absolute: the daemon has a working "
                "directory of its own"
            )
        try:
            with open_regular(path) as file:
                status = os.fstat(file.fileno())
                if status.st_size > LARGEST_TRANSCRIPT_BYTES:
                    raise UnknownModel(f"replay:{path}: is larger than {LARGEST_TRANSCRIPT_BYTES} bytes")
                key = (path, status.st_mtime_ns, status.st_size)
                transcript = self._transcripts.pop(key, None) or parse_transcript(file.read())
        except OSError as failed:
            raise UnknownModel(f"replay:{path}: cannot be read: {failed.strerror}") from None
        except TranscriptError as wrong:
            raise UnknownModel(f"replay:{path}: {wrong}") from None
        self._transcripts[key] = transcript
        if len(self._transcripts) > TRANSCRIPTS_KEPT:
            self._transcripts.popitem(last=False)
        return transcript
