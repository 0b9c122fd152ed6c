"""The pages in a real browser, where one is installed: keys make frames in both pictures, texts are shown by round."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmspec_image import commands as draw
from mmspec_text.view import command as view
from mmspec_video import commands as play
from tests.support.chromium import PROGRAM, Browser, browser
from tests.support.live import served

pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="no browser is installed")]
KEYS = ["ArrowLeft", "ArrowUp", "ArrowUp", "ArrowRight"]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    pages = [play.stage(), view.stage("mmspec/text-14m", "mmspec/text-1m"), draw.stage("mmspec/emoji")]
    with served(pages) as address:
        yield address


def shown(tab: Any) -> list[int]:
    """Frames in both pictures."""
    return [
        int(text.split()[0]) for text in tab.value("[...document.querySelectorAll('.frames')].map(e => e.innerText)")
    ]


def walk(tab: Any, keys: int, first: int = 0) -> None:
    for number in range(first, first + keys):
        tab.key(KEYS[number % len(KEYS)])
        tab.until(f"[...document.querySelectorAll('.frames')].every(e => parseInt(e.innerText) >= {number + 1})")
        time.sleep(0.002)


def test_keys_walk_in_both_pictures(opened: Browser, place: str, tmp_path: Path) -> None:
    """200 keys, 200 frames, all of them plain decoding's; another player meanwhile; and a page that comes back."""
    began = time.monotonic()
    with opened.tab(f"http://{place}/play/") as tab, opened.tab(f"http://{place}/play/") as other:
        tab.until("document.querySelectorAll('section').length === 2")
        print(f"both pages were there after {time.monotonic() - began:.2f} s")
        for one in (tab, other):
            one.value("document.getElementById('think').value = 0")
            one.until("document.querySelectorAll('section').length === 2")
        for first in range(0, 200, 20):
            walk(tab, 20, first)
            if first < 40:
                walk(other, 20, first)
        assert shown(tab) == [200, 200] and shown(other) == [40, 40]
        assert tab.value("document.getElementById('equal').innerText").startswith("200 of 200 frames are equal")
        assert not tab.value("document.getElementById('says').innerText")
        tab.screenshot(tmp_path / "play.png")
        tab.call("Page.reload")
        tab.until(
            "document.querySelectorAll('section').length === 2 && document.querySelector('.frames').innerText === '0'"
        )
        walk(tab, 2)
        assert shown(tab) == [2, 2]


def test_a_world_of_codes_is_walked_by_itself(opened: Browser, place: str) -> None:
    """The whole recorded tour, in both pictures; no frame of codes is there before its key."""
    with opened.tab(f"http://{place}/play/") as tab:
        tab.until("document.querySelectorAll('section').length === 2")
        tab.value(
            "(at => { at('think').value = 0; at('world').value = 'four-courts-tokens'; at('world').onchange() })"
            "(name => document.getElementById(name))"
        )
        tab.until("document.querySelectorAll('section h2')[1].innerText === 'frame-gs-sjd'")
        tab.value("document.getElementById('auto').click()")
        tab.until("[...document.querySelectorAll('.frames')].every(e => parseInt(e.innerText) >= 48)")
        assert tab.value("document.getElementById('equal').innerText").startswith("48 of 48 frames are equal")
        assert tab.value("[...document.querySelectorAll('.ahead')].every(e => e.hidden)")


def test_a_picture_is_drawn_twice(opened: Browser, place: str, tmp_path: Path) -> None:
    with opened.tab(f"http://{place}/image/") as tab:
        tab.until("document.querySelectorAll('.count')[1]?.innerText.includes('of 256 codes')")
        tab.screenshot(tmp_path / "drawing.png")
        tab.until("document.getElementById('equal').innerText === 'the pictures are equal, pixel by pixel'")


def test_a_text_is_shown_by_round_and_unfolds(opened: Browser, place: str, tmp_path: Path) -> None:
    with opened.tab(f"http://{place}/text/") as tab:
        tab.until("document.getElementById('report').innerText.includes('draft-tree (invariant)')")
        rounds = tab.value("document.querySelectorAll('.round').length")
        assert rounds - 1 == int(tab.value("document.getElementById('report').innerText.match(/in (\\d+) passes/)[1]"))
        most = "[...document.querySelectorAll('.round')].sort((a, b) => b.children.length - a.children.length)[0]"
        tab.value(f"{most}.click()")
        assert "drafted tokens accepted" in tab.value("document.querySelector('#round h2').innerText")
        assert tab.value("document.querySelectorAll('#round tr.accepted').length") > 1
        tab.screenshot(tmp_path / "view.png")
