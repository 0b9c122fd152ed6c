"""The application: transformers' own server, without the routes that do not speculate, with pictures and our errors."""

from typing import Any

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from jinja2 import TemplateError
from starlette.exceptions import HTTPException
from transformers.cli.serving.server import build_server

from mmspec.serving.calls import Managers
from mmspec.serving.handlers import SpeculatingChat, SpeculatingCompletion
from mmspec.serving.limits import Limits
from mmspec.serving.models import Models
from mmspec.serving.pictures import Painter
from mmspec.serving.request import MISTAKE, UNKNOWN, ClientGone, Door, answer_to, body_of

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
