"""`JanusPipeline`: text in, pictures out, with transformers' Janus."""

from collections.abc import Sequence

from torch import Tensor

from mmspec_image.language_pipeline import Ids, LanguageModelPipeline
from mmspec_image.models.janus import JanusForImages, JanusPrompt, padded_out
from mmspec_image.sampling import AUTHORS
from mmspec_image.targets.janus import JanusTarget

TEMPLATE = "<|User|>: {{ messages[0]['content'][0]['text'] }}\n\n<|Assistant|>:"
"""The form of a prompt in training, for processors without a chat template; the begin of the picture follows."""


class JanusPipeline(LanguageModelPipeline):
    """Draws pictures with a Janus, many codes a pass.

    Example:
        ```python
        pipe = JanusPipeline.from_pretrained("deepseek-community/Janus-Pro-1B")
        image = pipe("a red fox in the snow", seed=0).images[0]
        ```
    """

    loads = JanusForImages
    sampling = AUTHORS["Janus"]

    def null_ids(self, ids: Ids) -> Ids:
        return Ids(padded_out(self.model.generation_config, ids.ids), ids.mask)

    def condition_of(self, ids: Ids, null: Ids | None) -> JanusPrompt:
        return JanusPrompt(*ids, guided=False) if null is None else JanusPrompt(*ids, *null)

    def decode_units(self, units: Tensor) -> Tensor:
        return JanusTarget(self.model).decode(units)

    @property
    def side(self) -> int:
        vq = self.model.config.vq_config
        return int(vq.num_patches * 2 ** (len(vq.channel_multiplier) - 1))

    def ids_of(self, captions: Sequence[str]) -> Ids:
        chats = [[{"role": "user", "content": [{"type": "text", "text": text.strip()}]}] for text in captions]
        how = {"chat_template": self.processor.chat_template or TEMPLATE, "add_generation_prompt": True}
        asked = self.processor.apply_chat_template(chats, tokenize=False, **how)
        inputs = self.processor(
            text=asked, generation_mode="image", padding=True, padding_side="left", return_tensors="pt"
        )
        return Ids(inputs["input_ids"], inputs["attention_mask"])
