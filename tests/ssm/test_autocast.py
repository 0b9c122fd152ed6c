"""Recurrent models under autocast: operations over trees compute in the dtypes that they state, as fused kernels do."""

from typing import Any

import pytest
import torch

from mmspec.core.types import Draft
from mmspec_ssm.target import RecurrentTarget
from tests.support.zoo import build


@pytest.mark.thinned(1)
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("name", ["mamba", "mamba2", "lfm2"])
def test_bound_inside_or_outside_and_run_inside(name: str, inside: bool) -> None:
    """A pass over a draft, and one after a commit, agree with the unmodified model under autocast."""
    model: Any = build(name, seed=1)
    ids = torch.arange(3, 15)[None]
    with torch.autocast("cpu", torch.bfloat16, enabled=inside):
        target = RecurrentTarget(model)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        state = target.start(ids[:, :8], 9, 5)
        drafted = target.verify(state.cache, Draft.chain(ids[:, 9:]).rooted(ids[:, 8], torch.tensor([9])))
        target.commit(state.cache, torch.tensor([[1, 2]]), torch.tensor([3]))
        alone = target.verify(state.cache, Draft.alone(ids[:, 11]))
        whole = model(ids).logits[:, 8:].float()
    assert drafted.logits is not None and alone.logits is not None
    for ours, theirs in ((drafted.logits, whole), (alone.logits, whole[:, 3:])):
        assert (ours - theirs).abs().max() < 0.1 * whole.abs().max()
    states = [layer.states("recurrent") for layer in state.cache.slots.recurrent.values()]
    assert all(each.dtype == torch.float32 for kept in states for each in kept.values())
