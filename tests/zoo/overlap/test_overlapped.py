"""PEARL's draft model on transformers models: the output is that of unmodified `generate`."""

import contextlib
import copy
import os
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import pytest
import torch

import mmspec
from mmspec.api.build import decoder_for
from mmspec.bench import timing
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.draft_models import drafting_target
from mmspec.testing import tiny_models
from mmspec_zoo.overlap import pearl, process
from mmspec_zoo.overlap.executors import Streams
from mmspec_zoo.overlap.overlapped import Overlapped
from mmspec_zoo.overlap.worker import serve
from tests.support import random_models
from tests.support.examples import zoo
from tests.support.simulated import Costs, Faults, Simulated


@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "temperature": 0.8, "top_k": 12}])
@pytest.mark.parametrize("own", [True, False])
def test_equal_to_unmodified_generate(own, sampling):
    model, inputs = tiny_models.llama(), tiny_models.prompt([0, 1])
    small = model if own else random_models.small()
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


def test_a_worker_that_missed_requests_catches_up():
    """Half of the jobs of a draft model that is the target never ran: what its cache lacks then is fed."""
    executor = Simulated(Costs(1.0, 3.0), 3, Faults(dropped=0.6))
    decoder = Decoder(
        drafting_target(tiny_models.llama()), Overlapped(drafting_target(tiny_models.llama()), executor), k=2
    )
    report = decoder.generate(tiny_models.prompt([0, 1]), 60, seed=0).report
    assert report.accepted == report.drafted > 10 and not report.faults


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("branches, on_miss", [(1, "plain"), (4, "draft")])
def test_streams(device, branches, on_miss):
    """The draft model in a thread: what `Serial` drafts, and the output of `generate`, in several calls."""
    model, small = (copy.deepcopy(each()).to(device) for each in (tiny_models.llama, random_models.small))
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
    with mmspec.enable(model, drafter=Overlapped(drafting_target(random_models.small()), Broken())) as spec:
        with pytest.warns(UserWarning, match="failed"):
            assert torch.equal(model.generate(**inputs, **call), plain)
        assert spec.report.faults and spec.report.drafted == 0


class InAThread:
    """A child process, as a thread of this one that begins late."""

    def __init__(self, command: list[str], *, pass_fds: list[int], **_: Any) -> None:
        link = Connection(os.dup(pass_fds[0]))
        self.end = socket.socket(fileno=os.dup(pass_fds[0]))
        self.thread = Thread(target=self._run, args=(link,), daemon=True)
        self.thread.start()

    def _run(self, link: Connection) -> None:
        time.sleep(0.5)
        with contextlib.suppress(EOFError, ConnectionError), link, torch.no_grad():
            serve(link)

    def kill(self) -> None:
        """It ends with its pipe."""
        self.end.shutdown(socket.SHUT_RDWR)

    def wait(self) -> None:
        self.thread.join()


def timed(seconds: dict[int, float]) -> Callable[[Any], float]:
    """A clock on which a pass takes so long, by the model's layers."""
    return lambda target: seconds[target.layers()]


@pytest.mark.parametrize(("large_takes", "small_takes", "k"), [(3.4, 1.0, 3), (0.2, 1.0, 2), (9.0, 0.01, 32)])
def test_pearl_drafts_as_long_as_a_pass_of_the_target_lasts(
    large_takes: float, small_takes: float, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that is given; a number that somebody names stands before it, and nothing is timed then."""
    large, small = zoo.deeper(), random_models.small()
    clock = timed({drafting_target(large).layers(): large_takes, drafting_target(small).layers(): small_takes})
    monkeypatch.setattr(pearl, "step_seconds", clock)
    monkeypatch.setattr(timing, "step_seconds", clock)
    decoder = decoder_for(large, "pearl", drafter=small, options={"executor": "serial"})
    assert (decoder.k, decoder.k_from) == (k, "measured times")
    monkeypatch.setattr(pearl, "step_seconds", None)
    assert decoder_for(large, "pearl", drafter=small, k=4, options={"executor": "serial"}).k == 4


def masking() -> Any:
    """A draft model that says that it fills in masks."""
    small = copy.deepcopy(random_models.small())
    small.config.pard_token = 3
    return small


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "top_k": 12}], ids=str)
def test_a_draft_model_that_fills_in_masks_drafts_as_pard_in_one_pass(sampling: dict[str, Any]) -> None:
    """A first draft is that of `pard`; then as many outcomes as there are cost a pass a round, where an exit says them.

    The request for a draft and the one for what is behind it are two passes; those that follow a miss, too.
    """
    small, inputs, warp = masking(), tiny_models.prompt([0, 1]), Warp.sampling(**sampling)
    drafts, passes = [], list[int]()
    for method in ("pard", "mirror-sd", "saguaro"):
        options = {} if method == "pard" else {"executor": "serial", "branches": 2}
        decoder = decoder_for(zoo.deeper(), method, drafter=small, k=4, options=options)
        state = decoder.start(inputs, 30, seed=1, warp=warp)
        hook = small.model.register_forward_hook(lambda *_, passes=passes: passes.append(1))
        passes.clear()
        decoder.advance(state)
        hook.remove()
        drafts.append(state.step.draft.drafted.tolist())
        assert len(passes) == {"pard": 1, "mirror-sd": 2, "saguaro": 3}[method]
        while not state.finished:
            decoder.advance(state)
        assert [row.tolist() for row in state.output()] == plain(inputs, warp) and not state.report.faults
    assert drafts[0] == drafts[1] == drafts[2]


def plain(inputs: Any, warp: Warp) -> list[list[int]]:
    return [row.tolist() for row in decoder_for(zoo.deeper(), "plain").generate(inputs, 30, seed=1, warp=warp).units]


@pytest.mark.parametrize("method", ["pearl", "saguaro", "mirror-sd"])
def test_a_first_call_has_drafts(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call waits for the process, which loads its model meanwhile."""
    monkeypatch.setattr(process.subprocess, "Popen", InAThread)
    model, inputs = tiny_models.llama.__wrapped__(), tiny_models.prompt([0])
    call = dict(max_new_tokens=32, pad_token_id=0, eos_token_id=None, do_sample=False)
    small = random_models.noisy(model, 0.1)
    small.register_forward_hook(lambda *given: None)
    with pytest.raises(ValueError, match=r"cannot be sent to a process of its own .* or executor='serial'"):
        mmspec.enable(model, method, drafter=small)
    small._forward_hooks.clear()
    plain = model.generate(**inputs, **call)
    with mmspec.enable(model, method, drafter=small) as spec:
        assert torch.equal(model.generate(**inputs, **call), plain)
        assert spec.report.accepted > 0 and not spec.report.faults
        assert (spec.report.k_from == "measured times") == (method == "pearl")
