"""A real browser, without a window, by its own debugging protocol: pages, keys, scripts, pictures of the screen."""

import base64
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 60.0
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1000,760"),
    *("--remote-debugging-port=0", "--remote-allow-origins=*"),
)
CODES = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


@contextmanager
def browser(folder: Path) -> Iterator["Browser"]:
    """A browser with an empty profile in `folder`, while the block runs."""
    assert PROGRAM is not None
    command = [PROGRAM, *QUIET, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = _written(folder / "DevToolsActivePort").split()[0]
        yield Browser(port)
    finally:
        process.terminate()
        process.wait(PATIENCE)


class Browser:
    """The browser.

    Args:
        port: Of its debugging protocol.
    """

    def __init__(self, port: str) -> None:
        self._place = f"http://127.0.0.1:{port}"

    @contextmanager
    def tab(self, url: str) -> Iterator["Tab"]:
        """A page in a tab of its own."""
        request = urllib.request.Request(f"{self._place}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            target = json.load(answer)
        with connect(target["webSocketDebuggerUrl"], max_size=None, open_timeout=PATIENCE) as socket:
            tab = Tab(socket)
            tab.call("Page.enable")
            tab.call("Page.navigate", url=url)
            tab.until("document.readyState === 'complete'")
            yield tab
            tab.call("Page.close")


class Tab:
    """A tab.

    Args:
        socket: Its debugging socket.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._numbers = socket, itertools.count(1)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=PATIENCE))
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    def value(self, script: str) -> Any:
        """The value of an expression of the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression of the page is true."""
        end = time.monotonic() + PATIENCE
        while not self.value(script):
            assert time.monotonic() < end, f"{script} did not become true"
            time.sleep(0.01)

    def key(self, name: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=CODES[name])

    def screenshot(self, file: Path) -> None:
        """Save what the tab shows."""
        self.call("Page.bringToFront")  # a tab behind another one draws nothing
        shown = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shown["data"]))


def _written(file: Path) -> str:
    end = time.monotonic() + PATIENCE
    while not file.is_file() or not file.read_text():
        assert time.monotonic() < end, "the browser did not start"
        time.sleep(0.05)
    return file.read_text()
