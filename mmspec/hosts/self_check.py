"""Does this very model verify trees? One tree and one chain against unmodified passes over whole paths, on first use.

A wrong mask, a distance measured in slots (ALiBi), a position taken from the cache's length: all are silent, and all
show here. The tolerance is relative to the model's own noise between a one-token and an N-token pass; above it the
model is refused, with the number. Results are kept per class, config, attention, dtype and device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache as remembered
from typing import Any

import torch
from torch import Tensor

from mmspec.core.tree import TreeIndex
from mmspec.hosts.anatomy import Anatomy
from mmspec.hosts.passes import MANNERS, Passes, accepts
from mmspec.hosts.slot_cache import SlotCache

PARENTS = (-1, 0, 0, 1, 1, 2, 3, 5)
"""The tree: siblings at three depths, so that neither slots nor node order agree with depth."""

LEAVES = (4, 6, 7)
PROMPT = 24
LONGEST = 96
SLACK = 16.0
"""Times the model's own noise that a tree may differ."""


@dataclass(frozen=True)
class Finding:
    """What the check saw.

    Attributes:
        passes: How to run the model; None where it is refused.
        error: Largest difference of logits, of the manner that came closest.
        tolerance: What would have been allowed.
        trouble: What the model raised, where it raised.
    """

    passes: Passes | None
    error: float
    tolerance: float
    trouble: str = ""


_found: dict[tuple[Any, ...], Finding] = {}


def checked(anatomy: Anatomy) -> Passes:
    """How to run this model, found out once.

    Raises:
        ValueError: No way gives the logits of whole paths; the message has the numbers.
    """
    model = anatomy.model
    key = (
        type(model),
        model.config.to_json_string(use_diff=False),
        anatomy.config._attn_implementation,
        model.dtype,
        str(model.device),
        model.__dict__.get("hf_quantizer") is not None,
    )
    if key not in _found:
        _found[key] = examine(anatomy)
    finding = _found[key]
    if finding.passes is None:
        slots = "alibi" in model.config.to_json_string(use_diff=False) or model.config.model_type in ("bloom", "mpt")
        hint = "; it measures distance by cache slot (ALiBi), which a tree breaks" if slots else ""
        saw = finding.trouble or (
            f"logits of tree nodes differ by {finding.error:.1e} from those of whole paths, {finding.tolerance:.1e} is "
            "the model's own noise"
        )
        raise ValueError(f"{type(model).__name__} cannot verify drafts exactly, so it is refused: {saw}{hint}")
    return Passes(anatomy, finding.passes.manner)


@torch.no_grad()
def examine(anatomy: Anatomy) -> Finding:
    """Compare; see the module."""
    ids, drafted = _ids(anatomy)
    with _evaluating(anatomy.model):
        try:
            paths = _Paths(anatomy, ids, drafted)
        except Exception as error:
            return Finding(None, 0.0, 0.0, f"its unmodified pass failed ({type(error).__name__}: {error})")
        if not bool(paths.chains[0].isfinite().all()):
            return Finding(None, 0.0, 0.0, "its own logits are NaN or infinite; check the weights and the dtype")
        tolerance = paths.tolerance()
        worst, trouble = float("inf"), ""
        for manner in MANNERS:
            passes = Passes(anatomy, manner)
            try:
                distance = paths.distance(passes)
            except Exception as error:
                trouble = trouble or f"its tree pass failed ({type(error).__name__}: {error})"
                continue
            if distance <= tolerance:
                return Finding(passes, distance, tolerance)
            worst = min(worst, distance)
    return Finding(None, worst, tolerance, "" if worst < float("inf") else trouble)


