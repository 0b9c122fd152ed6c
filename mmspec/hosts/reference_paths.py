"""The reference of the self-check: unmodified passes over whole paths of one tree and one chain.

The tree has siblings at three depths, so that neither slots nor node ids agree with depth. A second row is shorter,
because rows of a batch have different lengths. Whole paths are one row, and trees two; or both are as many rows as a
call has, for hooks that are made for these.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from mmspec.core.out_of_memory import out_of_memory
from mmspec.core.tree import TreeIndex
from mmspec.hosts.devices import device_of
from mmspec.hosts.model_info import ModelInfo, cache_name, lengths, names_argument
from mmspec.hosts.passes import Manner, Passes
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.slot_layer import BLOCK, in_blocks, windows
from mmspec.hosts.stock_generate import StockGenerate

PARENTS = (-1, 0, 0, 1, 1, 2, 3, 5)
LEAVES = (4, 6, 7)
PROMPT = 24
MISSING = 3  # the second row is shorter by so many units
ALONE = 3  # the number of one-token passes that show a model's own rounding

LONGEST, MARGIN = 96, 8
"""The longest prompt, and how far it goes beyond a length: longer ones are crossed in `mmspec.hosts.later_checks`."""


class ReferencePaths:
    """Logits of unmodified passes over whole paths, `[row, …, vocab]`."""

    def __init__(self, model_info: ModelInfo, draw: int = 0, rows: int | None = None) -> None:
        self.model_info = model_info
        # The prompt `[prompt]`, and the drafted units behind it, `[node]`
        self.ids, self.drafted = ids, drafted = random_ids(model_info, draw)
        alike = model_info.together is not None and model_info.together < len(ids) + len(drafted)
        pair = 1 if alike else 2  # rows of two lengths, where calls may have them
        self._alone, self._together = (1, pair) if rows is None else (rows, rows)  # rows of a path, and of a tree
        last, first = end_of(model_info) - len(ids) - len(drafted), 0
        if model_info.reads_both_ways:  # some of them count from 1
            first = int(self.stock(self.backwards(len(ids))).following().flatten()[0]) - len(ids)
        # The second shift is as large as the context allows, if the model takes positions as an argument.
        self.shifts = [first, last] if last > 0 and names_argument(model_info.model, "position_ids") else [first]
        self.tree = {leaf: self._whole(ids, drafted[_path(leaf)], 0)[:, -1] for leaf in LEAVES}
        self.short = self._whole(ids[MISSING:], drafted[_path(LEAVES[-1])], 0)[:, -1]
        # Logits of `drafted` as a chain, `[row, node, vocab]`, at every shift of the positions
        self.chains = [self._whole(ids, drafted, shift)[:, -len(drafted) :] for shift in self.shifts]

    def stock(self, inputs: dict[str, Tensor]) -> StockGenerate:
        """The model's own call behind the prompt."""
        return StockGenerate(self.model_info, self.ids.expand(self._alone, -1), inputs)

    def backwards(self, units: int) -> dict[str, Tensor]:
        """The argument under which so many units attend backwards alone; none where they always do."""
        if not self.model_info.reads_both_ways:
            return {}
        return {"token_type_ids": torch.ones(self._alone, units, dtype=torch.int64, device=self.ids.device)}

    def noise(self) -> float:
        """The model's own difference between a pass over the whole chain and passes over one token with a cache, which
        varies from token to token (recurrent layers; by a factor of 20 in Gemma 4).
        """
        alone = self._cached(len(self.drafted) if self.model_info.ops else ALONE)
        return float((alone - self.chains[0][:, -alone.shape[1] :]).abs().max())

    def distance(self, passes: Passes) -> float:
        """The largest difference between the logits of `passes` over tree and chains and the reference.

        If `passes` may have rings, windowed layers keep rings that hold the whole text, and attention covers more
        slots than they have: a layer that is given another mask than its window's fails.
        """
        index = TreeIndex.static(PARENTS, self.ids.device)
        cache, logits = self._drafted(passes, index, 0)
        off = max(self._apart(logits[:, leaf], whole) for leaf, whole in self.tree.items())
        off = max(off, self._apart(logits[:, LEAVES[-1]], self.short, second=True))
        for shift, whole in zip(self.shifts, self.chains, strict=True):
            _, chain = self._drafted(passes, TreeIndex.chain(len(self.drafted), self.ids.device), shift)
            off = max(off, self._apart(chain, whole))
        if cache.recurrent:
            off = max(off, self._committed(passes, cache))
        return off if off == off else float("inf")

    @staticmethod
    def _apart(logits: Tensor, whole: Tensor, second: bool = False) -> float:
        """The largest difference `[row, …]` in the rows that are not the shorter second one, or in this one alone."""
        rows = [row for row in range(len(logits)) if (row == 1) == second]
        return float((logits - whole)[rows].abs().max()) if rows else 0.0

    def allow_rings(self, manner: Manner, tolerance: float) -> bool:
        """True if the model has layers with a window, each of which is given the mask of its window."""
        if manner != "interface" or not windows(self.model_info.layers()):
            return False
        try:
            return self.distance(Passes(self.model_info, manner, rings=True)) <= tolerance
        except Exception as error:  # masks and keys do not fit together
            if out_of_memory(error):
                raise
            return False

    def _committed(self, passes: Passes, cache: SlotCache) -> float:
        """The largest difference after a commit of one path in the first row and of nothing in the second."""
        kept = _path(LEAVES[0])
        cache.scratch = True
        second = torch.arange(self._together, device=self.ids.device) == 1
        cache.commit(torch.tensor([kept[1:]] * len(second), device=self.ids.device), len(kept) * ~second)
        logits = passes(cache, self._drafts, TreeIndex.static(PARENTS, self.ids.device)).float()
        paths = torch.cat([self.drafted[kept], self.drafted[_path(LEAVES[1])]])
        after = self._whole(self.ids, paths, 0)[:, -1]
        return max(
            self._apart(logits[:, LEAVES[1]], after), self._apart(logits[:, LEAVES[-1]], self.short, second=True)
        )

    @property
    def _drafts(self) -> Tensor:
        """The drafted units of every row."""
        return self.drafted.expand(self._together, -1)

    def _drafted(self, passes: Passes, index: TreeIndex, shift: int) -> tuple[SlotCache, Tensor]:
        """A cache with the prompt and a shorter one, and logits `[row, node, vocab]` of a draft behind each of them."""
        layers, most = self.model_info.layers(), len(self.ids) + 2 * index.nodes
        kept = dict.fromkeys(windows(layers), in_blocks(most)) if passes.rings else {}
        more = BLOCK if kept else 0
        cache = SlotCache(layers, self._together, most + more, self.ids.device, bool(kept), kept)
        cache.shift = cache.shift + shift
        missing = MISSING * (torch.arange(self._together, device=self.ids.device) == 1)
        prompts = torch.where(missing[:, None] > 0, self.ids.roll(-MISSING), self.ids)
        cache.reading = True
        passes(cache, prompts, TreeIndex.chain(len(self.ids), self.ids.device))
        cache.reading = False
        idle = [i for i, layer in cache.recurrent.items() if not layer.operations]
        if idle:
            raise ValueError(f"the recurrent layers {idle} ran no operation that a plugin declares")
        path = torch.arange(1, len(self.ids), device=self.ids.device).expand(self._together, -1)
        cache.commit(path, len(self.ids) - missing)
        return cache, passes(cache, self._drafts, index).float()

    def _whole(self, prompt: Tensor, drafted: Tensor, shift: int) -> Tensor:
        """Logits `[row, unit, vocab]` of one unmodified pass without a cache."""
        ids = torch.cat([prompt, drafted]).expand(self._alone, -1)
        given = {**self._positions(0, ids, shift), **self.backwards(ids.shape[1])}
        logits: Tensor = self.model_info.model(input_ids=ids, use_cache=False, **given).logits
        return logits.float()

    def _cached(self, last: int) -> Tensor:
        """Logits `[row, last, vocab]` of the chain's last tokens, one pass a token over a cache of transformers."""
        ids = torch.cat([self.ids, self.drafted]).expand(self._alone, -1)
        cache = DynamicCache(config=self.model_info.model.config)
        logits, first = [], ids.shape[1] - last
        for begin, chunk in ((0, ids[:, :first]), *((i, ids[:, i : i + 1]) for i in range(first, ids.shape[1]))):
            places = self._positions(begin, chunk, self.shifts[0])
            given = {cache_name(self.model_info.model): cache, **places, **self.backwards(chunk.shape[1])}
            logits.append(self.model_info.model(input_ids=chunk, use_cache=True, **given).logits[:, -1].float())
        return torch.stack(logits[1:], 1)

    def _positions(self, first: int, ids: Tensor, shift: int) -> dict[str, Tensor]:
        """The positions as an argument, as `generate` passes them; empty if the model does not name it."""
        if not names_argument(self.model_info.model, "position_ids"):
            return {}
        return {"position_ids": torch.arange(first, first + ids.shape[1], device=ids.device)[None] + shift}


