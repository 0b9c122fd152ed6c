"""`examples/ray_serve.py`, in one process: batches that change no picture, streams that make up the text."""

import asyncio
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mmspec
from mmspec.api.row_values import cells, seed_of

serve = pytest.importorskip("ray.serve")

CAPTIONS = ["red heart", "fish", "star"]


def example() -> Any:
    """The example's module, made anew: `serve.batch` keeps its queue in the class."""
    path = Path(__file__).parents[2] / "examples" / "ray_serve.py"
    spec = importlib.util.spec_from_file_location("ray_serve_example", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process there is no replica, which `serve.batch` asks for its limit to warn if batches cannot fill."""
    limit = SimpleNamespace(_deployment_config=SimpleNamespace(max_ongoing_requests=64))
    monkeypatch.setattr(serve, "get_replica_context", lambda: limit)


@pytest.fixture(scope="module")
def studio() -> Any:
    module = example()
    texts = module.Texts.bind("mmspec/text-1m", method="prompt-lookup")
    app = module.Studio.bind(module.Pictures.bind(guidance_scale=2.0), texts)
    return serve.run(app, _local_testing_mode=True)


def test_two_cores_are_enough() -> None:
    """Ray starts no replica that asks for more cores than are left, and requests then wait without an error."""
    module = example()
    deployments = module.Pictures, module.Texts, module.Studio
    assert sum((each.ray_actor_options or {}).get("num_cpus", 1) for each in deployments) <= 2


def test_requests_that_arrive_together_are_drawn_together() -> None:
    pictures = example().Pictures.func_or_class(guidance_scale=2.0)
    sizes, rows = [], pictures.rows
    pictures.rows = lambda batch: sizes.append(len(batch["id"])) or rows(batch)
    asked = [*((str(number), caption) for number, caption in enumerate(CAPTIONS)), ("0", CAPTIONS[0]), ("9", "")]

    async def together() -> list[Any]:
        return await asyncio.gather(*(pictures.draw(pair) for pair in asked))

    drawn = asyncio.run(together())
    assert sizes == [4], "five requests at once, two of them equal, are one batch"
    assert drawn[0] == drawn[3] and drawn[4][0] is None and "ValueError" in drawn[4][1]
    plain = mmspec.Pipeline.from_pretrained("mmspec/emoji", method="plain")
    seed = seed_of(0, json.dumps(asked[1]))
    assert [drawn[1][0]] == cells(plain(CAPTIONS[1], guidance_scale=2.0, seed=[seed]))


def test_a_picture_by_its_handle(studio: Any) -> None:
    png, error = studio.draw.remote("1", "fish").result()
    assert error is None and png.startswith(b"\x89PNG")


def test_a_stream_makes_up_the_text(studio: Any) -> None:
    pieces = list(studio.options(stream=True).write.remote(prompt="The sea", seed=3, max_new_tokens=40))
    plain = mmspec.Pipeline.from_pretrained("mmspec/text-1m", method="plain")
    assert len(pieces) > 1 and "".join(pieces) == plain("The sea", 40, seed=[3]).texts[0]


def test_a_mistake_in_a_stream_reaches_the_caller(studio: Any) -> None:
    with pytest.raises(ValueError, match="is empty"):
        list(studio.options(stream=True).write.remote(prompt=""))
