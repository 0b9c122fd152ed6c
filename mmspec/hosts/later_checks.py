"""Comparisons that wait for the first call that needs them: trees behind long texts, and padded rows of batches.

The self-check's text is short. A model may do something else from some length on, which a setting names: a window that
it applies itself, in slots, a temperature, a size of blocks. Windows of transformers' own masks are no such lengths.
Code that is no library's may hold a length that no setting names: it is compared at the length of the call.

Positions and masks hide padding from attention. A model may still count it, or a bias may write it into a convolution:
then what stock says behind it depends on the padding, while our rows are the rows alone.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.tree import TreeIndex
from mmspec.hosts.attention import model_lock
from mmspec.hosts.fingerprint import ResultsByModel, arithmetic, rounding
from mmspec.hosts.model_info import ModelInfo, names_argument
from mmspec.hosts.passes import Passes
from mmspec.hosts.prefill import prefill_chunks
from mmspec.hosts.reference_paths import LONGEST, MARGIN, end_of, random_ids
from mmspec.hosts.self_check import APART, DRAWS, in_a_line, most_rounding, unchanged
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.slot_layer import in_powers
from mmspec.hosts.stock_generate import StockGenerate

BESIDE = 2  # the root is so many units before the length that is checked, and its child and grandchild are behind it

SIBLINGS = 512  # so many nodes lie between root and child, at most: slots behind the root are not depths


@dataclass(frozen=True)
class Agreement:
    """Logits that were compared, and agreed."""

    apart: float  # their largest difference
    most: float  # the largest difference that is allowed

    def __str__(self) -> str:
        return f"logits {self.apart:.1e} apart, where rounding explains {self.most:.1e}"


_right: ResultsByModel[Agreement] = ResultsByModel()  # the lengths at which trees and paths agreed

PADDING, PROMPT, STEPS = 5, 3, 2
"""Columns of padding, and the units behind it: so few that a short convolution has padding in its window.

