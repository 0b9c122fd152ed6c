"""A call as transformers' own `generate` runs it: the model's prefill, and what the next steps would be fed.

Most models count on by one on every axis; `generate` prepares their positions. Some leave them to their forward, which
may count slots, padding included, or walk over a grid (GLM-Image). So positions are not computed here: the model is
asked, by the functions that `generate` calls, and where these give none by a look at what its forward passes on.
"""

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationConfig

from mmspec.hosts.anatomy import Anatomy
from mmspec.hosts.passes import accepts_argument, cache_name, names_argument
from mmspec.hosts.prefill import holds_units

AHEAD = 8
"""Units of which positions are asked for; a grid of codes shows in the second."""

_WRITES = ("update", "update_conv_state", "update_recurrent_state")
"""Of a cache: where a forward's first layer has its positions behind it."""


class StockGenerate:
    """One call, from its prefill on.

    Args:
        anatomy: The model.
        ids: `[batch, prompt]`; a prompt of embeddings has none.
        inputs: What the model's forward takes, as `generate` prepares it; what is missing is prepared here.

    Attributes:
        ids: `[batch, unit]`: the prompt, and the units of the steps so far.
        logits: After the last of them, `[batch, vocab]`.
        cache: What the model filled.
        mask: `[batch, column]` of the prompt's columns in it.
        positions: Of the unit of the last step, as in `ahead`; None before the first.
        counts: Whether the model's forward makes the positions of the last units that it was asked about itself.
    """

    def __init__(self, anatomy: Anatomy, ids: Tensor, inputs: Mapping[str, Any]) -> None:
        model, known = anatomy.model, {name: value for name, value in inputs.items() if value is not None}
        config = known.pop("generation_config", None) or GenerationConfig()
        known.pop("input_ids", None)
        self.model, self.ids = model, ids
        cache = known.pop("past_key_values", None)
        known[cache_name(model)] = cache = DynamicCache(config=model.config) if cache is None else cache
        past = int(cache.get_seq_length()) if holds_units(cache) else 0
        embeds = known.get("inputs_embeds")
        given = embeds.shape[1] if embeds is not None else ids.shape[1]
        columns = given if given > past else past + given  # the whole conversation, or only what is new in it
        mask = known.get("attention_mask")
        mask = torch.ones(len(ids), columns, dtype=torch.int64, device=ids.device) if mask is None else mask.long()
        known["attention_mask"] = self.mask = mask
        if "position_ids" not in known and accepts_argument(model, "position_ids"):
            tokens = embeds if embeds is not None and not ids.shape[1] else ids
            known["position_ids"] = model._prepare_position_ids_for_generation(tokens, known)
        known["use_cache"] = True
        self._known, self._out = known, model._prefill(ids, config, known)
        self.logits: Tensor = self._out.logits[:, -1]
        self.positions: Tensor | None = None
        self.counts = False

    @property
    def cache(self) -> Any:
        """See the class."""
        return getattr(self._out, cache_name(self.model))

    def ahead(self) -> Tensor | None:
        """Positions of the next units, whatever they are: `[batch, AHEAD]`, or `[axes, batch, AHEAD]`.

        None where the model has none that could be told apart from its cache.
        """
        if not accepts_argument(self.model, "position_ids"):
            return None
        prepared = self._prepared(self._grown(AHEAD), self.logits.argmax(-1)[:, None].expand(-1, AHEAD))
        positions = self._passed_on(prepared) if self.counts else prepared["position_ids"]
        return None if positions is None else self._rows(positions)

    def following(self) -> Tensor:
        """Positions of the next unit, `[batch]` or `[axes, batch]`; drafts go on from there.

        Raises:
            ValueError: The model would not go on by one on every axis.
        """
        positions = self.ahead()
        if positions is None:
            return self.mask.sum(1)
        strange = position_jump(positions)
        if strange:
            raise ValueError(
                f"{type(self.model).__name__} cannot verify drafts exactly in this call, so it is refused: {strange}; "
                "disable() first"
            )
        return positions[..., 0]

    def step(self, units: Tensor) -> None:
        """Go on by one unit `[batch]` a row, in the cache."""
        known = self._grown(1)
        prepared = self._prepared(known, units[:, None])
        with _watching(self.model) if self.counts else nullcontext([prepared.get("position_ids")]) as seen:
            out = self.model(**prepared, return_dict=True)
        positions = next(iter(seen), None)
        self._known, self._out = known, out
        self.ids, self.logits = torch.cat([self.ids, units[:, None]], 1), out.logits[:, -1]
        self.positions = None if positions is None else self._rows(positions)

    def fork(self) -> "StockGenerate":
        """The same call with a cache of its own, so that steps leave this one as it is."""
        name, other = cache_name(self.model), copy.copy(self)
        other._out = copy.copy(self._out)
        other._out[name] = _copied(self.cache)
        other._known = {**self._known, name: other._out[name]}
        return other

    def _grown(self, count: int) -> dict[str, Any]:
        """What `generate` keeps from step to step, after `count` new units."""
        grown = dict(self._known)
        for _ in range(count):  # one by one, as stock: code of other people may know nothing else
            grown = self.model._update_model_kwargs_for_generation(self._out, grown, is_encoder_decoder=False)
        return grown

    def _prepared(self, known: dict[str, Any], units: Tensor) -> dict[str, Any]:
        """What the model's forward is given for `units [batch, new]`."""
        ids = torch.cat([self.ids, units], 1)
        made: dict[str, Any] = self.model.prepare_inputs_for_generation(
            ids, next_sequence_length=units.shape[1], **known
        )
        self.counts = made.get("position_ids") is None
        return made

    def _passed_on(self, prepared: dict[str, Any]) -> Tensor | None:
        """Positions that the forward makes for itself: those that reach its first part that takes any.

        The forward ends where its first layer would write to the cache, which stays as it is.
        """
        name = cache_name(self.model)
        cache = copy.copy(prepared[name])
        vars(cache).update(dict.fromkeys(_WRITES, _stop))
        with _watching(self.model) as seen, suppress(_Stopped):
            self.model.forward(**{**prepared, name: cache})
        return next(iter(seen), None)

    def _rows(self, positions: Tensor) -> Tensor:
        """The same, for every row."""
        return positions.expand(*positions.shape[:-2], len(self.ids), positions.shape[-1])


