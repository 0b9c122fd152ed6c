"""PEARL's draft model on transformers models: the output is that of unmodified `generate`."""

import copy

import pytest
import torch

import mmspec
from mmspec.hosts.draft_models import drafting_target
from mmspec.testing import tiny_models
from mmspec_zoo.overlap.executors import Streams
from mmspec_zoo.overlap.overlapped import Overlapped
from tests.support.simulated import Costs, Faults, Simulated


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


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("branches, on_miss", [(1, "plain"), (4, "draft")])
def test_streams(device, branches, on_miss):
    """The draft model in a thread: what `Serial` drafts, and the output of `generate`, in several calls."""
    model, small = (copy.deepcopy(each()).to(device) for each in (tiny_models.llama, tiny_models.small))
    inputs = {name: ids.to(device) for name, ids in tiny_models.prompt([0, 1]).items()}
    call = dict(max_new_tokens=30, pad_token_id=0, eos_token_id=None, do_sample=True, top_k=12)
    reports = []
    for executor in (None, Streams()):
        drafter = Overlapped(drafting_target(small), executor, branches, on_miss=on_miss)
        with mmspec.enable(model, drafter=drafter, k=4) as spec:
            for seed in range(3):
                torch.manual_seed(seed)
                ours = model.generate(**inputs, **call)
                reports.append((ours.tolist(), spec.report.rounds, spec.report.accepted))
        assert not spec.report.faults
    assert reports[:3] == reports[3:]
    for seed in range(3):
        torch.manual_seed(seed)
        assert model.generate(**inputs, **call).tolist() == reports[seed][0]


def test_an_error_in_the_thread_ends_drafts_and_not_the_call():
    class Broken(Streams):
        def open(self, model, how):
            lane = super().open(model, how)
            lane.worker.result().run = None
            return lane

    model, inputs = tiny_models.llama(), tiny_models.prompt([0])
    call = dict(max_new_tokens=12, pad_token_id=0, eos_token_id=None, do_sample=False)
    plain = model.generate(**inputs, **call)
    with mmspec.enable(model, drafter=Overlapped(drafting_target(tiny_models.small()), Broken())) as spec:
        with pytest.warns(UserWarning, match="failed"):
            assert torch.equal(model.generate(**inputs, **call), plain)
        assert spec.report.faults and spec.report.drafted == 0
