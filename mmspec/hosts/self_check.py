"""Does this very model verify trees? One tree and one chain against unmodified passes over whole paths, on first use.

A wrong mask, a distance measured in slots (ALiBi), a position taken from the cache's length: all are silent, and all
show here; of recurrent layers a commit is looked at too. The tolerance is relative to the model's own noise between a
one-token and an N-token pass; above it the model is refused, with the number. Results are kept per class, config,
attention, recurrent operations, dtype and device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache as remembered
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from mmspec.core.tree import TreeIndex
from mmspec.hosts.anatomy import Anatomy
from mmspec.hosts.attention import holding
from mmspec.hosts.dispatch import undeclared
from mmspec.hosts.passes import MANNERS, Passes, cache_name, names
from mmspec.hosts.slot_cache import SlotCache

PARENTS = (-1, 0, 0, 1, 1, 2, 3, 5)
"""The tree: siblings at three depths, so that neither slots nor node order agree with depth."""

LEAVES = (4, 6, 7)
PROMPT = 24
MISSING = 3
"""By how much a second row is shorter: rows of a batch have lengths of their own."""

LONGEST = 96
SLACK = 16.0
"""Times the model's own noise that a tree may differ."""

CEILING = 1e-3
"""Of the largest logit: more is no rounding, whatever the model's noise seems to be."""


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
    with holding(model):
        finding = _finding(anatomy)
    if finding.passes is None:
        slots = "alibi" in model.config.to_json_string(use_diff=False) or model.config.model_type in ("bloom", "mpt")
        hint = "; it measures distance by cache slot (ALiBi), which a tree breaks" if slots else _undeclared(anatomy)
        saw = finding.trouble or (
            f"logits of tree nodes differ by {finding.error:.1e} from those of whole paths, where rounding explains "
            f"{finding.tolerance:.1e}"
        )
        raise ValueError(f"{type(model).__name__} cannot verify drafts exactly, so it is refused: {saw}{hint}")
    return Passes(anatomy, finding.passes.manner)


def _undeclared(anatomy: Anatomy) -> str:
    """Where recurrent layers are wrong: what no plugin says of them."""
    if not anatomy.ops:
        return ""
    known, others = undeclared(anatomy.model, anatomy.ops)
    return (
        f"; of the functions that its recurrent layers call, plugins declare {', '.join(known)} over a tree "
        f"(mmspec_tree_ops), and not {', '.join(others) or 'any other'}"
    )


def _finding(anatomy: Anatomy) -> Finding:
    """What the check saw of a model like this one."""
    model = anatomy.model
    key = (
        type(model),
        model.config.to_json_string(use_diff=False),
        anatomy.config._attn_implementation,
        model.dtype,
        str(model.device),
        model.__dict__.get("hf_quantizer") is not None,
        tuple((name, type(op)) for name, op in anatomy.ops.items()),
    )
    if key not in _found:
        _found[key] = examine(anatomy)
    return _found[key]