def position_jump(positions: Tensor) -> str:
    """What is strange in positions `[batch, unit]` or `[axes, batch, unit]`: "" where they go on by one everywhere."""
    counted = positions[..., :1] + torch.arange(positions.shape[-1], device=positions.device)
    wrong = (positions != counted).any(-1)
    if not bool(wrong.any()):
        return ""
    row = int(wrong.reshape(-1, wrong.shape[-1]).any(0).nonzero()[0])
    shown = positions[..., row, :4].reshape(-1, min(4, positions.shape[-1])).T.tolist()
    places = ", ".join(str(tuple(place) if len(place) > 1 else place[0]) for place in shown)
    return f"its own generate puts the next tokens at positions {places} …, and a draft's go on by one on every axis"


def _copied(cache: Any) -> Any:
    """A cache with numbers of its own; they may have been computed with gradients, which `deepcopy` refuses."""
    values = [value for layer in cache.layers for value in vars(layer).values()]
    states = [state for value in values if isinstance(value, Mapping) for state in value.values()]
    held = [value for value in (*values, *states) if isinstance(value, Tensor)]
    return copy.deepcopy(cache, {id(value): value.detach().clone() for value in held})


class _Stopped(Exception):
    """A forward came as far as it was wanted."""


def _stop(*args: Any, **kwargs: Any) -> None:
    raise _Stopped


@contextmanager
def _watching(model: nn.Module) -> Iterator[list[Tensor]]:
    """Inside the block, the position ids that parts of the model are given are listed, the outermost part's first."""
    seen: list[Tensor] = []

    def look(part: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        signature = inspect.signature(type(part).forward)
        given = signature.bind_partial(part, *args, **kwargs).arguments.get("position_ids")
        if isinstance(given, Tensor):
            seen.append(given)

    parts = [part for part in model.modules() if names_argument(part, "position_ids")]
    hooks = [part.register_forward_pre_hook(look, with_kwargs=True) for part in parts]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
