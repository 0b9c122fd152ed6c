"""A new EAGLE-3 head for a target, and the loss that it is trained with.

Li et al., arXiv 2503.01840, § 3.1: the head is unrolled over the text, and at every depth its distribution is compared
with the target's. Embedding and, with the whole vocabulary, output layer are the target's and stay as they are. A new
head begins where its own states are the target's last ones, so that it scores at first as the target's output layer
does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.training.losses import DraftLoss, draft_loss
from mmspec_text.drafters.heads.eagle.architecture import Architecture
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.unroll import unrolled
from mmspec_text.training.teacher import Teacher


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of a new head; its states are as wide as the target's.

    Attributes:
        intermediate: Numbers inside its MLP.
        heads: Attention heads.
        key_heads: Heads of keys and values.
        head_dim: Numbers of an attention head.
    """

    intermediate: int = 512
    heads: int = 4
    key_heads: int = 1
    head_dim: int = 64


def usual_boundaries(layers: int) -> tuple[int, ...]:
    """An early, a middle and the last boundary of a target with so many layers."""
    return tuple(sorted({min(2, layers), (layers + 2) // 2, layers}))


def new_head(model: Any, boundaries: Sequence[int], sizes: HeadSizes, ids: Tensor | None, seed: int) -> EagleNetwork:
    """A head before training.

    Args:
        model: The target.
        boundaries: Of the states that it reads.
        sizes: Its sizes.
        ids: `[draft vocabulary]` int64, ascending: the ids that it scores; None: all of them, with the target's output
            layer.
        seed: Of the random weights.
    """
    config = model.config.get_text_config(decoder=True)
    hidden, vocab = config.hidden_size, config.vocab_size
    architecture = Architecture(
        hidden=hidden,
        intermediate=sizes.intermediate,
        heads=sizes.heads,
        key_heads=sizes.key_heads,
        head_dim=sizes.head_dim,
        layers=1,
        vocab=vocab,
        draft_vocab=vocab if ids is None else len(ids),
        features=len(boundaries),
        target_hidden=hidden,
        fused=True,
        projected=True,
        own_embedding=False,
        own_output=ids is not None,
        final_norm=True,
        embedding_norm=False,
        first_norms=frozenset({"input_layernorm", "hidden_norm"}),
        norm_before_residual=True,
        fc_norm=True,
        rope={"rope_type": "default", "rope_theta": 10000.0},
    )
    generator = torch.Generator().manual_seed(seed)
    head = EagleNetwork(architecture, vocab)
    for name, weights in head.named_parameters():
        if weights.dim() > 1:
            nn.init.normal_(weights, std=0.02, generator=generator)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.zeros_(weights)
    with torch.no_grad():
        head.fc.weight[:, -hidden:] += torch.eye(hidden)
        if ids is not None and head.lm_head is not None:
            head.lm_head.weight.copy_(model.get_output_embeddings().weight[ids])
    head.ids = ids
    head.join(model.get_input_embeddings(), model.get_output_embeddings(), model.device, torch.float32)
    return head


def head_loss(teacher: Teacher, loss: DraftLoss, steps: int) -> Callable[[nn.Module, Tensor], Tensor]:
    """The loss of a head on ids `[sequence, unit]`: the mean over the depths of a draft, by their weights.

    Args:
        teacher: Its target.
        loss: The loss at one depth.
        steps: Units of a draft.
    """
    weights = sum(loss.decay**depth for depth in range(steps))

    def of(model: nn.Module, ids: Tensor) -> Tensor:
        assert isinstance(model, EagleNetwork)
        features, logits = teacher(ids)
        assert features is not None
        p, units = over_own_ids(model, logits.softmax(-1), ids)
        known = units.new_ones(1, dtype=torch.bool)
        total = p.new_zeros(())
        for depth, states in enumerate(unrolled(model, features, ids, steps)):
            rows = states.shape[1]
            theirs = p[:, depth + 1 : depth + 1 + rows]
            following = units[:, depth + 2 : depth + 2 + rows]
            if following.shape[1] < rows:  # the last row's unit is behind the text
                following = nn.functional.pad(following, (0, 1), value=-1)
            mask = known.expand(theirs.shape[:2])
            total = total + draft_loss(model.scored(states), theirs, mask, depth, loss, following)
        return total / weights

    return of


def over_own_ids(head: EagleNetwork, p: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
    """A distribution `[…, vocab]` and units `[…]` over the ids that a head scores; units without one are -1."""
    if head.ids is None:
        return p, units
    place = units.new_full((p.shape[-1],), -1).index_copy(0, head.ids, torch.arange(len(head.ids), device=units.device))
    return p[..., head.ids], place[units]
