"""A provider that does what its calls tell it, the contract or not; written on the stubs alone, without the SDK.

Run as `python scripted_provider.py REGISTER`, where REGISTER is a serialised registration in base64. The input of a
call is {"do": [[step, ...], ...]}.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format

from turnd.v1 import provider_pb2, provider_pb2_grpc

Say = provider_pb2.InvokeResponse


class Scripted(provider_pb2_grpc.ToolProviderServicer):
    def __init__(self, register: provider_pb2.Register) -> None:
        self.register = register
        self.out: asyncio.Queue[provider_pb2.KernelResponse] = asyncio.Queue()
        self.waiting: dict[int, asyncio.Future[provider_pb2.KernelRequest]] = {}
        self.ids = itertools.count(1)
        self.registered: asyncio.Future[provider_pb2.KernelRequest] = (
            asyncio.get_running_loop().create_future()
        )
        self.seen: list[str] = []
        self.started: list[asyncio.Task[dict[str, Any]]] = []

    async def Kernel(self, requests: AsyncIterator[provider_pb2.KernelRequest], context: Any) -> None:  # type: ignore[override]
        await context.write(provider_pb2.KernelResponse(register=self.register))
        reading = asyncio.create_task(self.answers(requests))
        try:
            while True:
                await context.write(await self.out.get())
        finally:
            reading.cancel()

    async def answers(self, requests: AsyncIterator[provider_pb2.KernelRequest]) -> None:
        async for request in requests:
            if request.id in self.waiting:
                self.waiting.pop(request.id).set_result(request)
            elif not self.registered.done():
                self.registered.set_result(request)

    async def ask(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        message = provider_pb2.KernelResponse(id=next(self.ids))
        json_format.ParseDict({kind: fields}, message)
        answer = self.waiting[message.id] = asyncio.get_running_loop().create_future()
        self.out.put_nowait(message)
        told: dict[str, Any] = json_format.MessageToDict(await answer)
        return told

    def own(self, kind: str, request: provider_pb2.InvokeRequest, fields: dict[str, Any]) -> dict[str, Any]:
        """With the id of the call that asks, unless told another."""
        return fields if kind == "register" else {"call_id": request.context.call_id, **fields}

    async def Invoke(self, request: provider_pb2.InvokeRequest, context: Any) -> None:  # type: ignore[override]
        answers: list[Any] = []
        for step, *words in json.loads(request.input)["do"]:
            match step:
                case "output":
                    await context.write(Say(output=provider_pb2.OutputChunk(data=words[0].encode())))
                case "progress":
                    await context.write(Say(progress=provider_pb2.Progress(message=words[0])))
                case "partial":
                    content = json.dumps(words[0]).encode()
                    await context.write(Say(partial=provider_pb2.PartialResult(content=content)))
                case "exit":
                    await context.write(Say(exit_status=provider_pb2.ExitStatus(code=words[0])))
                case "result":
                    content = json.dumps(words[0]).encode()
                    await context.write(Say(result=provider_pb2.InvokeResult(content=content)))
                case "raw":
                    await context.write(Say(result=provider_pb2.InvokeResult(content=words[0].encode())))
                case "error":
                    error = provider_pb2.ToolError(category=words[0], message="as told")
                    await context.write(Say(error=error))
                case "unknown":
                    await context.write(Say())
                case "ask":
                    kind, fields = words
                    answers.append(await self.ask(kind, self.own(kind, request, fields)))
                case "start":
                    self.started.append(
                        asyncio.create_task(self.ask(words[0], self.own(words[0], request, words[1])))
                    )
                case "told":
                    content = json.dumps({"ok": True, "answers": answers}).encode()
                    await context.write(Say(result=provider_pb2.InvokeResult(content=content)))
                case "registered":
                    answers.append(json_format.MessageToDict(await self.registered))
                case "environment":
                    answers.append(dict(os.environ))
                case "seen":
                    answers.append(self.seen)
                case "crash":
                    os.write(2, b"falling over\n")
                    os._exit(3)
                case "hang":
                    try:
                        await asyncio.Event().wait()
                    finally:
                        self.seen.append("cancelled")
                case "stubborn":
                    while True:
                        try:
                            await asyncio.Event().wait()
                        except asyncio.CancelledError:
                            continue
                case other:
                    await context.abort(grpc.StatusCode.UNIMPLEMENTED, other)

    async def Preview(
        self, request: provider_pb2.PreviewRequest, context: Any
    ) -> provider_pb2.PreviewResponse:
        match json.loads(request.input).get("preview"):
            case "hang":
                await asyncio.Event().wait()
            case "crash":
                os._exit(3)
            case "abort":
                await context.abort(grpc.StatusCode.INTERNAL, "no preview")
        return provider_pb2.PreviewResponse(preview="shown \x1b[31m", preconditions=[])

    async def Health(self, request: provider_pb2.HealthRequest, context: Any) -> provider_pb2.HealthResponse:
        return provider_pb2.HealthResponse(serving=True)


async def main() -> None:
    register = provider_pb2.Register.FromString(base64.b64decode(sys.argv[1]))
    if not register.name:
        return
    if register.version == "silent":
        await asyncio.Event().wait()
    server = grpc.aio.server()
    provider_pb2_grpc.add_ToolProviderServicer_to_server(Scripted(register), server)
    listen, ready = os.environ["TURND_LISTEN"], int(os.environ["TURND_READY_FD"])
    if register.version == "planted":
        server.add_insecure_port(f"unix:{listen}.real")
        Path(listen).symlink_to(f"{listen}.real")
    elif register.version == "file":
        Path(listen).touch()
    else:
        server.add_insecure_port(f"unix:{listen}")
    await server.start()
    os.write(ready, b"ready\n")
    await server.wait_for_termination()


asyncio.run(main())
