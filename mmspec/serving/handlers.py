"""transformers' handlers of text, with checked fields, seeds of one request, and refusals before a stream."""

import copy
from typing import Any

from transformers import GenerationConfig
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.utils import BaseHandler

from mmspec.api.stops import stop_strings
from mmspec.serving.answers import completed
from mmspec.serving.fields import Chat, Completion, Text, checked, settings_of
from mmspec.serving.models import Language, Models
from mmspec.serving.request import CURRENT


class Speculating(BaseHandler):
    """What both handlers do otherwise than transformers'; it stands before one of them in a class's bases."""

    fields: type[Text]  # the fields of a request
    model_manager: Models

    async def handle_request(self, body: dict[str, Any], request_id: str) -> Any:
        """Answer a request; of a stream, only once its first tokens are there.

        Raises:
            ValueError: The request is refused.
        """
        answer = await super().handle_request(body, request_id)
        await CURRENT.get().begun()
        return completed(
            answer, stop_strings(body.get("stop")), body.get("stream_options", {}).get("include_usage", False)
        )

    def _validate_request(self, body: dict[str, Any]) -> None:
        """Leave in `body` the fields that have an effect."""
        fields = checked(self.fields, body)
        fields["model"] = self.model_manager.named(fields.get("model"), Language)
        if self.fields is Chat and self.model_manager.languages()[fields["model"]].processor.chat_template is None:
            raise ValueError(
                f"{fields['model']} has no chat template: use /v1/completions, or start the server with --chat-template"
            )
        body.clear()
        body.update(fields)

    def _build_generation_config(self, body: dict[str, Any], own: GenerationConfig, use_cb: bool = False) -> Any:
        """The configuration of a call.

        The seed goes to the request: transformers would set torch's own generator, in a thread that others share. A
        temperature or `top_p` means that the text is drawn, whatever the model's own configuration says.
        """
        CURRENT.get().seeded(body.pop("seed", None))
        settings = settings_of(body.pop("generation_config", "{}"))
        if body.keys() & {"temperature", "top_p"}:
            settings["do_sample"] = body.get("temperature") != 0
        if body.get("temperature") == 0:
            del body["temperature"]
        asked = (body.get("max_completion_tokens"), body.get("max_tokens"), settings.pop("max_new_tokens", None))
        own = copy.deepcopy(own)
        own.update(**settings)
        config = super()._build_generation_config(body, own, use_cb=use_cb)
        config.max_new_tokens = next((number for number in asked if number is not None), None)
        return config


class SpeculatingChat(Speculating, ChatCompletionHandler):
    """`/v1/chat/completions`."""

    fields = Chat


class SpeculatingCompletion(Speculating, CompletionHandler):
    """`/v1/completions`."""

    fields = Completion
