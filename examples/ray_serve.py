"""Pictures in batches and texts as streams, by Ray Serve: `serve run examples.ray_serve:app`.

Requests that arrive together are drawn in one batch. A picture's seed is made of the request's id and caption: it is
the same, whichever requests it shares the batch with. Needs `pip install 'mmspec[ray]' 'ray[serve]'`.

    curl localhost:8000/draw  -d '{"id": "1", "prompt": "princess skin 4"}' > princess.png
    curl localhost:8000/write -d '{"prompt": "def main(", "seed": 3}'
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from threading import Thread
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from transformers import TextIteratorStreamer

import mmspec
from mmspec.api.row_values import objects

Drawn = tuple[bytes | None, str | None]
"""A PNG, or why there is none."""


@serve.deployment(max_ongoing_requests=64)
class Pictures:
    """Draws captions. `Pictures.options(ray_actor_options={"num_gpus": 1})` gives every replica a GPU."""

    def __init__(self, model: str = "mmspec/emoji", **how: Any) -> None:
        self.rows = mmspec.Rows(model, **how)
        self.rows.pipeline()  # loaded now, and not when the first request waits

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.05)
    async def draw(self, requests: list[tuple[str, str]]) -> list[Drawn]:
        """Draw pairs of id and caption; equal pairs once."""
        asked = list(dict.fromkeys(requests))
        ids, prompts = [json.dumps(pair) for pair in asked], [prompt for _, prompt in asked]
        made = await asyncio.to_thread(self.rows, {"id": objects(ids), "prompt": objects(prompts)})
        drawn = dict(zip(asked, zip(made["image"], made["error"], strict=True), strict=True))
        return [drawn[request] for request in requests]


@serve.deployment(max_ongoing_requests=1)  # one text at a time: a streamer takes a batch of one
class Texts:
    """Continues prompts, and gives the pieces of a text as rounds emit them."""

    def __init__(self, model: str = "mmspec/text-14m", method: str = "suffix", **how: Any) -> None:
        self.pipe = mmspec.Pipeline.from_pretrained(model, method=method, **how)

    def write(self, prompt: str, seed: int = 0, max_new_tokens: int = 200) -> Iterator[str]:
        pieces = TextIteratorStreamer(self.pipe.tokenizer, skip_prompt=True, skip_special_tokens=True)
        mistakes: list[Exception] = []

        def decode() -> None:
            try:
                self.pipe(prompt, max_new_tokens, seed=[seed], streamer=pieces)
            except Exception as error:  # raised below, where the caller hears of it
                mistakes.append(error)
                pieces.end()

        worker = Thread(target=decode)
        worker.start()
        yield from pieces
        worker.join()
        if mistakes:
            raise mistakes[0]


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Studio:
    """The HTTP side: `/draw` and `/write`, each with a JSON object.

    It waits for the others and takes no core, so that the whole fits a machine with two.
    """

    def __init__(self, pictures: Any, texts: Any) -> None:
        self.pictures, self.texts = pictures, texts

    async def __call__(self, request: Request) -> Response:
        asked = await request.json()
        if request.url.path == "/draw":
            picture, error = await self.draw(str(asked["id"]), asked["prompt"])
            return PlainTextResponse(error, 400) if picture is None else Response(picture, media_type="image/png")
        return StreamingResponse(self.write(**asked), media_type="text/plain")

    async def draw(self, id: str, prompt: str) -> Drawn:
        return await self.pictures.draw.remote((id, prompt))

    async def write(self, **asked: Any) -> AsyncIterator[str]:
        async for piece in self.texts.options(stream=True).write.remote(**asked):
            yield piece


app = Studio.bind(Pictures.bind(guidance_scale=2.0), Texts.bind())
