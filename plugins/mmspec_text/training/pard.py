"""A draft model that fills in masks, for `pard` (An et al., arXiv 2504.18583), and its files.

Behind roots of a text the model reads masks, and learns at each of them what the target says there; at the root it
learns the next unit, as a draft model does. It begins as a new draft model, or as one of the target's tokenizer that
the recipe names (`draft_model`), which learns at a far smaller rate: the paper's is 3e-5. Of the blocks that have a
mask, a share (`block_share`, the paper's COD) have the next one, too; the paper's blocks begin behind every unit.
Differences from the paper: the target's distribution is learnt, and not the text alone (the recipe's `hard` is the
text's share); the mask is an id that texts have seldom, which the files name.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from mmspec.core.distributions import take_nodes
from mmspec.core.hidden import FINAL
from mmspec.hosts.draft_models import drafting_target, own_target, refuse_other_tokenizer
from mmspec.hosts.model_info import ModelInfo
from mmspec_text.training.dflash import mask_token_of
from mmspec_text.training.draft_model import new_draft_model, write_model
from mmspec_text.training.fill import fill_blocks, refuse_odd_blocks
from mmspec_text.training.new_head import NewHead
from mmspec_text.training.recipe import DrafterRecipe


class MaskedModel(nn.Module):
    """A draft model that learns, and the id that stands for units that are not known. It is a `FillsBlocks`."""

    def __init__(self, model: Any, mask: int, share: float, recompute: bool = False) -> None:
        super().__init__()
        self.model, self.mask, self.share, self._recompute = model, mask, share, recompute

    def masks(self, count: int) -> Tensor:
        """The embedding of the mask, so many times: `[count, hidden]`."""
        embedding: nn.Module = self.model.get_input_embeddings()
        return embedding(torch.full((count,), self.mask, device=self.model.device))

    def drafted(self, units: Tensor, roots: Tensor, kept: Sequence[int]) -> list[Tensor]:
        """Logits over all ids, at the roots and at the masks behind them; see `drafted_blocks`."""
        masks = self.masks(len(kept) - 1)
        text, blocks = fill_blocks(self.model, units, roots, masks, kept[1:], recompute=self._recompute)
        return [take_nodes(text, roots[:, : kept[0]]), *blocks]


def begun_pard(
    tokenizer: PreTrainedTokenizerBase, model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None
) -> NewHead:
    """A draft model before its training; the other arguments are as in `Begin`."""
    given = recipe.draft_model
    student = new_draft_model(model, recipe.seed) if given is None else _loaded(given, model)
    student.to(model.device).requires_grad_(True)
    named = student.config.to_dict().get("pard_token")  # of one that goes on
    mask = named if named in range(student.config.vocab_size) else mask_token_of(student)
    network = MaskedModel(student, mask, recipe.block_share, recipe.recompute)
    refuse_odd_blocks(student, recipe.context, network.masks(max(1, recipe.depth - 1)), "the draft model")
    student.config.pard_token, student.config.spd_type = mask, "pard"
    first = ModelInfo.of(student).language.layers[0]
    layers = next(key for key, module in network.named_modules() if module is first).rpartition(".")[0]
    hidden = layers if given is None else None  # what is trained already goes on by small steps of AdamW
    return NewHead(network, (FINAL,), hidden, partial(write_model, student, tokenizer))


def _loaded(name: str, model: Any) -> Any:
    """The draft model of a name, for a target."""
    small, target = drafting_target(name), own_target(model)
    refuse_other_tokenizer(small, target)
    if small.vocab != target.vocab:
        raise ValueError(
            f"the draft model {name!r} has {small.vocab} ids, and the target {target.vocab}: only one of the target's "
            "own tokens and as many ids learns from it"
        )
    return small.model
