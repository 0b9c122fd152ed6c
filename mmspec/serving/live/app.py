"""The application: the list of pages, their files, and a socket for every page that is open."""

import asyncio
import html
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from mmspec.serving.live.guard import Guard
from mmspec.serving.live.outbox import Outbox
from mmspec.serving.live.stage import Stage

MOST = 32
"""Pages that are open at a time; each has threads and a part of a model's memory."""

SHARED = Path(__file__).parent / "shared"
"""The script and the style that all pages share."""


def application(stages: Sequence[Stage], port: int) -> Guard:
    """The application of some stages.

    Args:
        stages: The stages.
        port: The port that the server has.
    """
    routes: list[BaseRoute] = [Route("/", _listing(stages)), Mount("/shared", StaticFiles(directory=SHARED))]
    for stage in stages:
        routes.append(WebSocketRoute(f"/{stage.name}/live", _Live(stage)))
        routes.append(Mount(f"/{stage.name}", StaticFiles(directory=stage.page, html=True)))
    return Guard(Starlette(routes=routes), port)


def _listing(stages: Sequence[Stage]) -> Any:
    links = "".join(f'<li><a href="/{s.name}/">{html.escape(s.title)}</a></li>' for s in stages)
    page = f"<!doctype html><html lang=en><meta charset=utf-8><title>mmspec</title><h1>mmspec</h1><ul>{links}</ul>"
    return lambda request: HTMLResponse(page)


class _Live:
    """The sockets of a stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._open = stage, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        if self._open >= MOST:
            await socket.send_json({"type": "error", "says": f"{MOST} pages are open, which is the most; close one"})
            await socket.close()
            return
        self._open += 1
        try:
            await self._serve(socket)
        finally:
            self._open -= 1

    async def _serve(self, socket: WebSocket) -> None:
        outbox = Outbox(asyncio.get_running_loop())
        session = await asyncio.to_thread(self._stage.open, outbox.put)
        delivering = asyncio.create_task(_deliver(outbox, socket))
        try:
            while True:
                text = await socket.receive_text()
                try:
                    message = json.loads(text)
                    if not isinstance(message, dict):
                        raise ValueError(f"a message is an object, not {text!r:.80}")
                    await asyncio.to_thread(session.receive, message)
                except ValueError as error:
                    outbox.put({"type": "error", "says": str(error)})
        except (WebSocketDisconnect, KeyError):  # a message of bytes has no text
            pass
        finally:
            delivering.cancel()
            await asyncio.to_thread(session.close)
            if socket.client_state is WebSocketState.CONNECTED:
                with suppress(RuntimeError):
                    await socket.close()


async def _deliver(outbox: Outbox, socket: WebSocket) -> None:
    with suppress(WebSocketDisconnect, RuntimeError):  # the page is gone
        while True:
            await socket.send_json(await outbox.next())
