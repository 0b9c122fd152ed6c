"""Pictures: `/v1/images/generations`, as OpenAI's clients ask for them; transformers has no such endpoint.

Requests of a pipeline share passes where those of its method can; else they wait for each other.
"""

import asyncio
import inspect
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from mmspec.api.pipeline import Pipeline
from mmspec.registry.options import build
from mmspec.serving.fields import Seed, Share, Temperature
from mmspec.serving.limits import Limits
from mmspec.serving.live.stage import png
from mmspec.serving.models import Drawing, Models
from mmspec.serving.request import CURRENT, Request

HINTS = frozenset(("user", "quality", "style", "moderation"))
"""Fields of OpenAI's that are hints or book-keeping: accepted, without effect."""


@dataclass(frozen=True)
class Picture:
    """Fields of a request; those from `seed` on are our pipelines' own."""

    prompt: str | None = None
    model: str | None = None
    n: int = 1
    size: Annotated[str, Field(pattern=r"^(auto|[1-9]\d{0,4}x[1-9]\d{0,4})$")] = "auto"
    response_format: Literal["b64_json"] = "b64_json"
    output_format: Literal["png"] = "png"
    seed: Seed | None = None
    negative_prompt: str | None = None
    class_labels: int | None = None
    guidance_scale: Annotated[float, Field(allow_inf_nan=False)] | None = None
    temperature: Temperature | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    top_p: Share | None = None

    def call(self, pipe: Pipeline) -> dict[str, Any]:
        """The arguments of the pipeline's call."""
        said = {"num_images_per_prompt": self.n}
        if self.size != "auto":
            width, height = map(int, self.size.split("x"))
            said |= {"width": width, "height": height}
        own = ("prompt", "negative_prompt", "class_labels", "guidance_scale", "temperature", "top_k", "top_p")
        said |= {name: vars(self)[name] for name in own if vars(self)[name] is not None}
        takes = inspect.signature(type(pipe).__call__).parameters
        if more := [name for name in said if name not in takes]:
            raise ValueError(f"{type(pipe).__name__} has no {' or '.join(more)}")
        return said


class Painter:
    def __init__(self, models: Models, limits: Limits) -> None:
        self._models = models
        self._limits = limits
        self._threads = {name: drawing.workers() for name, drawing in models.drawings().items()}

    async def answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The pictures of a request, as PNG in base 64."""
        said = {name: value for name, value in body.items() if value is not None and name not in HINTS}
        asked = build(Picture, said, "the request")
        self._limits.refuse_pictures(asked.n)
        request = CURRENT.get()
        request.model = name = self._models.named(asked.model, Drawing)
        pipe = self._models.drawings()[name].pipe
        request.seeded(asked.seed)
        call = partial(_draw, pipe, asked.call(pipe), request)
        drawn = await asyncio.get_running_loop().run_in_executor(self._threads[name], call)
        return {"created": int(time.time()), "data": [{"b64_json": png(image)} for image in drawn]}


def _draw(pipe: Any, call: dict[str, Any], request: Request) -> list[Any]:
    """Draw on the pipeline's thread, for as long as the client is there."""

    def after_round(*_: Any) -> dict[str, Any]:
        request.go_on()
        return {}

    request.go_on()
    how = {"callback_on_step_end": after_round, "callback_on_step_end_tensor_inputs": ()}
    return pipe(**call, **how, seed=request.seed).images
