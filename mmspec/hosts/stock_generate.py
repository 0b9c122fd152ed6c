"""A call as transformers' own `generate` runs it: the model's prefill, its next steps and their positions.

For most models `generate` prepares positions, which increase by one on every axis. Some models compute them in their
forward, which may count padded slots or walk over a grid (GLM-Image). So positions are not computed here: they come
from the functions that `generate` calls, or else from hooks on the parts to which the forward passes them.
"""

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationConfig

from mmspec.hosts.model_info import ModelInfo, accepts_argument, cache_name, names_argument
from mmspec.hosts.prompt import conversation_columns

AHEAD = 8  # the number of next units whose positions are looked at; on a grid the second one differs already

_WRITES = ("update", "update_conv_state", "update_recurrent_state")
"""The methods of a cache that a forward calls after it has computed its positions."""


class StockGenerate:
    """One call of the unmodified model, from its prefill on.

    `ids` are `[batch, prompt]`, `[batch, 0]` for a prompt of embeddings; `inputs` the arguments of the model's forward
    as `generate` prepares them, and missing ones are prepared here.
    """

    def __init__(self, model_info: ModelInfo, ids: Tensor, inputs: Mapping[str, Any]) -> None:
        model, known = model_info.model, {name: value for name, value in inputs.items() if value is not None}
        config = known.pop("generation_config", None) or GenerationConfig()
        known.pop("input_ids", None)  # the argument `ids` has them
        self.model, self.ids = model, ids  # the units of later steps are appended to the prompt's
        cache = known.pop("past_key_values", None)
        known[cache_name(model)] = cache = DynamicCache(config=model.config) if cache is None else cache
        embeds, mask = known.get("inputs_embeds"), known.get("attention_mask")
        columns = conversation_columns(ids, {**inputs, "past_key_values": cache})
        mask = torch.ones(len(ids), columns, dtype=torch.int64, device=ids.device) if mask is None else mask.long()
        known["attention_mask"] = self.mask = mask  # `[batch, column]` int64 of the prompt's columns in the cache
        if "position_ids" not in known and names_argument(model, "position_ids"):
            tokens = embeds if embeds is not None and not ids.shape[1] else ids
            known["position_ids"] = model._prepare_position_ids_for_generation(tokens, known)
        known["use_cache"] = True
        self._known, self._out = known, model._prefill(ids, config, known)
        self.logits: Tensor = self._out.logits[:, -1]  # `[batch, vocab]` after the last unit
        # The position of the last step's unit, `[batch, 1]` or `[axes, batch, 1]`; None before the first step
        self.positions: Tensor | None = None
        self.counts = False  # whether the forward computes positions itself, as found for the last units prepared

    @property
    def cache(self) -> Any:
        """The cache that the model filled."""
        return getattr(self._out, cache_name(self.model))

    def ahead(self, most: int = AHEAD) -> Tensor | None:
        """The positions of the next `AHEAD` units, or of `most`: `[batch, unit]`, or `[axes, batch, unit]`; None if the
        model's forward takes no positions.
        """
        if not accepts_argument(self.model, "position_ids"):
            return None
        count = min(AHEAD, most)
        prepared = self._prepared(self._grown(count), self.logits.argmax(-1)[:, None].expand(-1, count))
        positions = self._passed_on(prepared) if self.counts else prepared["position_ids"]
        return None if positions is None else self._rows(positions)

    def following(self) -> Tensor:
        """The position of the next unit, `[batch]` or `[axes, batch]`, from which a draft's positions count. Refuses
        positions that do not increase by one on every axis.
        """
        positions = self.ahead()
        if positions is None:
            return self.mask.sum(1)
        jump = position_jump(positions)
        if jump:
            raise ValueError(
                f"{type(self.model).__name__} cannot verify drafts exactly in this call, so it is refused: {jump}; "
                "disable() first"
            )
        return positions[..., 0]

    def step(self, units: Tensor) -> None:
        """Run the model on one new unit per row, `units [batch]`."""
        known = self._grown(1)
        prepared = self._prepared(known, units[:, None])
        with _watching(self.model) if self.counts else nullcontext([prepared.get("position_ids")]) as seen:
            out = self.model(**prepared, return_dict=True)
        positions = next(iter(seen), None)
        self._known, self._out = known, out
        self.ids, self.logits = torch.cat([self.ids, units[:, None]], 1), out.logits[:, -1]
        self.positions = None if positions is None else self._rows(positions)

    def fork(self) -> "StockGenerate":
        """A copy of the call with its own cache, so that its steps do not change this one."""
        name, other = cache_name(self.model), copy.copy(self)
        other._out = copy.copy(self._out)
        other._out[name] = _copied(self.cache)
        other._known = {**self._known, name: other._out[name]}
        return other

    def _grown(self, count: int) -> dict[str, Any]:
        """The arguments that `generate` keeps from step to step, after `count` new units."""
        grown = dict(self._known)
        for _ in range(count):  # one by one, as in `generate`; a model's override may support nothing else
            grown = self.model._update_model_kwargs_for_generation(self._out, grown, is_encoder_decoder=False)
        return grown

    def _prepared(self, known: dict[str, Any], units: Tensor) -> dict[str, Any]:
        ids = torch.cat([self.ids, units], 1)
        prepare = self.model.prepare_inputs_for_generation
        arguments: dict[str, Any] = prepare(ids, next_sequence_length=units.shape[1], **known)
        self.counts = arguments.get("position_ids") is None
        return arguments

    def _passed_on(self, prepared: dict[str, Any]) -> Tensor | None:
        """The positions that the forward computes, and passes to the first part that takes some. It is stopped when its
        first layer writes to the cache, which so stays unchanged.
        """
        name = cache_name(self.model)
        cache = copy.copy(prepared[name])
        vars(cache).update(dict.fromkeys(_WRITES, _stop))
        with _watching(self.model) as seen, suppress(_Stopped):
            self.model.forward(**{**prepared, name: cache})
        return next(iter(seen), None)

    def _rows(self, positions: Tensor) -> Tensor:
        return positions.expand(*positions.shape[:-2], len(self.ids), positions.shape[-1])


