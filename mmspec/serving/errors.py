"""Errors as OpenAI's clients read them: a status, and `{"error": {"message", "type", "code"}}`."""

import json

from jinja2 import TemplateError

from mmspec.core.out_of_memory import out_of_memory
from mmspec.registry.printable import one_line
from mmspec.serving.limits import TooLargeError
from mmspec.serving.request import ClientGone

MISTAKE, UNKNOWN, TOO_LARGE, GONE, FAULT, FULL = 400, 404, 413, 499, 500, 503


class UnknownModelError(ValueError):
    """No model of that name is served here."""


def status_of(error: BaseException) -> int:
    """The HTTP status of an error: what the client can mend is 400 to 499; whatever else is ours.

    `ValueError` and `TypeError` are what mmspec and transformers raise about arguments, `TemplateError` what a chat
    template says of messages that do not suit it.
    """
    if isinstance(error, ClientGone):
        return GONE
    if isinstance(error, TooLargeError):
        return TOO_LARGE
    if isinstance(error, UnknownModelError):
        return UNKNOWN
    if isinstance(error, ValueError | TypeError | TemplateError):
        return MISTAKE
    return FULL if out_of_memory(error) else FAULT


def message_of(error: BaseException, status: int) -> str:
    """What an error says, in one printable line."""
    if status == FULL:
        return "there is not enough memory for this request; ask for less"
    return one_line(error) if status < FAULT else f"{type(error).__name__}: {one_line(error)}"


def answer_to(error: BaseException) -> tuple[int, str]:
    status = status_of(error)
    return status, body_of(status, message_of(error, status))


def body_of(status: int, message: str) -> str:
    kind = "invalid_request_error" if status < FAULT else "server_error"
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}})
