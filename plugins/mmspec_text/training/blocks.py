"""Drafters that fill in blocks: prompt tokens of a target, and draft models that fill in masks.

In one pass over the text a chain of fillers hangs behind every root, at the positions that follow. Fillers see the text
up to their root and the fillers before them in their block, and no unit of the text sees one: a block is what the model
says in a pass that ends there. PARD's fillers are masks, PPD's are prompt tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedTokenizerBase

from mmspec.core.distributions import take_nodes
from mmspec.core.hidden import FINAL
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.weight_files import ADAPTER, SAFE
from mmspec.registry.printable import shown
from mmspec_text.drafters.ppd import KEY, VARIANTS
from mmspec_text.training.draft_model import begun_model, write_model
from mmspec_text.training.new_head import NewHead, half, write_files
from mmspec_text.training.new_heads import mask_token_of
from mmspec_text.training.recipe import DrafterRecipe

ODD = 0.05
"""Differences of a block from a pass of its own above which a model is refused, as a share of what it says there."""


def fill_blocks(
    model: Any,
    units: Tensor,
    roots: Tensor,
    fillers: Tensor,
    kept: Sequence[int],
    *,
    text: bool = True,
    recompute: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """A model's scores of a text `[batch, unit, vocab]`, if `text` asks for them, and at fillers behind its roots.

    `roots [batch, root]` are places in the text; `fillers [filler, hidden]` stand in the place of units' embeddings, in
    the order of a block, and `kept` says how many of the roots, the first ones, have each filler, for which there are
    scores `[batch, root, vocab]`. `recompute` runs layers again for the gradient.
    """
    (batch, known), device = units.shape, units.device
    nodes = [(root, depth) for depth, count in enumerate(kept) for root in range(count)]
    block, depth = torch.tensor(nodes, dtype=torch.int64, device=device).view(-1, 2).unbind(1)
    end, place = roots[:, block], torch.arange(known, device=device)
    position = torch.cat([place.expand(batch, -1), end + 1 + depth], 1)
    inputs = model.get_input_embeddings()(units)
    inputs = torch.cat([inputs, fillers.to(inputs.dtype)[depth].expand(batch, -1, -1)], 1)
    sees = torch.zeros(batch, known + len(nodes), known + len(nodes), dtype=torch.bool, device=device)
    sees[:, :known, :known] = place[:, None] >= place
    sees[:, known:, :known] = place <= end[:, :, None]
    sees[:, known:, known:] = (block[:, None] == block) & (depth[:, None] >= depth)
    mask = torch.zeros_like(sees, dtype=inputs.dtype).masked_fill(~sees, torch.finfo(inputs.dtype).min)[:, None]
    how = {"attention_mask": mask, "position_ids": position, "use_cache": False}
    with recomputed(model) if recompute else nullcontext():
        scored = model(inputs_embeds=inputs, logits_to_keep=0 if text else len(nodes), **how).logits
    first = scored.shape[1] - len(nodes)
    return scored[:, :first], list(scored[:, first:].split(list(kept), 1))


@contextmanager
def recomputed(model: Any) -> Iterator[None]:
    """A block in which the layers of a live model keep their inputs alone, and run again for the gradient."""
    layers = ModelInfo.of(model).language.layers
    own = [(vars(layer), vars(layer).get("forward")) for layer in layers]
    for layer in layers:
        vars(layer)["forward"] = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for members, forward in own:
            members.pop("forward")
            members.update({} if forward is None else {"forward": forward})


@torch.no_grad()
def refuse_odd_blocks(model: Any, length: int, fillers: Tensor, what: str) -> None:
    """Refuse a model whose blocks behind a text of so many units are not what it says in passes of their own."""
    embedding, count, kind = model.get_input_embeddings(), len(fillers), type(model).__name__
    units = torch.arange(length, device=fillers.device)[None] % len(embedding.weight)
    roots = torch.tensor([[length // 2, length - 1]], device=fillers.device)
    try:
        _, levels = fill_blocks(model, units, roots, fillers, [2] * count)
    except (TypeError, ValueError, IndexError) as error:  # models raise whatever they make of a mask of this form
        raise ValueError(f"{what} ({kind}) takes no blocks behind a text: {shown(error)}") from error
    for row, root in enumerate(roots[0].tolist()):
        inputs = torch.cat([embedding(units[0, : root + 1]), fillers.to(embedding.weight.dtype)])[None]
        theirs = model(inputs_embeds=inputs, use_cache=False).logits[0, -count:].float()
        if not (torch.stack([level[0, row] for level in levels]) - theirs).norm() <= ODD * theirs.norm():
            raise ValueError(
                f"{what} ({kind}) says other things in a pass over many blocks than in a pass of one: it has states, "
                "windows shorter than a sequence (context), or positions of its own"
            )


def drawn_rows(model: Any, count: int, seed: int) -> Tensor:
    """So many rows of a target's embedding, drawn by a seed: `[row, hidden]` float32."""
    embedding = model.get_input_embeddings()
    drawn = torch.randint(len(embedding.weight), (count,), generator=torch.Generator().manual_seed(seed))
    rows: Tensor = embedding(drawn.to(embedding.weight.device))
    return rows.detach().float()


