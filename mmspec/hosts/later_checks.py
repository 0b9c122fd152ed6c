"""Comparisons that wait for the first call that needs them: trees behind long texts, and padded rows of batches.

The self-check's text is short. A model may do something else from some length on, which a setting names: a window that
it applies itself, in slots, a temperature, a size of blocks. Windows of transformers' own masks are no such lengths.

Positions and masks hide padding from attention. A model may still count it, or a bias may write it into a convolution:
then what stock says behind it depends on the padding, while our rows are the rows alone.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from mmspec.core.tree import TreeIndex
from mmspec.hosts.attention import model_lock
from mmspec.hosts.fingerprint import ResultsByModel, arithmetic
from mmspec.hosts.passes import Passes, names_argument
from mmspec.hosts.prefill import prefill_chunks
from mmspec.hosts.reference_paths import LONGEST, MARGIN, end_of, lengths, random_ids
from mmspec.hosts.self_check import APART, DRAWS, most_rounding, unchanged
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.slot_layer import windows
from mmspec.hosts.stock_generate import StockGenerate

BESIDE = 2
"""The root is so many units before the length that is checked, and its child and grandchild are behind it."""

SIBLINGS = 512
"""So many nodes lie between root and child, at most: slots behind the root are not depths."""


@dataclass(frozen=True)
class Agreement:
    """Logits that were compared, and agreed."""

    apart: float  # their largest difference
    most: float  # the largest difference that is allowed

    def __str__(self) -> str:
        return f"logits {self.apart:.1e} apart, where rounding explains {self.most:.1e}"


_right: ResultsByModel[Agreement] = ResultsByModel()
"""The lengths at which trees and paths agreed."""

PADDING, PROMPT, STEPS = 5, 3, 2
"""Columns of padding, and the units behind it: so few that a short convolution has padding in its window."""

_alike: ResultsByModel[Agreement] = ResultsByModel()
"""The models whose padded rows are the rows alone."""


@torch.no_grad()
def compare_long(passes: Passes, units: int) -> dict[str, Agreement]:
    """Compare a tree around every length up to `units` that the short text of the self-check does not reach, once.

    Returns:
        Setting and length → what was found.

    Raises:
        ValueError: The logits of nodes differ from those of whole paths.
    """
    model_info = passes.model_info
    end, model, found = end_of(model_info), model_info.model, dict[str, Agreement]()
    for length, name in sorted(lengths(model_info).items()):
        if not LONGEST - MARGIN < length < min(units, end or units):
            continue
        results, key = _right.of(model), (length, passes.manner, arithmetic(model))
        if passes.manner == "interface" and length in windows(model_info.layers()):
            continue
        if key in results:
            found[f"{name}={length}"] = results[key]
            continue
        with model_lock(model), unchanged(model), passes.quantised.replaced(model):
            apart, most = min(_apart(passes, length, draw) for draw in range(DRAWS if model_info.has_experts else 1))
        if not apart <= most:
            raise ValueError(
                f"{type(model).__name__} cannot verify drafts exactly in a text of more than {length} units "
                f"({name} of its config), so it is refused there: logits of tree nodes differ by {apart:.1e} from "
                f"whole paths' logits, where rounding explains {most:.1e}; ask for fewer tokens, or disable() first"
            )
        found[f"{name}={length}"] = results[key] = Agreement(apart, most)
    return found


def _apart(passes: Passes, length: int, draw: int) -> tuple[float, float]:
    """The largest difference of three nodes around a length, and what rounding explains."""
    model_info, model, rows = passes.model_info, passes.model_info.model, passes.rows or 1
    prompt, path = random_ids(model_info, draw, length - BESIDE)
    prompt, path = prompt.expand(rows, -1), path[:3].expand(rows, -1)
    whole = torch.cat([prompt, path], 1)
    kept = {"logits_to_keep": 3} if names_argument(model, "logits_to_keep") else {}
    places = {"position_ids": torch.arange(whole.shape[1], device=whole.device).expand(rows, -1)}
    given = places if names_argument(model, "position_ids") else {}
    right = model(input_ids=whole, use_cache=False, **kept, **given).logits[:, -3:].float()
    beside = min(SIBLINGS, length // 2)
    index = TreeIndex.static([-1, *[0] * beside, beside], whole.device)
    cache = SlotCache(model_info.layers(), rows, length + index.nodes, whole.device)
    prefill_chunks(passes, cache, prompt, torch.ones_like(prompt))
    nodes = torch.cat([path[:, :1], path[:, 1:2].expand(-1, beside), path[:, 2:]], 1)
    ours = passes(cache, nodes, index)[:, [0, beside, beside + 1]].float()
    return float((ours - right).abs().max()), most_rounding(model, float(right.abs().max()))


@torch.no_grad()
def compare_padded(passes: Passes) -> Agreement:
    """Compare a few steps of the model behind a short prompt with and without padding, once.

    Raises:
        ValueError: The logits differ.
    """
    model_info, model = passes.model_info, passes.model_info.model
    results, kind = _alike.of(model), arithmetic(model)
    if kind in results:
        return results[kind]
    units = torch.cat(random_ids(model_info, 0))[: PROMPT + STEPS].expand(passes.rows or 1, -1)
    with model_lock(model), unchanged(model), passes.quantised.replaced(model):
        padded, alone = (_steps(passes, units, padding) for padding in (PADDING, 0))
        whole = model(input_ids=units, use_cache=False).logits[:, PROMPT - 1 :].float()
    most = max(most_rounding(model, float(alone.abs().max())), APART * float((alone - whole).abs().max()))
    steps = (padded - alone).abs().amax(-1)
    # Rounding may make a router of experts choose otherwise, from some step on.
    apart = float((steps.amin(1) if model_info.has_experts else steps).max())
    if not apart <= most:
        raise ValueError(
            f"{type(model).__name__} cannot verify drafts exactly in a batch with padding, so it is refused: what its "
            f"own generate says in a padded row depends on the padding (by {apart:.1e} with {PADDING} columns of it, "
            f"where rounding explains {most:.1e}), and drafts are verified as in the row alone; pass rows of one "
            "length, or one row at a time, or disable() first"
        )
    results[kind] = Agreement(apart, most)
    return results[kind]


def _steps(passes: Passes, units: torch.Tensor, padding: int) -> torch.Tensor:
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