Over the zoo, in three dtypes, rows that do not depend on padding were 0 to 1.4 times the noise apart, and others at
least 38 times.
"""

_alike: ResultsByModel[Agreement] = ResultsByModel()  # the models whose padded rows are the rows alone


@torch.no_grad()
def compare_long(passes: Passes, units: int, rows: int) -> dict[str, Agreement]:
    """Compare a tree around every length up to `units` that the short text of the self-check does not reach, once;
    returns where, in words → what was found. Refuses a model whose logits of nodes differ from those of whole paths.
    """
    model_info, model = passes.model_info, passes.model_info.model
    found, agreed = passes.foreign, dict[str, Agreement]()
    for length, why in _lengths_of(passes, units).items():
        where = f"in a text of more than {min(length, units)} units ({why})"
        ragged = bool(found) and rows > 1 and passes.rows is None
        results, key = _right.of(model), (length, ragged, passes.manner, arithmetic(model))
        if key in results:
            agreed[where] = results[key]
            continue
        apart, most, trouble = 0.0, 0.0, ""
        with model_lock(model), unchanged(model), passes.quantised.replaced(model):
            draws = range(DRAWS if model_info.has_experts else 1)
            try:
                apart, most = min(_apart(passes, length, draw, ragged) for draw in draws)
            except Exception as error:  # of its own code, which may keep tables of that length
                trouble = f"its tree pass failed ({in_a_line(error)})"
        if not math.isfinite(most):  # the model's own scores are no numbers, which a round will say
            continue
        if not apart <= most:
            apart_by = f"differ by {apart:.1e} from whole paths' logits, where rounding explains {most:.1e}"
            trouble = f"logits of tree nodes {apart_by}"
        if trouble:
            fewer = "fewer tokens, or for one row at a time" if ragged else "fewer tokens"
            raise ValueError(
                f"{type(model).__name__} cannot verify drafts exactly {where}, so it is refused there: {trouble}; ask "
                f"for {fewer}, or disable() first"
            )
        agreed[where] = results[key] = Agreement(apart, most)
    return agreed


def _lengths_of(passes: Passes, units: int) -> dict[int, str]:
    """The lengths at which a text of so many units is compared, and why."""
    model_info, found = passes.model_info, passes.foreign
    end = min(units, end_of(model_info) or units)
    ends = {size: f"{name} of its config" for size, name in passes.lengths if size < end}
    beyond = {length: why for length, why in ends.items() if length > LONGEST - MARGIN}
    why = f"as {found} computes, which is not transformers'" if found else next(reversed(ends.values()), "")
    # Far beyond a length more may be wrong than next to it.
    return {**beyond, _bucket(model_info, units): why} if why else beyond


def _bucket(model_info: ModelInfo, units: int) -> int:
    """A length for texts of so many units, of which there are few."""
    return min(in_powers(units), (end_of(model_info) or in_powers(units)) - 1)


def _apart(passes: Passes, length: int, draw: int, ragged: bool) -> tuple[float, float]:
    """The largest difference of three nodes around a length, also in a second row that is half as long if `ragged`, and
    what rounding explains.
    """
    model_info, model, rows = passes.model_info, passes.model_info.model, 2 if ragged else passes.rows or 1
    prompt, path = random_ids(model_info, draw, length - BESIDE)
    begins = torch.tensor([0, len(prompt) // 2] if ragged else [0] * rows, device=prompt.device)
    mask = (torch.arange(len(prompt), device=prompt.device) >= begins[:, None]).long()
    prompt, path = prompt.expand(rows, -1), path[:3].expand(rows, -1)
    right = _whole(passes, torch.cat([prompt, path], 1))
    if ragged:
        right[1] = _whole(passes, torch.cat([prompt, path], 1)[1:, begins[1] :])[0]
    beside = min(SIBLINGS, length // 2)
    index = TreeIndex.static([-1, *[0] * beside, beside], prompt.device)
    cache = SlotCache(model_info.layers(), rows, length + index.nodes, prompt.device)
    prefill_chunks(passes, cache, prompt, mask)
    nodes = torch.cat([path[:, :1], path[:, 1:2].expand(-1, beside), path[:, 2:]], 1)
    ours = passes(cache, nodes, index)[:, [0, beside, beside + 1]].float()
    return float((ours - right).abs().max()), most_rounding(model, float(right.abs().max()))


def _whole(passes: Passes, whole: Tensor) -> Tensor:
    """Logits `[row, 3, vocab]` of the last units of one unmodified pass without a cache."""
    model = passes.model_info.model
    kept = {"logits_to_keep": 3} if names_argument(model, "logits_to_keep") else {}
    places = {"position_ids": torch.arange(whole.shape[1], device=whole.device).expand(len(whole), -1)}
    given = places if names_argument(model, "position_ids") else {}
    logits: Tensor = model(input_ids=whole, use_cache=False, **kept, **given).logits[:, -3:]
    return logits.float()


@torch.no_grad()
def compare_padded(passes: Passes, columns: int) -> Agreement:
    """Compare a few steps of the model behind a short prompt with and without padding, once, for code that is no
    library's as much as `columns` allow; refuses a model whose logits differ.
    """
    model_info, model = passes.model_info, passes.model_info.model
    padding = max(PADDING, _bucket(model_info, columns) - PROMPT - STEPS) if passes.foreign else PADDING
    results, kind = _alike.of(model), (padding, arithmetic(model))
    if kind in results:
        return results[kind]
    units = torch.cat(random_ids(model_info, 0))[: PROMPT + STEPS].expand(passes.rows or 1, -1)
    with model_lock(model), unchanged(model), passes.quantised.replaced(model):
        padded, alone = (_steps(passes, units, before) for before in (padding, 0))
        whole = _whole(passes, units)
    # Of the whole vocabulary: what rounding does to each logit says nothing about the largest, and less than a fault.
    steps, noise, size = (_spread(each) for each in (padded - alone, alone - whole, alone))
    most = APART * float(torch.maximum(noise, rounding(model) * size).max())
    # Rounding may make a router of experts choose otherwise, from some step on.
    apart = float(steps.min() if model_info.has_experts else steps.max())
    if math.isfinite(most) and not apart <= most:  # else its own scores are no numbers, which a round will say
        raise ValueError(
            f"{type(model).__name__} cannot verify drafts exactly in a batch with padding, so it is refused: what its "
            f"own generate says in a padded row depends on the padding (by {apart:.1e} with {padding} columns of it, "
            f"where rounding explains {most:.1e}), and drafts are verified as in the row alone; pass rows of one "
            "length, or one row at a time, or disable() first"
        )
    results[kind] = Agreement(apart, most)
    return results[kind]


def _spread(logits: Tensor) -> Tensor:
    """The root mean square of logits `[row, step, vocab]` in every step."""
    return logits.pow(2).mean((0, 2)).sqrt()


def _steps(passes: Passes, units: Tensor, padding: int) -> Tensor:
    """Logits `[row, step, vocab]` of the model's own call behind so many columns of padding."""
    filler = getattr(passes.model_info.config, "pad_token_id", None) or 0
    ids = pad(units[:, :PROMPT], (padding, 0), value=filler)
    mask = pad(torch.ones_like(units[:, :PROMPT]), (padding, 0))
    stock = StockGenerate(passes.model_info, ids, {"attention_mask": mask})
    logits = [stock.logits]
    for unit in units[:, PROMPT:].T:
        stock.step(unit)
        logits.append(stock.logits)
    return torch.stack(logits, 1).float()
