"""The server of pages: who may talk to it, what it takes, and that no page stands in another one's way."""

import http.client
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from mmspec.serving.live import app
from mmspec.serving.live.app import WAITING
from mmspec.serving.live.stage import Stage
from tests.support.live import eventually, page, served

OPEN: "list[Echo]" = []
"""The sessions of the pages that are open."""


class Echo:
    """A session that answers what it is told, and floods the page on demand."""

    def __init__(self, send: Any) -> None:
        self.send = send
        OPEN.append(self)

    def receive(self, message: Any) -> None:
        if message["type"] == "wrong":
            raise ValueError("there is no such thing")
        for number in range(message.get("times", 1)):
            self.send({"type": "echo", "said": message.get("said"), "number": number})

    def close(self) -> None:
        OPEN.remove(self)


@pytest.fixture
def place(tmp_path: Path) -> Any:
    (tmp_path / "index.html").write_text("<!doctype html><title>a page</title>")
    OPEN.clear()
    with served([Stage("echo", "Say <it> again", tmp_path, Echo)]) as address:
        yield address
    assert not OPEN


def get(place: str, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(place)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def test_pages_are_listed_and_load_nothing_from_elsewhere(place: str) -> None:
    listing, own = get(place, "/"), get(place, "/echo/")
    assert b"Say &lt;it&gt; again" in listing.read() and b"a page" in own.read()
    assert "default-src 'self'" in own.headers["content-security-policy"] and "server" not in own.headers
    assert get(place, "/echo/../../secret").status == 404


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}])
def test_a_foreign_page_gets_nothing(place: str, headers: dict[str, str]) -> None:
    assert get(place, "/echo/", **headers).status == 403


@pytest.mark.parametrize("origin", [None, "http://evil.example", "null"])
def test_a_foreign_page_cannot_open_a_socket(place: str, origin: str | None) -> None:
    with pytest.raises(InvalidStatus), page(place, "echo", origin):
        pass
    assert not OPEN


def test_what_a_page_says_is_not_trusted(place: str) -> None:
    with page(place, "echo") as one:
        for wrong, says in (("{", "Expecting property name"), ("[1]", "a message is an object, not '[1]'")):
            one.socket.send(wrong)
            assert says in one.hear("error")["says"]
        one.tell(type="wrong")
        assert one.hear("error")["says"] == "there is no such thing"
        one.tell(type="echo", said="still here")
        assert one.hear()["said"] == "still here"


@pytest.mark.parametrize("message", [b"bytes", "x" * 10_000])
def test_a_message_that_is_none_closes_its_page_alone(place: str, message: Any) -> None:
    with page(place, "echo") as other, page(place, "echo") as one:
        one.socket.send(message)
        with pytest.raises(ConnectionClosed):
            one.hear()
        other.tell(type="echo", said="as before")
        assert other.hear()["said"] == "as before"


def test_a_page_that_does_not_read_stands_in_nobodys_way(place: str) -> None:
    with page(place, "echo") as slow, page(place, "echo") as other:
        slow.tell(type="echo", times=200_000)
        other.tell(type="echo", said="at once")
        assert other.hear()["said"] == "at once"
        last = slow.hear()
        while last["number"] < 199_999:
            last = slow.hear()
        assert WAITING < 200_000


def test_a_vanished_page_ends_its_session(place: str) -> None:
    with page(place, "echo") as one:
        one.socket.socket.close()
        assert eventually(lambda: not OPEN)


def test_too_many_pages(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MOST", 1)
    with page(place, "echo") as one, page(place, "echo") as other:
        assert other.hear()["says"] == "1 pages are open, which is the most; close one"
        one.tell(type="echo", said="mine")
        assert one.hear()["said"] == "mine"
