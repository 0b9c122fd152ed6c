"""Chameleon as a model of pictures: transformers' own, whose forward leaves the scores of picture codes alone."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import ChameleonForConditionalGeneration
from transformers.modeling_outputs import CausalLMOutputWithPast


class ChameleonForImages(ChameleonForConditionalGeneration):
    """transformers' Chameleon (arXiv 2405.09818), Anole or Lumina-mGPT, for pictures.

    `ChameleonForConditionalGeneration` loads the same files and writes texts alone: it forbids every code of a picture.
    Here nothing is forbidden, and a call says with a constraint which ids may follow (`chameleon_grid`). A decoder of
    pictures that is stored beside the encoder is the pipeline's to load.

    Example:
        ```python
        model = ChameleonForImages.from_pretrained("leloy/Anole-7b-v0.1-hf")
        ```
    """

    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [r"^model\.vqmodel\.decoder\."]

    def forward(
        self, input_ids: Tensor | None = None, logits_to_keep: int | Tensor = 0, labels: None = None, **how: Any
    ) -> CausalLMOutputWithPast:
        """Scores of all ids at `logits_to_keep`; other arguments are the inner model's."""
        if labels is not None:
            raise ValueError("ChameleonForImages is for generation; train with ChameleonForConditionalGeneration")
        how = {name: value for name, value in how.items() if name != "return_dict"}
        outputs = self.model(input_ids=input_ids, **how)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutputWithPast(
            logits=self.lm_head(outputs.last_hidden_state[:, kept]),
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def codes_of(self, ids: Tensor) -> Tensor:
        """The VQ's codes of ids that stand for codes; a tensor of the same shape."""
        codes = self.model.vocabulary_mapping.bpe2img
        table = torch.full((self.config.vocab_size,), -1)
        table[list(codes)] = torch.tensor(list(codes.values()))
        found = table.to(ids.device)[ids]
        if bool((found < 0).any()):
            raise ValueError(f"the id {int(ids[found < 0][0])} stands for no code of a picture")
        return found
