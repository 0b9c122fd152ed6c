"""Janus (arXiv 2501.17811) as a target for pictures: the passes of transformers' `generate(generation_mode="image")`.

The language model reads a prompt that ends with the begin-of-image token, then codes; a separate head scores codes. The
unconditional half of guidance reads the prompt with everything but begin-of-text and begin-of-image replaced by
padding, or a negative prompt.
"""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import JanusForConditionalGeneration
from transformers.modeling_outputs import CausalLMOutput
from transformers.modeling_utils import PreTrainedModel

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts import prefill, prompt
from mmspec.hosts.attention import model_lock
from mmspec.hosts.buffer_cache import BufferCache, captured_shape
from mmspec.hosts.guidance import GuidedCache, GuidedTarget, refuse_renewal, renew_null, stacked
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.passes import Passes
from mmspec.hosts.self_check import checked
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.train_mode import refuse_training
from mmspec_image.models.janus import JanusPrompt, padded_out
from mmspec_image.specs import JANUS


class CodeDecoder(nn.Module):
    """Janus' language model as a decoder of the interface that `mmspec.hosts.passes` runs: from ids of words, or of
    codes, `[batch, node]` to scores of codes.
    """

    def __init__(self, embed: nn.Module, body: PreTrainedModel, head: nn.Module) -> None:
        super().__init__()
        self.embed, self.body, self.head = embed, body, head
        self.config, self.dtype, self.device = body.config, body.dtype, body.device

    def forward(
        self, input_ids: Tensor, position_ids: Tensor | None = None, logits_to_keep: int | Tensor = 0, **how: Any
    ) -> Any:
        """`logits` of codes at `logits_to_keep`; other arguments are the language model's."""
        embeds = self.embed(input_ids)
        hidden = self.body(inputs_embeds=embeds, position_ids=position_ids, **how).last_hidden_state
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutput(logits=self.head(hidden[:, kept]))