def position_jump(positions: Tensor) -> str:
    """The fault of positions `[batch, unit]` or `[axes, batch, unit]`; "" if they increase by one everywhere."""
    counted = positions[..., :1] + torch.arange(positions.shape[-1], device=positions.device)
    wrong = (positions != counted).any(-1)
    if not bool(wrong.any()):
        return ""
    row = int(wrong.reshape(-1, wrong.shape[-1]).any(0).nonzero()[0])
    shown = positions[..., row, :4].reshape(-1, min(4, positions.shape[-1])).T.tolist()
    places = ", ".join(str(tuple(place) if len(place) > 1 else place[0]) for place in shown)
    return f"its own generate puts the next tokens at positions {places} …, and a draft's go on by one on every axis"


def _copied(cache: Any) -> Any:
    """A copy of a cache; tensors with gradients, which `deepcopy` refuses, are detached."""
    values = [value for layer in cache.layers for value in vars(layer).values()]
    states = [state for value in values if isinstance(value, Mapping) for state in value.values()]
    tensors = [value for value in (*values, *states) if isinstance(value, Tensor)]
    return copy.deepcopy(cache, {id(value): value.detach().clone() for value in tensors})


class _Stopped(Exception):
    """Raised by the cache to stop a forward."""


def _stop(*args: Any, **kwargs: Any) -> None:
    raise _Stopped


@contextmanager
def _watching(model: nn.Module) -> Iterator[list[Tensor]]:
    """Inside the block, collect the position ids that parts of the model receive, the outermost part's first."""
    seen: list[Tensor] = []

    def look(part: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        signature = inspect.signature(type(part).forward)
        positions = signature.bind_partial(part, *args, **kwargs).arguments.get("position_ids")
        if isinstance(positions, Tensor):
            seen.append(positions)

    parts = [part for part in model.modules() if names_argument(part, "position_ids")]
    hooks = [part.register_forward_pre_hook(look, with_kwargs=True) for part in parts]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
