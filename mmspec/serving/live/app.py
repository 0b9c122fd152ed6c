"""The server of pages: who may talk to it, the list of pages, their files, and a socket for every page that is open."""

import asyncio
import html
import json
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from mmspec.serving import run
from mmspec.serving.live.stage import Stage

REFUSED = b"this server talks to its own pages alone"
POLICY = b"default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'"
HEADERS = [
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
"""The headers of every answer: nothing is loaded from elsewhere, and no other page shows this one."""
VIOLATION = 1008  # the code with which sockets are closed that break a rule


class Guard:
    """Lets in the server's own pages, under its own address, and no other page that a browser has open.

    A foreign page may send requests to any port of the machine, and open sockets to it. The browser says from which
    page they come (Origin) and under which name they were sent (Host); the second one shows names that were made to
    point here.
    """

    def __init__(self, app: Callable[[Any, Any, Any], Awaitable[None]], port: int) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost", "[::1]")}
        self._origins = {b"http://" + host for host in self._hosts}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers, page = dict(scope["headers"]), scope["type"] == "http"
        origin = headers.get(b"origin")
        foreign = origin not in self._origins if origin is not None else not page
        if headers.get(b"host") in self._hosts and not foreign:
            await self._app(scope, receive, _with_headers(send) if page else send)
        elif page:
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": REFUSED})
        else:
            await receive()
            await send({"type": "websocket.close", "code": VIOLATION, "reason": REFUSED.decode()})


def _with_headers(send: Any) -> Any:
    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
        await send(message)

    return sent


LONGEST = 8192  # most bytes of a page's message
CONNECTIONS = 256
WAITING = 256  # messages that wait for a page; of more, the oldest are dropped


class Outbox:
    """Messages on their way to one page: threads add them without waiting, and a page that does not read loses them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._waiting = loop, deque[Mapping[str, Any]](maxlen=WAITING)
        self._there = asyncio.Event()

    def put(self, message: Mapping[str, Any]) -> None:
        self._waiting.append(message)
        with suppress(RuntimeError):  # the loop is closed: the server has stopped
            self._loop.call_soon_threadsafe(self._there.set)

    async def next(self) -> Mapping[str, Any]:
        """The oldest message, as soon as there is one."""
        while not self._waiting:
            self._there.clear()
            if not self._waiting:
                await self._there.wait()
        return self._waiting.popleft()


MOST = 32  # pages that are open at a time; each has threads and a part of a model's memory

SHARED = Path(__file__).parent / "shared"  # the script and the style that all pages share


def application(stages: Sequence[Stage], port: int) -> Guard:
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


def server(stages: Sequence[Stage], listening: socket.socket, ready: Callable[[str], None]) -> uvicorn.Server:
    """A server of pages, as `mmspec.serving.run.server` makes it, on a loopback address."""
    how: dict[str, Any] = {"lifespan": "off", "ws_max_size": LONGEST, "timeout_graceful_shutdown": 2}
    return run.server(application(stages, listening.getsockname()[1]), listening, CONNECTIONS, ready, **how)
