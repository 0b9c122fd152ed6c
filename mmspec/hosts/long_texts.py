"""Trees behind long texts, compared with whole paths when a call first gets there.

The self-check's text is short. A model may do something else from some length on, which a setting names: a window that
it applies itself, in slots, a temperature, a size of blocks. Windows of transformers' own masks are no such lengths.
"""

import torch

from mmspec.core.tree import TreeIndex
from mmspec.hosts.attention import model_lock
from mmspec.hosts.fingerprint import ResultsByModel, arithmetic
from mmspec.hosts.passes import Passes, names_argument
from mmspec.hosts.prefill import prefill_chunks
from mmspec.hosts.reference_paths import LONGEST, MARGIN, end_of, lengths, random_ids
from mmspec.hosts.self_check import DRAWS, most_rounding, unchanged
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.slot_layer import windows

BESIDE = 2
"""The root is so many units before the length that is checked, and its child and grandchild are behind it."""

SIBLINGS = 512
"""So many nodes lie between root and child, at most: slots behind the root are not depths."""

_right: ResultsByModel[bool] = ResultsByModel()
"""The lengths at which trees and paths agreed."""


@torch.no_grad()
def compare_long(passes: Passes, units: int) -> None:
    """Compare a tree around every length up to `units` that the short text of the self-check does not reach, once.

    Raises:
        ValueError: The logits of nodes differ from those of whole paths.
    """
    model_info = passes.model_info
    end, model = end_of(model_info), model_info.model
    for length, name in sorted(lengths(model_info).items()):
        if not LONGEST - MARGIN < length < min(units, end or units):
            continue
        results, key = _right.of(model), (length, passes.manner, arithmetic(model))
        if key in results or (passes.manner == "interface" and length in windows(model_info.layers())):
            continue
        with model_lock(model), unchanged(model), passes.quantised.replaced(model):
            apart, most = min(_apart(passes, length, draw) for draw in range(DRAWS if model_info.has_experts else 1))
        if not apart <= most:
            raise ValueError(
                f"{type(model).__name__} cannot verify drafts exactly in a text of more than {length} units "
                f"({name} of its config), so it is refused there: logits of tree nodes differ by {apart:.1e} from "
                f"whole paths' logits, where rounding explains {most:.1e}; ask for fewer tokens, or disable() first"
            )
        results[key] = True


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