class JanusTarget(GuidedTarget):
    """Codes of a picture in raster order. The model is changed during a pass only."""

    offers = JANUS.offers

    def __init__(self, model: JanusForConditionalGeneration) -> None:
        if not isinstance(model, JanusForConditionalGeneration):
            raise TypeError(f"JanusTarget takes a JanusForConditionalGeneration, not a {type(model).__name__}")
        self.model = model
        self.model_info = ModelInfo.of(model)
        self.vocab: int | None = model.config.vq_config.num_embeddings
        self.grid = model.config.vq_config.num_patches
        self.context = model.config.vision_config.num_image_tokens
        if self.grid**2 != self.context:
            raise ValueError(f"this model makes {self.context} codes, and decodes {self.grid} × {self.grid}")
        self._codes = self._passes()[1]

    @property
    def codebook(self) -> Tensor:
        """The VQ's entries, `[vocab, width]`: relaxed rules compare codes by them."""
        return nn.functional.normalize(self.model.model.vqmodel.quantize.embedding.weight.detach(), dim=-1)

    @torch.no_grad()
    def _begin(self, inputs: JanusPrompt, limit: int, width: int, fixed: bool = False) -> Prefill:
        """See `start`; refuses prompts that are empty, too long, padded on the right, or that have an unknown id."""
        if limit > self.context:
            raise ValueError(f"a picture of this model has {self.context} codes, {limit} were asked for")
        refuse_training(self.model.model.language_model)
        ids, mask = self._read(inputs.input_ids, inputs.attention_mask)
        rows = len(ids)
        if inputs.guided:
            ids, mask = stacked((ids, mask), self._unconditional(inputs, ids, mask))
        words, self._codes = self._passes()
        given = mask.sum(1)
        self._refuse_length(int(given.max()), limit)
        capacity = int(given.max()) + limit + width
        slots = SlotCache(self.model_info.layers(), len(ids), capacity, ids.device, fixed)
        with model_lock(self.model):
            logits = prefill.prefill_chunks(words, slots, ids, mask)
        slots.begun = given.tolist()
        memory = GuidedCache(slots, rows, given, behind=limit + width)
        none = torch.zeros(rows, 0, dtype=torch.int64, device=ids.device)
        quantised, output = words.quantised, memory.output(logits[:, None])
        how: dict[str, Any] = {"keeps_shape": not quantised.shared, "rounding": quantised.warning}
        return Prefill(memory, output, none, none.sum(1), **how)

    def verify(self, cache: GuidedCache, draft: Draft, first: int = 0) -> TargetOutput:
        with torch.inference_mode(), self.ready(cache, draft.nodes - first):
            return self.forward(cache, draft, first)

    @contextmanager
    def ready(self, cache: GuidedCache, nodes: int) -> Iterator[None]:
        units = len(cache.slots.length) * nodes
        with model_lock(self.model), self._codes.ready(cache.slots, units):
            yield

    def forward(self, cache: GuidedCache, draft: Draft, first: int = 0) -> TargetOutput:
        cache.slots.scratch = not draft.index.is_chain
        units, index = cache.physical(draft.units[:, first:]), cache.index(draft.index)
        return cache.output(self._codes.run(cache.slots, units, index, first))

    def renew_null(self, cache: GuidedCache, null: Tensor, null_mask: Tensor | None, codes: Tensor) -> None:
        """Replace what guidance leads away from, by ids `[batch, any]`, padded on the left; the unconditional half is
        read again, committed codes included. Refuses a call that began without guidance.
        """
        refuse_renewal(cache, len(null))
        ids, mask = self._read(null, null_mask)
        self._refuse_length(int(mask.sum(1).max()), self.context)
        words, coded = self._passes()
        with model_lock(self.model):
            renew_null(cache, self.model_info, ids, mask, codes, words, coded)

    def capture_key(self, cache: GuidedCache) -> Hashable:
        return captured_shape(self.model, cache.slots, cache.slots.most)

    def held(self, cache: GuidedCache, nodes: int) -> GuidedCache:
        layers, most = self.model_info.layers(), cache.slots.most
        return replace(cache, slots=BufferCache.of_passes(self._codes, layers, cache.slots, most))

    def expect(self, cache: GuidedCache, index: TreeIndex) -> None:
        """Does nothing: the model has no recurrent layers."""

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Pictures `[batch, 3, height, width]` in [-1, 1] of codes `[batch, cell]` or `[batch, row, column]`."""
        pixels = self.model.decode_image_tokens(codes.flatten(1))  # channels last, as transformers' processor takes it
        return pixels.permute(0, 3, 1, 2).float().clamp(-1, 1)

    def _passes(self) -> tuple[Passes, Passes]:
        """Passes over words and over codes; made anew for every call, since the model may have moved."""
        inner = self.model.model
        coded = nn.Sequential(inner.generation_embeddings, inner.generation_aligner)
        decoders = [
            CodeDecoder(embed, inner.language_model, inner.generation_head)
            for embed in (inner.get_input_embeddings(), coded)
        ]
        assert self.vocab is not None
        config = inner.language_model.config
        words, codes = (replace(self.model_info, model=r, config=config, vocab=self.vocab) for r in decoders)
        with model_lock(self.model):
            found = checked(codes, whole=self.model)
        return replace(found, model_info=words), replace(found, model_info=codes)

    def _read(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        ids, mask = prompt.read({"input_ids": ids, "attention_mask": mask}, self.model_info.vocab)
        if bool((mask.diff(dim=1) < 0).any()):
            raise ValueError("the attention mask has holes; padding stands on the left only")
        return ids, mask

    def _refuse_length(self, longest: int, limit: int) -> None:
        reach = self.model_info.reach
        if reach is not None and longest + limit > reach:
            raise ValueError(
                f"{longest} tokens of prompt and {limit} codes go beyond position {reach}, and "
                f"{self.model_info.reach_reason}: "
                "drafts could not be verified exactly; shorten the prompt"
            )

    def _unconditional(self, inputs: JanusPrompt, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if inputs.negative_ids is None:
            return padded_out(self.model.generation_config, ids), mask
        negative, seen = self._read(inputs.negative_ids, inputs.negative_mask)
        return negative.expand(len(ids), -1), seen.expand(len(ids), -1)
