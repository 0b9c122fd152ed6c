"""transformers' handlers of text, with checked fields, seeds of one request, and refusals before a stream.

A request for several texts is one of transformers' a text: each has a share of the request (`Request.share`), which its
call finds in `CURRENT`.
"""

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import GenerationConfig
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.utils import BaseHandler, get_response_template

from mmspec.api.stopping import stop_strings
from mmspec.serving.answers import Choice, Texts, completed
from mmspec.serving.constraints import Occurrences, grammar_of
from mmspec.serving.fields import Chat, Completion, Text, checked, prompts_of, seed_of, settings_of
from mmspec.serving.limits import Limits
from mmspec.serving.models import Language, Models
from mmspec.serving.request import CURRENT, Request

SAMPLING = ("temperature", "top_p", "top_k", "min_p")
"""Fields each of which means that the text is drawn, whatever the model's own configuration says."""


class Speculating(BaseHandler):
    """The part that both handlers do otherwise than transformers'; it stands before one of them in a class's bases."""

    fields: type[Text]  # the fields of a request
    model_manager: Models

    def __init__(self, models: Models, managers: Any, limits: Limits) -> None:
        super().__init__(models, managers)
        self._limits = limits

    async def handle_request(self, body: dict[str, Any], request_id: str) -> Any:
        """Answer a request; of a stream, only once its first tokens are there."""
        fields = checked(self.fields, body)
        request = CURRENT.get()
        request.model = fields["model"] = self.model_manager.named(fields.get("model"), Language)
        language = self.model_manager.languages()[fields["model"]]
        if self.fields is Chat:
            refuse_chat(language, fields)
        n, usage = fields.pop("n", 1), fields.pop("stream_options", {}).get("include_usage", False)
        makers = await asyncio.to_thread(processors_of, fields, language)  # a large schema takes a second
        stops, shares = stop_strings(fields.get("stop")), self._shares(fields, n, makers, request)
        names = [request_id, *(f"{request_id}-{i}" for i in range(1, len(shares)))]
        tasks = [asyncio.create_task(self._share(*each, name)) for each, name in zip(shares, names, strict=True)]
        answers = await asyncio.gather(*tasks)
        await request.begun()
        choices = [Choice(i, share, Texts(stops), language.processor) for i, (_, share) in enumerate(shares)]
        return completed(answers, choices, n, request_id, usage)

    def _shares(
        self, fields: dict[str, Any], n: int, makers: Sequence[Callable[[], Any]], request: Request
    ) -> list[tuple[dict[str, Any], Request]]:
        """The texts that are asked for: fields for transformers' handler, and the share of the request, whose logits
        processors the `makers` make.
        """
        prompts, seed = prompts_of(fields.get("prompt", "")), fields.pop("seed", None)
        self._limits.refuse_texts(len(prompts), n)
        top, shares = top_of(fields), []
        for prompt in prompts:
            for number in range(n):
                share = request.share(seed_of(seed, number))
                share.prompt = None if isinstance(prompt, str) else prompt
                share.processors, share.top = [make() for make in makers], top
                shares.append(({**fields, "prompt": prompt if share.prompt is None else ""}, share))
        return shares

    async def _share(self, fields: dict[str, Any], share: Request, request_id: str) -> Any:
        """transformers' answer to one share."""
        CURRENT.set(share)  # in a task of its own, so that nobody else sees it
        return await super().handle_request(fields, request_id)

    def _validate_request(self, body: dict[str, Any]) -> None:
        """Nothing: `handle_request` has checked the fields."""

    def _build_generation_config(self, body: dict[str, Any], own: GenerationConfig, use_cb: bool = False) -> Any:
        """The configuration of a call, in which the fields of a request go before its `generation_config`.

        The seed is the share's: transformers would set torch's own generator, in a thread that others share.
        """
        settings = settings_of(body.pop("generation_config", "{}"))
        if body.keys() & SAMPLING:
            settings["do_sample"] = body.get("temperature") != 0
        if body.get("temperature") == 0:
            del body["temperature"]
        settings |= {name: body[name] for name in ("top_k", "min_p", "repetition_penalty") if name in body}
        if settings.get("top_k") == -1:
            settings["top_k"] = 0  # vLLM's word for transformers'
        if "logit_bias" in body:
            settings["sequence_bias"] = {(token,): bias for token, bias in body.pop("logit_bias").items()}
        asked = (body.get("max_completion_tokens"), body.get("max_tokens"), settings.pop("max_new_tokens", None))
        own = copy.deepcopy(own)
        own.update(**settings)
        config = super()._build_generation_config(body, own, use_cb=use_cb)
        config.max_new_tokens = next((number for number in asked if number is not None), None)
        return config


class SpeculatingChat(Speculating, ChatCompletionHandler):
    fields = Chat


class SpeculatingCompletion(Speculating, CompletionHandler):
    fields = Completion


def refuse_chat(language: Language, fields: Mapping[str, Any]) -> None:
    """Refuse chats, or tools in them, for which the model has no template."""
    name, tokenizer = fields["model"], language.processor
    if tokenizer.chat_template is None:
        raise ValueError(f"{name} has no chat template: use /v1/completions, or start the server with --chat-template")
    if "tools" not in fields:
        return
    if "tools" not in tokenizer.get_chat_template(tools=fields["tools"]):
        raise ValueError(f"tools are not supported by {name}: its chat template does not read them")
    if get_response_template(tokenizer, language.model) is None:
        raise ValueError(
            f"tools are not supported by {name}: its tokenizer has no response_template, which finds calls in a text"
        )


def processors_of(fields: dict[str, Any], language: Language) -> list[Callable[[], Any]]:
    """Makers of a call's own logits processors, for the fields that they take out of a request."""
    makers: list[Callable[[], Any]] = []
    presence, frequency = (fields.pop(name, 0.0) for name in ("presence_penalty", "frequency_penalty"))
    if presence or frequency:
        makers.append(lambda: Occurrences(presence, frequency))
    grammar = grammar_of(fields.pop("response_format", {"type": "text"}), lambda: language.table)
    return makers if grammar is None else [*makers, grammar]


def top_of(fields: dict[str, Any]) -> int | None:
    """The number of most probable tokens that each one comes with; None: without log-probabilities."""
    wanted, top = fields.pop("logprobs", None), fields.pop("top_logprobs", 0)
    return wanted if wanted is None or not isinstance(wanted, bool) else top
