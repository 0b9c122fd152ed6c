"""The application: transformers' own server, without the routes that do not speculate, with pictures and our errors.

A call is an `Enabled` of its own over the model's one decoder, so that it has its own seed and leaves none behind. It
runs in a thread of the model's, and shares passes with the calls in the others (`mmspec.core.sharing`).
"""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from jinja2 import TemplateError
from starlette.exceptions import HTTPException
from torch import Tensor
from transformers.cli.serving.server import build_server
from transformers.cli.serving.utils import GenerateManager, GenerationState

from mmspec.api.enable import Enabled
from mmspec.core.decoder import Decoder
from mmspec.serving.handlers import SpeculatingChat, SpeculatingCompletion
from mmspec.serving.limits import Limits
from mmspec.serving.models import Language, Models
from mmspec.serving.pictures import Painter
from mmspec.serving.request import (
    CURRENT,
    MISTAKE,
    UNKNOWN,
    ClientGone,
    Door,
    Request,
    answer_to,
    body_of,
    message_of,
    status_of,
)

DEFAULT_NEW = 1024  # new tokens of a request that names no number, if there is room: transformers' default


class Watched:
    """A streamer that ends the call when its client has gone; without an `inner` one nobody gets the tokens."""

    def __init__(self, inner: Any, request: Request) -> None:
        self._inner = inner
        self._request = request

    def put(self, value: Tensor) -> None:
        """A token; before the first one the prompt."""
        self._request.go_on()
        self._request.begins()
        if self._inner is not None:
            self._inner.put(value)

    def end(self) -> None:
        if self._inner is not None:
            self._inner.end()


class Call:
    """An object that transformers' manager takes for a model: `generate`, once, with the request's seed."""

    def __init__(self, model: Any, decoder: Decoder, request: Request) -> None:
        self._enabled = Enabled(model, decoder, request.seed, "philox")
        self._request = request

    def generate(self, streamer: Any = None, **arguments: Any) -> Any:
        """The model's `generate`, speculatively; refused calls and failures end what waits for first tokens, too."""
        try:
            self._request.go_on()
            return self._enabled.generate(**arguments, streamer=Watched(streamer, self._request))
        except Exception as error:
            self._request.begins(error)
            if streamer is None or isinstance(error, ClientGone):
                raise
            raise RuntimeError(_escaped(error)) from error


class Manager(GenerateManager):
    """transformers' queue of a model, with bounded calls that speculate, and share passes in a thread each."""

    def __init__(self, served: Language, limits: Limits) -> None:
        self._decoder, self._thread = served.decoder, Workers(served.rows)
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
        context = model.config.get_text_config(decoder=True).to_dict().get("max_position_embeddings")
        prompt, wanted = inputs["input_ids"].shape[-1], gen_config.max_new_tokens
        gen_config.max_new_tokens = self._limits.new_tokens(prompt, wanted, DEFAULT_NEW, context)
        return Call(model, self._decoder, CURRENT.get())


class Workers:
    """The threads of a model, with the methods of transformers' one thread."""

    def __init__(self, number: int) -> None:
        self._threads = ThreadPoolExecutor(number)

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


def _escaped(error: Exception) -> str:
    """The words of an error, fit for between the quotation marks into which transformers puts it in a stream."""
    return json.dumps(message_of(error, status_of(error)))[1:-1]


PICTURES = "/v1/images/generations"
TEXT = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health")
"""The routes of transformers' server that are kept. Others load models on a request's word, or do not speculate."""


def application(models: Models, limits: Limits) -> Door:
    managers = Managers(models, limits)
    app = build_server(
        models,
        SpeculatingChat(models, managers),
        completion_handler=SpeculatingCompletion(models, managers),
        response_handler=None,
        transcription_handler=None,
        systemone_handler=None,
        generation_state=managers,
    )
    app.router.routes[:] = [route for route in app.router.routes if route.path in TEXT]
    painter = Painter(models, limits)

    @app.post(PICTURES)
    async def pictures(body: dict[str, Any]) -> dict[str, Any]:
        return await painter.answer(body)

    for kind in (ValueError, TypeError, TemplateError, ClientGone, Exception):
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(404, _answer_path)
    app.add_exception_handler(RequestValidationError, _answer_body)
    return Door(app, limits)


async def _answer(request: Any, error: Exception) -> Response:
    status, text = answer_to(error)
    return _response(status, text)


async def _answer_http(request: Any, error: HTTPException) -> Response:
    return _response(error.status_code, body_of(error.status_code, str(error.detail)))


async def _answer_path(request: Any, error: Exception) -> Response:
    there = ", ".join((*TEXT, PICTURES))
    return _response(UNKNOWN, body_of(UNKNOWN, f"there is no {request.url.path} here; there is {there}"))


async def _answer_body(request: Any, error: Exception) -> Response:
    return _response(
        MISTAKE, body_of(MISTAKE, "the request's body is no JSON object, or its type is no application/json")
    )


def _response(status: int, text: str) -> Response:
    return Response(text, status, media_type="application/json")
