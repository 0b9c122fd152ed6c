"""The map of a pruned vocabulary: `d2t`, which is added to a draft id, and `t2d`, which marks the ids that have one."""

import torch
from torch import Tensor


def mapped_ids(d2t: Tensor | None, t2d: Tensor | None, drafted: int, vocab: int, what: str) -> Tensor | None:
    """The target's id of each of a head's ids.

    `d2t [drafted]` int64 holds the target's id less the head's; `t2d`, `[vocab]` bool or longer, marks the ids of the
    target that the head has. Either may be None.

    Returns:
        `[drafted]` int64, ascending; None where all ids are the target's own.

    Raises:
        ValueError: The map is missing, or it is not one of this head and target.
    """
    if d2t is None:
        if drafted < vocab and t2d is not None:
            d2t = t2d.nonzero()[:, 0][:drafted] - torch.arange(int(t2d.sum()))[:drafted]
        elif drafted < vocab:
            raise ValueError(
                f"{what} scores {drafted} ids of the target's {vocab}, and has no map (d2t, t2d) of which ones"
            )
        else:
            return None
    if d2t.shape != (drafted,):
        raise ValueError(f"{what}: d2t has shape {list(d2t.shape)}, and the head scores {drafted} ids")
    ids = d2t.long() + torch.arange(drafted)
    if drafted < vocab and not bool(d2t.any()):
        raise ValueError(f"{what}: d2t is all zero, so it was never saved: the head would score ids 0 to {drafted - 1}")
    if not bool((ids.diff() > 0).all()) or int(ids[0]) < 0:
        raise ValueError(f"{what}: d2t does not give ascending ids, as a list of ids sorted by frequency would not")
    if int(ids[-1]) >= vocab:
        raise ValueError(f"{what}: d2t names id {int(ids[-1])}, and the target has {vocab}: a head of another target")
    if t2d is not None and (int(t2d.sum()) != drafted or not bool(t2d.bool()[ids.clamp(max=len(t2d) - 1)].all())):
        raise ValueError(f"{what}: d2t and t2d do not name the same ids")
    return None if drafted == vocab else ids


def over_target(scored: Tensor, ids: Tensor | None, vocab: int) -> Tensor:
    """Logits over the target's ids, -inf where a head has none.

    `scored` are logits over the head's ids, `[batch, row, drafted]`; `ids [drafted]` are the target's, None if they are
    the same.
    """
    if ids is None and scored.shape[-1] >= vocab:  # rows behind the vocabulary are padding
        return scored[..., :vocab]
    whole = scored.new_full((*scored.shape[:-1], vocab), -torch.inf)
    if ids is None:
        whole[..., : scored.shape[-1]] = scored
        return whole
    return whole.index_copy(-1, ids, scored)
