"""Trust in workspaces: what a workspace's file would widen, and the user's word for this very content (OPS-04)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from turnd.ports import Layers, LayerUnusable
from turnd.rules.layer import WorkspaceLayer
from turnd.sessions.refusal import invalid, not_found, not_now
from turnd.sessions.surroundings import Surroundings
from turnd.sessions.workspace import canonical
from turnd.v1 import daemon_pb2


class NotTrusted(Exception):
    """The list of trusted workspaces could not be changed; the text says why."""


@dataclass(frozen=True, slots=True)
class TrustedWorkspace:
    """One entry of the list."""

    workspace: str
    digest: str
    at_us: int


class Trusting(Layers, Protocol):
    """The layers of workspaces, and the list of those that are trusted."""

    async def trust(self, workspace: str, digest: str) -> None:
        """Trusts the content with this digest, in place of what was trusted there. Raises NotTrusted."""

    async def forget(self, workspace: str) -> bool:
        """Ends the trust; False where there was none. Raises NotTrusted."""

    def trusted(self) -> Sequence[TrustedWorkspace]:
        """The list, by name."""


class Trust:
    """What clients ask about trust. Every command says all that it wants, so that twice is as good as once."""

    def __init__(self, layers: Trusting, surroundings: Surroundings) -> None:
        self._layers = layers
        self._surroundings = surroundings

    async def run(self, request: daemon_pb2.TrustRequest) -> daemon_pb2.TrustResponse:
        """Looks, trusts, ends trust or lists, as the request says. Raises CommandRefused."""
        if not request.workspace:
            return await self._list()
        if request.untrust:
            return await self._forget(request.workspace)
        workspace = self._surroundings.directory(request.workspace)
        layer = await self._surroundings.layer(workspace)
        if request.trust:
            await self._trust(workspace, layer, request.digest)
            layer = await self._surroundings.layer(workspace)
        return daemon_pb2.TrustResponse(
            now_in_force=layer.in_force,
            workspace=workspace,
            file=layer.file,
            digest=layer.digest,
            trusted=layer.trusted,
            widens=layer.widens,
            refused=layer.refused,
        )

    async def _trust(self, workspace: str, layer: WorkspaceLayer, digest: str) -> None:
        if not layer.file:
            raise not_now(f"{workspace} has no .turnd/config.toml: there is nothing to trust")
        if not digest:
            raise invalid("digest", "expected the digest of the content that was shown, found none")
        if digest != layer.digest:
            raise not_now(
                f"{layer.file} has changed since it was shown: nothing was trusted; look at it again"
            )
        try:
            await self._layers.trust(workspace, digest)
        except NotTrusted as failed:
            raise not_now(f"{workspace}: {failed}") from None

    async def _forget(self, directory: str) -> daemon_pb2.TrustResponse:
        # The directory may be gone, or be none that a session may have any more.
        known = {each.workspace for each in self._layers.trusted()}
        workspace = directory if directory in known else canonical(directory)
        try:
            forgotten = await self._layers.forget(workspace)
        except NotTrusted as failed:
            raise not_now(f"{workspace}: {failed}") from None
        if not forgotten:
            raise not_found(
                "trusted workspace",
                workspace,
                f"{workspace} is not trusted; `turn trust --list` shows what is",
            )
        return daemon_pb2.TrustResponse(workspace=workspace)

    async def _list(self) -> daemon_pb2.TrustResponse:
        answer = daemon_pb2.TrustResponse()
        for each in self._layers.trusted():
            at = Timestamp()
            at.FromMicroseconds(each.at_us)
            answer.workspaces.add(
                workspace=each.workspace, digest=each.digest, at=at, state=await self._state(each)
            )
        return answer

    async def _state(self, trusted: TrustedWorkspace) -> daemon_pb2.TrustState.ValueType:
        try:
            layer = await self._layers.of(trusted.workspace)
        except LayerUnusable:
            return daemon_pb2.TRUST_STATE_CHANGED
        if not layer.file:
            return daemon_pb2.TRUST_STATE_GONE
        return daemon_pb2.TRUST_STATE_TRUSTED if layer.trusted else daemon_pb2.TRUST_STATE_CHANGED
