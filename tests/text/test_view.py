"""`mmspec view text`: the page is told every round of a text that is plain decoding's; what it says is checked."""

import threading
from pathlib import Path
from typing import Any

import pytest

from mmspec.core.trace import Trace
from mmspec.hosts.loading import load_model
from mmspec.kits.text.pipeline import TextPipeline
from mmspec.serving.live.stage import Stage
from mmspec_text.view import command
from mmspec_text.view.session import METHODS, ViewSession
from tests.support.live import eventually, page, served

PROMPT = "def area(radius):\n    return"


@pytest.fixture(scope="module")
def pipe() -> TextPipeline:
    return TextPipeline.from_pretrained("mmspec/text-1m", method="plain")


@pytest.fixture(scope="module")
def place(pipe: TextPipeline) -> Any:
    folder, small = Path(command.__file__).parent / "page", load_model("mmspec/text-1m")
    with served([Stage("text", "A text", folder, lambda send: ViewSession(pipe, small, send))]) as address:
        yield address


def written(one: Any, **how: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rounds of a text, and the last message."""
    one.tell(**{"type": "write", "prompt": PROMPT, "tokens": 24, "temperature": 0.0, "seed": 3, **how})
    assert one.hear("begun")["method"] == how["method"]
    rounds = []
    while (message := one.hear())["type"] == "round":
        rounds.append(message)
    return rounds, message


@pytest.mark.thinned(1)
@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("method", METHODS)
def test_the_page_sees_every_token_of_the_plain_text(
    place: str, pipe: TextPipeline, method: str, temperature: float
) -> None:
    with page(place, "text") as one:
        assert one.hear("methods")["methods"] == list(METHODS)
        rounds, done = written(one, method=method, temperature=temperature)
    ids = pipe(PROMPT, 24, temperature=float(temperature), seed=3).ids[0]
    assert [token["text"] for round in rounds for token in round["tokens"]] == [pipe.tokenizer.decode([i]) for i in ids]
    assert done["report"]["emitted"] == 24 and done["report"]["rounds"] == len(rounds) - 1
    assert not rounds[0]["nodes"] and all(n["parent"] < i for r in rounds for i, n in enumerate(r["nodes"]))
    if method == "draft-tree":  # the draft model is the target
        assert any(sum(node["accepted"] for node in round["nodes"]) > 2 for round in rounds)


def test_another_text_stops_the_first_one(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with page(place, "text") as one:
        one.tell(type="write", prompt=PROMPT, tokens=400, temperature=1.0, seed=3, method="plain")
        one.hear("round")
        one.tell(type="write", prompt="x", tokens=3, temperature=0, seed=3, method="suffix")
        while one.hear("begun")["prompt"] != "x":
            pass
        assert one.hear("done")["report"]["emitted"] == 3
    assert eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "view"])


def test_what_goes_wrong_is_shown(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Trace, state: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(Trace, "step", broken)
    with page(place, "text") as one:
        one.tell(type="write", prompt=PROMPT, tokens=4, temperature=0, seed=3, method="plain")
        assert one.hear("error")["says"] == "RuntimeError: no memory"


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"type": "read"}, "no message is called 'read'"),
        ({"method": "gone"}, "no method is called 'gone'"),
        ({"method": ["plain"]}, "no method is called"),
        ({"prompt": ""}, "prompt is a text of 1 to 4000 characters"),
        ({"prompt": "x" * 4001}, "prompt is a text of 1 to 4000 characters"),
        ({"tokens": 401}, "tokens is a whole number from 1 to 400, not 401"),
        ({"seed": 1.5}, "seed is a whole number from 0 to"),
        ({"temperature": -1}, "temperature is a number from 0 to 10, not -1"),
        ({"temperature": "hot"}, "temperature is a number from 0 to 10, not 'hot'"),
    ],
)
def test_what_a_page_says_is_checked(place: str, message: dict[str, Any], says: str) -> None:
    with page(place, "text") as one:
        right = {"type": "write", "prompt": PROMPT, "tokens": 4, "temperature": 0, "seed": 3, "method": "plain"}
        one.tell(**{**right, **message})
        assert says in one.hear("error")["says"]
