"""The application: transformers' own server, without the routes that do not speculate, with pictures and our errors.

A call is an `Enabled` of its own over the model's one decoder, so that it has its own seed and leaves none behind. It
runs in a thread of the model's, and shares passes with the calls in the others (`mmspec.core.sharing`).
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from jinja2 import TemplateError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from torch import int64, ones_like, tensor
from transformers.cli.serving.server import build_server
from transformers.cli.serving.utils import GenerateManager, GenerationState

from mmspec.api.enable import Enabled
from mmspec.serving.door import Door
from mmspec.serving.handlers import SpeculatingChat, SpeculatingCompletion
from mmspec.serving.limits import Limits
from mmspec.serving.models import Language, Models
from mmspec.serving.pictures import Painter
from mmspec.serving.request import (
    CURRENT,
    FULL,
    MISTAKE,
    UNKNOWN,
    ClientGone,
    Request,
    body_of,
    message_of,
    status_of,
)
from mmspec.serving.streamers import streamer as streamer_of

DEFAULT_NEW = 1024  # new tokens of a request that names no number, if there is room: transformers' default


class Call:
    """An object that transformers' manager takes for a model: `generate`, once, with the request's seed."""

    def __init__(self, model: Any, served: Language, request: Request) -> None:
        self._enabled = Enabled(model, served.decoder, request.seed, "philox", served.learner)
        self._request = request

    def generate(self, streamer: Any = None, **arguments: Any) -> Any:
        """The model's `generate`, speculatively; refused calls and failures end what waits for first tokens, too."""
        request, watched = self._request, streamer_of(streamer, self._request)
        try:
            request.go_on()
            made = self._enabled.generate(**arguments, logits_processor=request.processors, streamer=watched)
            request.report = self._enabled.report
            watched.close()
            return made
        except Exception as error:
            self._request.begins(error)
            if streamer is None or isinstance(error, ClientGone):
                raise
            raise RuntimeError(_escaped(error)) from error


class Manager(GenerateManager):
    """transformers' queue of a model, with bounded calls that speculate, and share passes in a thread each."""

    def __init__(self, served: Language, limits: Limits) -> None:
        self._served, self._thread = served, Workers(served.workers())
        self._limits = limits

    def generate_streaming(
        self, model: Any, processor: Any, inputs: Any, gen_config: Any, *more: Any, **how: Any
    ) -> Any:
        """As in transformers; the request's `begun` says when it is clear that the call is not refused."""
        call = self._call(model, inputs, gen_config)
        CURRENT.get().stream()
        return super().generate_streaming(call, processor, inputs, gen_config, *more, **how)

    async def generate_non_streaming(
        self, model: Any, processor: Any, inputs: Any, gen_config: Any, *more: Any, **how: Any
    ) -> Any:
        call = self._call(model, inputs, gen_config)
        return await super().generate_non_streaming(call, processor, inputs, gen_config, *more, **how)

    def _call(self, model: Any, inputs: Any, gen_config: Any) -> Call:
        request, config = CURRENT.get(), model.config.get_text_config(decoder=True).to_dict()
        if request.prompt is not None:
            _take_prompt(request.prompt, inputs, model, config["vocab_size"])
        request.prompt_tokens, wanted = inputs["input_ids"].shape[-1], gen_config.max_new_tokens
        context = config.get("max_position_embeddings")
        gen_config.max_new_tokens = self._limits.new_tokens(request.prompt_tokens, wanted, DEFAULT_NEW, context)
        return Call(model, self._served, request)


class Workers:
    """The threads of a model, with the methods of transformers' one thread."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads

    def submit(self, run: Callable[..., Any], *args: Any, **how: Any) -> Future[Any]:
        return self._threads.submit(run, *args, **how)

    def async_submit(self, run: Callable[..., Any], *args: Any, **how: Any) -> "asyncio.Future[Any]":
        return asyncio.wrap_future(self.submit(run, *args, **how))


class Managers(GenerationState):
    """The managers of all models that are served."""

    def __init__(self, models: Models, limits: Limits) -> None:
        super().__init__()
        self._managers = {name: Manager(served, limits) for name, served in models.languages().items()}

    def get_manager(self, model_id: str, use_cb: bool = False) -> Manager:
        return self._managers[model_id]


def _take_prompt(prompt: list[int], inputs: Any, model: Any, vocab: int) -> None:
    """Put the tokens that a client gives in the place of those of a text; refuses what is no token of the model's."""
    if wrong := [token for token in prompt if not 0 <= token < vocab]:
        raise ValueError(f"prompt: {wrong[0]} is no token of this model, which are 0 to {vocab - 1}")
    ids = tensor([prompt], dtype=int64, device=model.device)
    inputs.clear()
    inputs.update({"input_ids": ids, "attention_mask": ones_like(ids)})


def _escaped(error: Exception) -> str:
    """The words of an error, fit for between the quotation marks into which transformers puts it in a stream."""
    return json.dumps(message_of(error, status_of(error)))[1:-1]


PICTURES = "/v1/images/generations"
TEXT = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health")
WATCH = ("/ready", "/metrics")
"""The routes of transformers' server that are kept. Others load models on a request's word, or do not speculate."""


def application(models: Models, limits: Limits, keys: Sequence[str] = ()) -> Door:
    managers = Managers(models, limits)
    app = build_server(
        models,
        SpeculatingChat(models, managers, limits),
        completion_handler=SpeculatingCompletion(models, managers, limits),
        response_handler=None,
        transcription_handler=None,
        systemone_handler=None,
        generation_state=managers,
    )
    app.router.routes[:] = [route for route in app.router.routes if route.path in TEXT]
    painter = Painter(models, limits)

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        return models.listed(name)

    @app.post(PICTURES)
    async def pictures(body: dict[str, Any]) -> dict[str, Any]:
        return await painter.answer(body)

    door = Door(app, limits, keys)

    @app.get("/ready")
    async def ready() -> Response:
        return _response(FULL, "the server is about to stop") if door.stopping else JSONResponse({"status": "ready"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(door.meters.exposition(), media_type=CONTENT_TYPE_LATEST)

    for kind in (ValueError, TypeError, TemplateError, ClientGone, Exception):
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(404, _answer_path)
    app.add_exception_handler(RequestValidationError, _answer_body)
    return door


async def _answer(request: Any, error: Exception) -> Response:
    status = status_of(error)
    return _response(status, message_of(error, status))


async def _answer_http(request: Any, error: HTTPException) -> Response:
    return _response(error.status_code, str(error.detail))


async def _answer_path(request: Any, error: Exception) -> Response:
    there = ", ".join((*TEXT, PICTURES, *WATCH))
    return _response(UNKNOWN, f"there is no {request.url.path} here; there is {there}")


async def _answer_body(request: Any, error: Exception) -> Response:
    return _response(MISTAKE, "the request's body is no JSON object, or its type is no application/json")


def _response(status: int, message: str) -> Response:
    """An error; the log says it, too, if it is one of a request for models or for what they make."""
    if (current := CURRENT.get(None)) is not None:
        current.fail(message)
    return Response(body_of(status, message), status, media_type="application/json")