class _Paths:
    """Logits that unmodified passes over whole paths give.

    Args:
        anatomy: The model.
        ids: `[prompt]`.
        drafted: `[node]`.
    """

    def __init__(self, anatomy: Anatomy, ids: Tensor, drafted: Tensor) -> None:
        self.anatomy, self.ids, self.drafted = anatomy, ids, drafted
        last = _end(anatomy) - len(ids) - len(drafted)
        # As far on as positions go, where they can be said apart from the cache.
        self.shifts = [0, last] if last > 0 and accepts(anatomy.model, "position_ids") else [0]
        self.tree = {leaf: self._whole(drafted[_path(leaf)], 0)[-1] for leaf in LEAVES}
        self.chains = [self._whole(drafted, shift)[-len(drafted) :] for shift in self.shifts]

    def tolerance(self) -> float:
        """The model's own noise, widened: a whole pass against one token over a cache, and rounding at this scale."""
        scale = float(self.chains[0].abs().max())
        cached = self._cached()
        noise = float((cached - self.chains[0][-1]).abs().max())
        return SLACK * max(noise, torch.finfo(self.anatomy.model.dtype).eps * scale)

    def distance(self, passes: Passes) -> float:
        """Largest difference of tree and chains in `passes`."""
        index = TreeIndex.static(PARENTS, self.ids.device)
        logits = self._drafted(passes, index, 0)
        off = max(float((logits[leaf] - whole).abs().max()) for leaf, whole in self.tree.items())
        for shift, whole in zip(self.shifts, self.chains, strict=True):
            chain = self._drafted(passes, TreeIndex.chain(len(self.drafted), self.ids.device), shift)
            off = max(off, float((chain - whole).abs().max()))
        return off if off == off else float("inf")

    def _drafted(self, passes: Passes, index: TreeIndex, shift: int) -> Tensor:
        cache = SlotCache(self.anatomy.layers(), 1, len(self.ids) + index.nodes, self.ids.device)
        cache.shift = cache.shift + shift
        passes(cache, self.ids[None], TreeIndex.chain(len(self.ids), self.ids.device))
        cache.length = cache.length + len(self.ids)
        return passes(cache, self.drafted[None], index)[0].float()

    def _whole(self, drafted: Tensor, shift: int) -> Tensor:
        ids = torch.cat([self.ids, drafted])[None]
        more: dict[str, Any] = {}
        if shift:
            more["position_ids"] = torch.arange(ids.shape[1], device=ids.device)[None] + shift
        logits: Tensor = self.anatomy.model(input_ids=ids, use_cache=False, **more).logits
        return logits[0].float()

    def _cached(self) -> Tensor:
        from transformers import DynamicCache

        ids, cache = torch.cat([self.ids, self.drafted])[None], DynamicCache(config=self.anatomy.model.config)
        self.anatomy.model(input_ids=ids[:, :-1], past_key_values=cache, use_cache=True)
        more: dict[str, Any] = {}
        if accepts(self.anatomy.model, "position_ids"):
            more["position_ids"] = torch.tensor([[ids.shape[1] - 1]], device=ids.device)
        logits: Tensor = self.anatomy.model(input_ids=ids[:, -1:], past_key_values=cache, use_cache=True, **more).logits
        return logits[0, -1].float()


@remembered
def _path(leaf: int) -> list[int]:
    return ([] if leaf == 0 else _path(PARENTS[leaf])) + [leaf]


def _ids(anatomy: Anatomy) -> tuple[Tensor, Tensor]:
    """Random tokens, from a generator of their own: the caller's seed is the caller's."""
    config = anatomy.config
    sizes = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    widest = max((size for size in sizes if isinstance(size, int) and size + 8 <= LONGEST), default=0)
    length = max(PROMPT, widest + 8)
    if _end(anatomy):
        length = max(1, min(length, _end(anatomy) - len(PARENTS)))
    generator = torch.Generator().manual_seed(0)
    plain = torch.tensor(sorted(set(range(anatomy.vocab)) - set(_special(anatomy.model.config.to_dict()))))
    ids = plain[torch.randint(len(plain), (length + len(PARENTS),), generator=generator)].to(anatomy.model.device)
    return ids[:length], ids[length:]


def _end(anatomy: Anatomy) -> int:
    """Positions that may be used; 0: no end is known."""
    return min((end for end in (anatomy.context, anatomy.reach) if end is not None), default=0)


def _special(config: dict[str, Any]) -> Iterator[int]:
    """Ids with a role: an image placeholder must not stand in a prompt without an image."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _special(value)
        elif isinstance(value, int) and name.endswith(("token_id", "token_index")):
            yield value


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Dropout off, and afterwards every module as it was."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
