"""New prompt tokens for a target (Chen et al., arXiv 2405.18628), and their files as the authors' code writes them.

A few embeddings are learnt, and nothing else: the target reads them behind a unit of a text, and what it says at the
i-th is compared with what it says i + 1 units later in the text, by KL divergence, as in the paper; its weight falls by
the recipe's `decay` from one to the next. They begin as rows of the target's embedding, drawn by the seed. As in the
published trainer, their learning rate is 1e-2 and nothing decays. The gradient goes through the whole target.
Files: `prompt_embeddings` in `adapter_model.safetensors`, and an `adapter_config.json` of PEFT's prompt tuning with the
authors' fields.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.hidden import FINAL
from mmspec.hosts.weight_files import ADAPTER, SAFE
from mmspec_text.drafters.ppd import KEY, VARIANTS
from mmspec_text.training.fill import fill_blocks, refuse_odd_blocks
from mmspec_text.training.new_head import NewHead, half, write_files
from mmspec_text.training.recipe import DrafterRecipe


class PromptTokens(nn.Module):
    """Prompt tokens of a frozen target. It is a `FillsBlocks`: a block hangs behind the unit before each root."""

    share = 1.0

    def __init__(self, model: Any, count: int, seed: int, recompute: bool = False) -> None:
        super().__init__()
        embedding = model.get_input_embeddings()
        drawn = torch.randint(len(embedding.weight), (count,), generator=torch.Generator().manual_seed(seed))
        rows = embedding(drawn.to(embedding.weight.device)).detach().float()
        # Vectors of their own: the loop gives matrices a weight decay
        self.rows = nn.ParameterList(nn.Parameter(row.clone()) for row in rows)
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
    """Write prompt tokens for a target of that name into a folder."""
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