@torch.no_grad()
def examine(anatomy: Anatomy) -> Finding:
    """Compare; see the module."""
    ids, drafted = _ids(anatomy)
    with _evaluating(anatomy.model):
        try:
            paths = _Paths(anatomy, ids, drafted)
            noise, scale = paths.noise(), float(paths.chains[0].abs().max())
        except Exception as error:
            return Finding(None, 0.0, 0.0, f"its unmodified pass failed ({type(error).__name__}: {error})")
        if not bool(paths.chains[0].isfinite().all()):
            return Finding(None, 0.0, 0.0, "its own logits are NaN or infinite; check the weights and the dtype")
        # Norms and softmaxes are computed in float32 in models of any dtype.
        eps = max(torch.finfo(dtype).eps for dtype in (anatomy.model.dtype, torch.float32))
        tolerance, most = SLACK * max(noise, eps * scale), max(CEILING, SLACK * eps) * scale
        if noise > most:
            return Finding(None, noise, most, f"over its cache, its own logits are off by {noise:.1e}")
        tolerance = min(tolerance, most)
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
        self.shifts = [0, last] if last > 0 and names(anatomy.model, "position_ids") else [0]
        self.tree = {leaf: self._whole(ids, drafted[_path(leaf)], 0)[-1] for leaf in LEAVES}
        self.short = self._whole(ids[MISSING:], drafted[_path(LEAVES[-1])], 0)[-1]
        self.chains = [self._whole(ids, drafted, shift)[-len(drafted) :] for shift in self.shifts]

    def noise(self) -> float:
        """The model's own: a whole pass against one token over a cache; from a state, errors come and go."""
        alone = self._cached(len(self.drafted) if self.anatomy.ops else 1)
        return float((alone - self.chains[0][-len(alone) :]).abs().max())

    def distance(self, passes: Passes) -> float:
        """Largest difference of tree and chains in `passes`."""
        index = TreeIndex.static(PARENTS, self.ids.device)
        cache, logits = self._drafted(passes, index, 0)
        off = max(float((logits[0, leaf] - whole).abs().max()) for leaf, whole in self.tree.items())
        off = max(off, float((logits[1, LEAVES[-1]] - self.short).abs().max()))
        for shift, whole in zip(self.shifts, self.chains, strict=True):
            _, chain = self._drafted(passes, TreeIndex.chain(len(self.drafted), self.ids.device), shift)
            off = max(off, float((chain[0] - whole).abs().max()))
        if cache.recurrent:
            off = max(off, self._committed(passes, cache))
        return off if off == off else float("inf")

    def _committed(self, passes: Passes, cache: SlotCache) -> float:
        """Largest difference after a tree's path was committed in the first row and nothing in the second."""
        kept = _path(LEAVES[0])
        cache.scratch = True
        count = torch.tensor([len(kept), 0], device=self.ids.device)
        cache.commit(torch.tensor([kept[1:]] * 2, device=self.ids.device), count)
        logits = passes(cache, self.drafted.expand(2, -1), TreeIndex.static(PARENTS, self.ids.device)).float()
        paths = torch.cat([self.drafted[kept], self.drafted[_path(LEAVES[1])]])
        after, empty = self._whole(self.ids, paths, 0)[-1], self.short
        distances = logits[0, LEAVES[1]] - after, logits[1, LEAVES[-1]] - empty
        return max(float(distance.abs().max()) for distance in distances)

    def _drafted(self, passes: Passes, index: TreeIndex, shift: int) -> tuple[SlotCache, Tensor]:
        """Logits `[2, node, vocab]`: after the prompt, and beside it after a shorter one; and the cache behind them."""
        cache = SlotCache(self.anatomy.layers(), 2, len(self.ids) + 2 * index.nodes, self.ids.device)
        cache.shift = cache.shift + shift
        prompts = torch.stack([self.ids, self.ids.roll(-MISSING)])
        passes(cache, prompts, TreeIndex.chain(len(self.ids), self.ids.device))
        idle = [i for i, layer in cache.recurrent.items() if not layer.folds]
        if idle:
            raise ValueError(f"the recurrent layers {idle} ran no operation that a plugin declares")
        path = torch.arange(1, len(self.ids), device=self.ids.device).expand(2, -1)
        cache.commit(path, len(self.ids) - torch.tensor([0, MISSING], device=self.ids.device))
        return cache, passes(cache, self.drafted.expand(2, -1), index).float()

    def _whole(self, prompt: Tensor, drafted: Tensor, shift: int) -> Tensor:
        ids = torch.cat([prompt, drafted])[None]
        logits: Tensor = self.anatomy.model(input_ids=ids, use_cache=False, **self._positions(0, ids, shift)).logits
        return logits[0].float()

    def _cached(self, last: int) -> Tensor:
        """Logits after the last tokens of the whole chain, each alone over a cache of transformers: `[last, vocab]`."""
        ids, cache = torch.cat([self.ids, self.drafted])[None], DynamicCache(config=self.anatomy.model.config)
        logits, first = [], ids.shape[1] - last
        for begin, chunk in ((0, ids[:, :first]), *((i, ids[:, i : i + 1]) for i in range(first, ids.shape[1]))):
            given = {cache_name(self.anatomy.model): cache, **self._positions(begin, chunk, 0)}
            logits.append(self.anatomy.model(input_ids=chunk, use_cache=True, **given).logits[0, -1].float())
        return torch.stack(logits[1:])

    def _positions(self, first: int, ids: Tensor, shift: int) -> dict[str, Tensor]:
        """As `generate` passes them, by name only: without, some models count from elsewhere."""
        if not names(self.anatomy.model, "position_ids"):
            return {}
        return {"position_ids": torch.arange(first, first + ids.shape[1], device=ids.device)[None] + shift}


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
        length = max(MISSING + 1, min(length, _end(anatomy) - len(PARENTS)))
    generator = torch.Generator().manual_seed(0)
    special = set(_special(anatomy.model.config.to_dict()))
    plain = torch.tensor(sorted(set(range(anatomy.vocab)) - special) or [0], device="cpu")
    chosen = torch.randint(len(plain), (length + len(PARENTS),), generator=generator, device="cpu")
    ids = plain[chosen].to(anatomy.model.device)
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
