"""The draft model in a process of its own: unmodified `generate`'s text, whatever becomes of the process."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import mmspec
from mmspec.hosts.draft_models import drafting_target
from mmspec.hosts.target import TransformersTarget
from mmspec.testing import tiny_models
from mmspec_zoo.overlap.overlapped import Overlapped
from mmspec_zoo.overlap.process import Process
from tests.support import random_models

pytestmark = pytest.mark.slow
CALL: dict[str, Any] = dict(max_new_tokens=40, pad_token_id=0, eos_token_id=None, do_sample=True, top_k=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    random_models.small().save_pretrained(folder)
    return folder


@pytest.fixture
def process(folder: Path) -> Iterator[Process]:
    made = Process(partial(drafting_target, str(folder)), patience=30.0)
    yield made
    made.close()


class After:
    """A streamer that does something after a few units."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act, self.count = act, 0

    def put(self, ids: Any) -> None:
        self.count += 1
        if self.count == 5:
            self.act()

    def end(self) -> None:
        """Nothing: the call is over."""


def texts(
    process: Process | None, folder: Path, rows: int = 1, act: Callable[[], Any] | None = None, **more: Any
) -> Any:
    """Ids, torch's next number, and the report."""
    model, inputs = tiny_models.llama(), tiny_models.prompt(list(range(rows)))
    torch.manual_seed(3)
    if process is None:
        return model.generate(**inputs, **CALL, **more), torch.rand(1), None
    with mmspec.enable(model, drafter=Overlapped(drafting_target(str(folder)), process), k=4) as spec:
        ids = model.generate(**inputs, **CALL, **more, streamer=None if act is None else After(act))
        return ids, torch.rand(1), spec.report


def assert_plain(found: Any, folder: Path, rows: int = 1, **more: Any) -> None:
    ids, following, _ = texts(None, folder, rows, **more)
    assert torch.equal(found[0], ids) and found[1] == following


@pytest.mark.parametrize("rows", [1, 3])
def test_texts_are_those_of_generate(process: Process, folder: Path, rows: int) -> None:
    """Several calls in a row, by one process."""
    for _ in range(2):
        found = texts(process, folder, rows)
        assert_plain(found, folder, rows)
        assert found[2].drafted > 0 and not found[2].faults


def test_the_draft_model_is_as_good_as_in_this_process(process: Process, folder: Path) -> None:
    model, inputs = tiny_models.llama(), tiny_models.prompt([0])
    with mmspec.enable(model, drafter=Overlapped(drafting_target(str(folder))), k=4) as spec:
        torch.manual_seed(3)
        model.generate(**inputs, **CALL)
    ours = texts(process, folder)[2]
    assert (ours.rounds, ours.drafted, ours.accepted) == (spec.report.rounds, spec.report.drafted, spec.report.accepted)


def test_a_process_that_dies_costs_speed_alone(process: Process, folder: Path) -> None:
    with pytest.warns(UserWarning, match="has died; rounds go on without drafts"):
        found = texts(process, folder, act=lambda: (process.start().kill(), process.start().wait()))
    assert_plain(found, folder)
    with pytest.warns(UserWarning, match="has died"):
        found = texts(process, folder)
    assert_plain(found, folder)
    assert found[2].drafted == 0 and not process.alive


def test_a_process_that_hangs_is_not_waited_for_again(process: Process, folder: Path) -> None:
    process.patience = 0.3
    with pytest.warns(UserWarning, match="does not answer") as caught:
        found = texts(process, folder, act=lambda: os.kill(process.start().pid, signal.SIGSTOP))
    assert_plain(found, folder)
    assert len(caught) == 1
    os.kill(process.start().pid, signal.SIGCONT)
    process.patience = 30.0
    found = texts(process, folder)
    assert_plain(found, folder)
    assert found[2].drafted > 0, "it drafts again"


def test_a_model_that_cannot_be_made_costs_speed_alone(folder: Path) -> None:
    broken = Process(partial(drafting_target, str(folder / "gone")))
    for _ in range(2):
        with pytest.warns(UserWarning, match="has died; rounds go on without drafts"):
            found = texts(broken, folder)
        assert_plain(found, folder)
    broken.close()


def test_a_first_call_waits_for_the_model_and_says_so_if_it_never_comes(folder: Path) -> None:
    never = Process(partial(drafting_target, str(folder)), loading=0.3)
    os.kill(never.start().pid, signal.SIGSTOP)
    with pytest.warns(UserWarning, match="has no model after 0.3 s; rounds go on without drafts"):
        found = texts(never, folder)
    assert_plain(found, folder)
    assert found[2].drafted == 0
    never.close()


def test_what_cannot_be_sent_is_a_fault(process: Process, folder: Path) -> None:
    class Local:
        """A processor that cannot be pickled."""

        speculative = "elementwise"

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            return scores / 2

    with pytest.warns(UserWarning, match="Overlapped"):
        found = texts(process, folder, logits_processor=[Local()])
    assert_plain(found, folder, logits_processor=[Local()])
    assert found[2].faults > 0


def test_no_process_is_left(folder: Path) -> None:
    made = Process(partial(drafting_target, str(folder)))
    child = made.start()
    del made
    gc.collect()
    assert child.wait(20) is not None


def test_the_process_is_where_the_target_is_or_where_it_is_told(folder: Path) -> None:
    """Its model has the target's device and dtype, or those that are named; binding again keeps the process."""
    model, inputs = tiny_models.llama(), tiny_models.prompt([0])
    plain = texts(None, folder)
    for given, dtype in (({}, torch.float32), ({"device": "cpu", "dtype": "bfloat16"}, torch.bfloat16)):
        with mmspec.enable(model, "pearl", drafter=str(folder), k=4, **given) as spec:
            drafter = spec._decoder.drafter
            executor = drafter.executor
            assert (executor.device, executor.model.args) == ("cpu", (str(folder), "cpu", dtype))
            executor.patience = 60.0
            assert executor.alive, "it begins before the first call"
            drafter.bind(spec._decoder.target)
            assert drafter.executor is executor
            torch.manual_seed(3)
            assert torch.equal(model.generate(**inputs, **CALL), plain[0]) and spec.report.accepted > 0
            drafter.bind(TransformersTarget(tiny_models.llama().bfloat16()))
            assert (drafter.executor is executor) == bool(given) and executor.alive == bool(given)
            executor.close()


def test_a_device_that_is_not_there_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ValueError, match="there is no device 'cudda'"):
        mmspec.enable(tiny_models.llama(), "pearl", drafter="nobody/nowhere", device="cudda")