@lru_cache
def _path(leaf: int) -> list[int]:
    return ([] if leaf == 0 else _path(PARENTS[leaf])) + [leaf]


def random_ids(model_info: ModelInfo, draw: int, length: int = 0) -> tuple[Tensor, Tensor]:
    """Random tokens of a prompt, of `length` units or as the self-check has it, and a draft; not from torch's
    generator.
    """
    short = [size + MARGIN for size in lengths(model_info) if size + MARGIN <= LONGEST]
    length = length or max(PROMPT, *short, 0)
    if end_of(model_info):
        length = max(MISSING + 1, min(length, end_of(model_info) - len(PARENTS)))
    generator = torch.Generator().manual_seed(draw)
    special = set(_special(model_info.model.config.to_dict()))
    plain = torch.tensor(sorted(set(range(model_info.vocab)) - special) or [0], device="cpu")
    chosen = torch.randint(len(plain), (length + len(PARENTS),), generator=generator, device="cpu")
    ids = plain[chosen].to(device_of(model_info.model))
    return ids[:length], ids[length:]


def end_of(model_info: ModelInfo) -> int:
    """The number of positions that may be used; 0 if there is no limit."""
    return min((end for end in (model_info.context, model_info.reach) if end is not None), default=0)


def _special(config: dict[str, Any]) -> Iterator[int]:
    """Ids of special tokens: an image placeholder must not occur in a prompt without an image."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _special(value)
        elif isinstance(value, int) and name.endswith(("token_id", "token_index")):
            yield value
