"""A trial of a head on the user's prompt: how often its first guess is the target's."""

from typing import Any

import torch
from torch import Tensor

from mmspec.core.hidden import FINAL
from mmspec.hosts.features import Reading
from mmspec.hosts.target import TransformersTarget
from mmspec.registry.warn import warn
from mmspec_text.drafters.heads.eagle.probe import LOW, Trial
from mmspec_text.drafters.heads.pathwise.head import PathHead, PrefixHead
from mmspec_text.drafters.heads.pathwise.rows import states_of


@torch.inference_mode()
def tried(head: PathHead | PrefixHead, target: TransformersTarget, ids: Tensor) -> Trial:
    """Try a head on `ids [unit]`, without padding: one drafted unit behind every prefix."""
    with Reading(target.anatomy, (FINAL,)) as reading:
        arguments: dict[str, Any] = {"input_ids": ids[None]}
        scores = target.model(**arguments, use_cache=False).logits[0]
    assert reading.states is not None
    logits = head.logits(states_of(head, reading.states[:, :-2], ids[None, 1:-1]).transpose(0, 1))[:, 0]
    theirs = scores[1:-1, : logits.shape[-1]].argmax(-1)  # the unit behind x_{t+1}, which row t guesses
    right = float((logits.argmax(-1) == theirs.to(logits.device)).float().mean())
    return Trial(len(theirs), {"boundary": right}, "boundary")


def report(trial: Trial, name: str) -> None:
    """Warn if the head guesses badly."""
    best = trial.right[trial.chosen]
    if best < LOW:
        warn(
            f"the head {name!r} guesses {best:.0%} of this prompt ({trial.units} tokens) as the target continues it. "
            "It may be a head of another target, or have been trained with another chat template or thinking mode"
        )
