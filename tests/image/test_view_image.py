"""`mmspec view image`: the page sees a picture grow twice, plainly and by another method; what it says is checked."""

import base64
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import mmspec
from mmspec.serving.live.stage import Stage
from mmspec_image import commands as command
from mmspec_image.pipeline import TextToImagePipeline
from mmspec_image.view.session import DrawSession
from tests.support.live import eventually, page, served


@pytest.fixture(scope="module")
def place(tiny: TextToImagePipeline, saved: Path) -> Iterator[str]:
    """Two stages: `image` draws emoji of 256 codes, and `tiny` pictures of 16."""
    pipe = mmspec.Pipeline.from_pretrained("mmspec/emoji", method="plain")
    drawing = {"image": (pipe, "mmspec/emoji"), "tiny": (tiny, str(saved))}

    def stage(name: str) -> Stage:
        folder = Path(command.__file__).parent / "view" / "page"
        return Stage(name, "A picture", folder, lambda send: DrawSession(*drawing[name], send))

    with served([stage(name) for name in drawing]) as address:
        yield address


def drawn(one: Any, **how: Any) -> list[list[dict[str, Any]]]:
    """The messages of both pictures, to their end."""
    one.tell(**{"type": "draw", "caption": "red heart", "seed": 1, "guidance": 2.0, "method": "gs-sjd", **how})
    panes: list[list[dict[str, Any]]] = [[] for _ in one.hear("begun")["panes"]]
    while not all(pane and pane[-1]["type"] == "done" for pane in panes):
        message = one.hear("round", "done")
        panes[message["pane"]].append(message)
    return panes


def test_both_pictures_grow_and_are_plains(place: str, tiny: TextToImagePipeline) -> None:
    with page(place, "tiny") as one:
        assert "gs-sjd" in one.hear("methods")["methods"]
        plain, fast = drawn(one)
    for pane in (plain, fast):
        counts = [message["drawn"] for message in pane[:-1]]
        assert counts == sorted(counts) and counts[-1] == pane[0]["of"] == 16
    assert len(fast) < len(plain) and "gs-sjd (invariant)" in fast[-1]["says"]
    assert fast[-1]["png"] == plain[-1]["png"]
    plainly = TextToImagePipeline(**tiny.components).use("plain")
    expected = plainly("red heart", seed=1, guidance_scale=2.0)
    assert Image.open(io.BytesIO(base64.b64decode(plain[-1]["png"]))).tobytes() == expected.images[0].tobytes()


def test_a_page_that_leaves_stops_its_pictures(place: str) -> None:
    with page(place, "image") as one:
        one.tell(type="draw", caption="red heart", seed=1, guidance=2.0, method="sjd")
        one.hear("round")
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("drawing")])


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"type": "write"}, "no message is called 'write'"),
        ({"method": "gs"}, "no method is called 'gs'"),
        ({"caption": ""}, "caption is a text of 1 to 200 characters"),
        ({"seed": -1}, "seed is a whole number from 0 to"),
        ({"guidance": 0.5}, "guidance is a number from 1 to 20, not 0.5"),
    ],
)
def test_what_a_page_says_is_checked(place: str, message: dict[str, Any], says: str) -> None:
    with page(place, "image") as one:
        right = {"type": "draw", "caption": "red heart", "seed": 1, "guidance": 2.0, "method": "gs-sjd"}
        one.tell(**{**right, **message})
        assert says in one.hear("error")["says"]
