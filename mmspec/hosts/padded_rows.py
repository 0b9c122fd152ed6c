"""A padded row of a batch in the unmodified model, compared with the row alone when the first such batch comes.

Positions and masks hide padding from attention. A model may still count it, or a bias may write it into a convolution:
then what stock says behind it depends on the padding, while our rows are the rows alone.
"""

import torch

from mmspec.hosts.attention import model_lock
from mmspec.hosts.fingerprint import ResultsByModel, arithmetic
from mmspec.hosts.passes import Passes
from mmspec.hosts.reference_paths import random_ids
from mmspec.hosts.self_check import APART, most_rounding, unchanged
from mmspec.hosts.stock_generate import StockGenerate

PADDING, PROMPT, STEPS = 5, 3, 2
"""Columns of padding, and the units behind it: so few that a short convolution has padding in its window."""

_alike: ResultsByModel[bool] = ResultsByModel()
"""The models whose padded rows are the rows alone."""


@torch.no_grad()
def compare_padded(passes: Passes) -> None:
    """Compare a few steps of the model behind a short prompt with and without padding, once.

    Raises:
        ValueError: The logits differ.
    """
    model_info, model = passes.model_info, passes.model_info.model
    results, kind = _alike.of(model), arithmetic(model)
    if kind in results:
        return
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
    results[kind] = True


def _steps(passes: Passes, units: torch.Tensor, padding: int) -> torch.Tensor:
    """Logits `[row, step, vocab]` of the model's own call behind so many columns of padding."""
    pad = getattr(passes.model_info.config, "pad_token_id", None) or 0
    ids = torch.nn.functional.pad(units[:, :PROMPT], (padding, 0), value=pad)
    mask = torch.nn.functional.pad(torch.ones_like(units[:, :PROMPT]), (padding, 0))
    stock = StockGenerate(passes.model_info, ids, {"attention_mask": mask})
    logits = [stock.logits]
    for unit in units[:, PROMPT:].T:
        stock.step(unit)
        logits.append(stock.logits)
    return torch.stack(logits, 1).float()