class PromptTokens(nn.Module):
    """Prompt tokens of a frozen target. It is a `FillsBlocks`: a block hangs behind the unit before each root.

    Chen et al., arXiv 2405.18628: a few embeddings are learnt, and nothing else. What the target says at the i-th is
    compared with what it says i + 1 units later in the text, by KL divergence; its weight falls by the recipe's `decay`
    from one to the next. They begin as rows of the target's embedding, drawn by the seed. As in the published trainer,
    their learning rate is 1e-2 and nothing decays. The gradient goes through the whole target.
    """

    share = 1.0

    def __init__(self, model: Any, count: int, seed: int, recompute: bool = False) -> None:
        super().__init__()
        # Vectors of their own: the loop gives matrices a weight decay
        self.rows = nn.ParameterList(nn.Parameter(row.clone()) for row in drawn_rows(model, count, seed))
        self._fill = partial(fill_blocks, model, text=False, recompute=recompute)  # where torch does not adopt it

    @property
    def embeddings(self) -> Tensor:
        """`[prompt token, hidden]`."""
        return torch.stack(list(self.rows))

    def drafted(self, units: Tensor, roots: Tensor, kept: Sequence[int]) -> list[Tensor]:
        """Logits over the target's ids, at each prompt token; see `drafted_blocks`."""
        return self._fill(units, roots - 1, self.embeddings, kept)[1]


def begun_ppd(model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
    """As many prompt tokens as a draft is deep; arguments as in `Begin`."""
    network = PromptTokens(model, recipe.depth, recipe.seed, recipe.recompute)
    refuse_odd_blocks(model, recipe.context, network.embeddings.detach(), "the target")
    return NewHead(network, (FINAL,), None, partial(write_ppd, network, name))


def write_ppd(tokens: PromptTokens, target: str, folder: Path) -> None:
    """Write prompt tokens for a target of that name into a folder, as the authors' code does.

    That is `prompt_embeddings`, and a config of PEFT's prompt tuning with the authors' fields.
    """
    embeddings = half(tokens.embeddings)
    count, hidden = embeddings.shape
    config = {
        "peft_type": "PROMPT_TUNING",
        "base_model_name_or_path": target,
        "prompt_tuning_init": "RANDOM",
        "num_special_tokens": count,
        "num_virtual_tokens": count,
        "token_dim": hidden,
        "vt_attention_type": "decoder",
        "aggregation_type": "mean",
        **VARIANTS,
    }
    write_files({KEY: embeddings}, config, folder, f"adapter_model{SAFE}", ADAPTER)


class MaskedModel(nn.Module):
    """A draft model that learns, and the id that stands for units that are not known. It is a `FillsBlocks`.

    PARD (An et al., arXiv 2504.18583): behind roots of a text the model reads masks, and learns at each of them what
    the target says there; at the root it learns the next unit, as a draft model does. Of the blocks that have a mask, a
    share (`block_share`, the paper's COD) have the next one, too; the paper's blocks begin behind every unit.
    Differences from the paper: the target's distribution is learnt, and not the text alone (the recipe's `hard` is the
    text's share); the mask is an id that texts have seldom, which the files name.
    """

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
    """A draft model before its training; the other arguments are as in `Begin`.

    It is new, or one of the target's tokenizer that the recipe names (`draft_model`), which learns at a far smaller
    rate: the paper's is 3e-5.
    """
    student = begun_model(model, recipe)
    named = student.config.to_dict().get("pard_token")  # of one that goes on
    mask = named if named in range(student.config.vocab_size) else mask_token_of(student)
    network = MaskedModel(student, mask, recipe.block_share, recipe.recompute)
    refuse_odd_blocks(student, recipe.context, network.masks(max(1, recipe.depth - 1)), "the draft model")
    student.config.pard_token, student.config.spd_type = mask, "pard"
    first = ModelInfo.of(student).language.layers[0]
    layers = next(key for key, module in network.named_modules() if module is first).rpartition(".")[0]
    hidden = layers if recipe.draft_model is None else None  # what is trained already goes on by small steps of AdamW
    return NewHead(network, (FINAL,), hidden, partial(write_model, student, tokenizer))
