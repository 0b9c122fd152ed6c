"""PEARL's draft model on transformers models: the output is that of unmodified `generate`."""

import pytest
import torch

import mmspec
from mmspec.core.drafters.overlapped import Overlapped
from mmspec.core.overlap.executors import Costs, Faults, Simulated
from mmspec.hosts.draft_models import drafting_target
from mmspec.testing import tiny_models


@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "temperature": 0.8, "top_k": 12}])
@pytest.mark.parametrize("own", [True, False])
def test_equal_to_unmodified_generate(own, sampling):
    model, inputs = tiny_models.llama(), tiny_models.prompt([0, 1])
    small = model if own else tiny_models.small()
    executor = Simulated(Costs(1.0, 3.0), 1, Faults() if own else Faults(late=0.2, doubled=0.2, lost=0.2, dropped=0.2))
    call = dict(max_new_tokens=21, pad_token_id=0, eos_token_id=None, **sampling)
    torch.manual_seed(3)
    plain = model.generate(**inputs, **call)
    after = torch.rand(1)
    with mmspec.enable(model, drafter=Overlapped(drafting_target(small), executor), k=4) as spec:
        torch.manual_seed(3)
        ours = model.generate(**inputs, **call)
        assert torch.equal(after, torch.rand(1))
    assert torch.equal(plain, ours) and not spec.report.faults
    if own:  # prefill 1, pre-verify 1, then 4 a round
        assert spec.report.accepted == spec.report.drafted and spec.report.rounds == 6
