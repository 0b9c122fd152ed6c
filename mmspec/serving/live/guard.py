"""Who may talk to the server: its own pages, under its own address, and no other page that a browser has open.

A foreign page may send requests to any port of the machine, and open sockets to it. The browser says from which page
they come (Origin) and under which name they were sent (Host); the second one shows names that were made to point here.
"""

from collections.abc import Awaitable, Callable
from typing import Any

REFUSED = b"this server talks to its own pages alone"
POLICY = b"default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'"
HEADERS = [
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
"""What every answer says: nothing is loaded from elsewhere, and no other page shows this one."""
VIOLATION = 1008
"""The code with which sockets are closed that break a rule."""


class Guard:
    """The application behind these checks.

    Args:
        app: The application.
        port: The port that the server has.
    """

    def __init__(self, app: Callable[[Any, Any, Any], Awaitable[None]], port: int) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost", "[::1]")}
        self._origins = {b"http://" + host for host in self._hosts}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a connection, as ASGI defines it."""
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
