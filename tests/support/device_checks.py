"""The table of methods on the logical device, and six checks beside it: `python -m tests.support.device_checks`.

It prints the lines of `tests.support.device_run`, then one of the same kind for every check: its name, and its error
if it failed. All in one process, as starting one costs more than a check.
"""

from tests.support import device_run as run  # isort: skip # before torch, whose functions the device replaces

import json
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_leaves
from transformers import MistralConfig

from mmspec.core.compile import captured
from mmspec.core.compile.rounds import CapturedRound
from mmspec.core.drafters.jacobi import WindowInside
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.hosts.slot_layer import BLOCK
from mmspec.kits.pictures.conditions import Condition
from mmspec.testing import tiny_models
from tests.support import random_models
from tests.support.device_cases import Case, images, recurrent
from tests.support.examined import examine_once
from tests.support.examples import image
from tests.support.logical_device import DEVICE, Meter, OnDevice

GUIDED = Warp.sampling(0.9, guidance=2.0)
FORCED = torch.tensor([-1, 3, -1, -1, 3, -1, 1], device="cpu")


def the_device_itself() -> None:
    """Both devices do not mix; reading waits, launching does not; what was under way arrives with the next wait."""
    with Meter() as meter:
        there = torch.arange(3, device=DEVICE)
        for mixing in (lambda: there + torch.arange(3), lambda: there.gather(0, torch.zeros(1).long())):
            try:
                mixing()
            except RuntimeError as error:
                assert "both devices" in str(error)
            else:
                raise AssertionError("devices were mixed")
        (there + 1) * 2
        assert not meter.waits
        assert meter.launches.total() == 3, meter.launches  # with that of `arange`
        later = there.to("cpu", non_blocking=True)
        torch.ones(2).pin_memory().to(DEVICE, non_blocking=True)
        assert not meter.waits
        assert later.tolist() != [0, 1, 2]
        assert int(there.sum()) == 3
        assert later.tolist() == [0, 1, 2]
        torch.tensor([1.0], device=DEVICE), there[there > 1], there.cpu(), there.tolist(), there[[0, 1]]
        assert meter.waits.total() == 6, meter.waits


def long_calls() -> None:
    """Rounds of a call that needs a second block read the slots that rows have, and wait once each."""
    ids = torch.randint(3, 7, (2, BLOCK - 8), generator=torch.Generator().manual_seed(0), device="cpu")
    mask = torch.arange(BLOCK - 8, device="cpu") >= torch.tensor([[0], [5]], device="cpu")
    prompt = {"input_ids": ids * mask, "attention_mask": mask.long()}
    case = Case(tiny_models.llama(), prompt, "draft-model", options={"model": random_models.small()})
    limit = 24
    expected = case.decoder(lambda model: model).generate(case.prompt, limit, seed=3, warp=case.warp)
    with Meter() as meter:
        decoder, seen = case.decoder(run.moved), set()
        state = decoder.start(run.sent(case.prompt), limit, seed=3, warp=case.warp)
        while not state.finished:
            meter.reset()
            decoder.advance(state)
            assert meter.waits.total() == 1, meter.waits
            for slots in (state.cache.slots, state.memory.cache.slots):
                assert not slots.free_to_read
                unused = slots.visible - int(slots.length.inner.max())
                assert unused < BLOCK + 2 * state.budget.width, (unused, state.host.emitted)
            seen.add(state.cache.slots.visible)
        assert [row.tolist() for row in state.output()] == [row.tolist() for row in expected.units]
    assert seen == {BLOCK, 2 * BLOCK}, seen


def scores_that_are_no_numbers() -> None:
    """The row and the unit are named, whatever drafts."""
    for method, options in (("plain", {}), ("prompt-lookup", {}), ("draft-model", {"model": random_models.small()})):
        case = Case(tiny_models.llama(), tiny_models.prompt([0, 1]), method, options=options)
        with Meter():
            decoder = case.decoder(run.moved)
            first, second = case.prompt["input_ids"]
            broken = second[-1]
            decoder.target.model.model.embed_tokens.weight.data.inner[int(broken)] = float("nan")
            first[first == broken] = (broken + 1) % 7
            try:
                decoder.generate(run.sent(case.prompt), 4, warp=case.warp)
            except ValueError as error:
                assert "row 1: the target's scores of new unit 0 are NaN" in str(error), error
            else:
                raise AssertionError(f"{method} decoded numbers that are none")


def a_draft_process_elsewhere() -> None:
    """The target is on the device, the draft model in a process on the CPU; its drafts are as good as on one device."""
    with TemporaryDirectory() as folder:
        random_models.small().save_pretrained(folder)
        case = Case(
            tiny_models.llama(), tiny_models.prompt([0, 1]), "pearl", options={"model": folder, "device": "cpu"}
        )
        serial = replace(case, options={"model": random_models.small(), "executor": "serial"})
        expected = serial.decoder(lambda model: model).generate(case.prompt, 30, seed=3, warp=case.warp)
        with Meter():
            decoder = case.decoder(run.moved)
            executor = decoder.drafter.executor
            executor.patience = 120.0
            for _ in range(2):
                found = decoder.generate(run.sent(case.prompt), 30, seed=3, warp=case.warp)
                assert [row.tolist() for row in found.units] == [row.tolist() for row in expected.units]
                assert not found.report.faults, found.report
            assert found.report.accepted == expected.report.accepted > 0, (found.report, expected.report)
            executor.close()


def recorded_rounds() -> None:
    """A graph could hold them: a round waits for nothing, and outside of it there is little to launch."""
    texts = {"plain": 1, "prompt-lookup": 1, "token-recycling": 1, "jacobi-text": 1, "suffix": 18}
    windows = {"gs-sjd": 1, "mc-sjd": 1, "sjd": 1, "gsd": 21, "lantern": 21}  # whose bias is counted outside
    pictures, classes = image.llamagen().target.model, Condition(torch.tensor([0, 1], device="cpu"))
    cases = {
        **{name: (Case(tiny_models.llama(), tiny_models.prompt([0, 3]), name), most) for name, most in texts.items()},
        **{name: (Case(pictures, classes, name, warp=GUIDED), most) for name, most in windows.items()},
        "gs-sjd, forced": (Case(pictures, classes, "gs-sjd", warp=replace(GUIDED, forced=FORCED)), 1),
    }
    inside = Counter[tuple[str, str]]()
    launched = Counter[str]()

    def metered(captured: CapturedRound) -> Any:
        waits, launches = Counter(meter.waits), Counter(meter.launches)
        step = one_round(captured)
        inside.update(meter.waits - waits)
        launched.update(meter.launches - launches)
        return step

    one_round = CapturedRound._round
    with patch.object(captured, "RECORDING", (DEVICE.type,)), patch.object(CapturedRound, "_round", metered):
        for method, (case, most) in cases.items():
            expected = case.decoder(lambda model: model).generate(case.prompt, 12, seed=3, warp=case.warp)
            with Meter() as meter:
                decoder = case.decoder(run.moved)
                for watched in (True, False):
                    rounds = decoder.rounds(run.sent(case.prompt), 12, seed=3, warp=case.warp, watched=watched)
                    for number, state in enumerate(rounds):
                        outside = meter.launches.total() - launched.total()
                        # Before the second round, prompts are read and rounds are recorded.
                        assert number < 2 or (meter.waits.total() <= 1 and outside <= most), (
                            method,
                            state.host.emitted,
                            outside,
                        )
                        meter.reset()
                        launched.clear()
                    assert state.report.recorded and not inside, (method, inside)
                    drafts = state.player.round.plan.drafts
                    assert isinstance(drafts, WindowInside) == (case.model is pictures or method == "jacobi-text"), (
                        drafts
                    )
                    assert [row.tolist() for row in state.output()] == [row.tolist() for row in expected.units]


class Recorder(Meter):
    """Notes operations by what they read: names, tensors made before `begin` by their memory, numbers of the host."""

    def begin(self) -> None:
        """Forget what was noted."""
        self.operations, self.made, self.kept = list[Any](), set[int](), list[Any]()

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        leaves = tree_leaves((args, kwargs))
        read = [each.untyped_storage().data_ptr() for each in leaves if isinstance(each, OnDevice)]
        numbers = [repr(each) for each in leaves if not isinstance(each, OnDevice)]
        self.operations.append((func._schema.name, [each for each in read if each not in self.made], numbers))
        out = super().run(func, args, kwargs)
        self.kept.append(out)  # so that no memory has two tensors
        new = {each.untyped_storage().data_ptr() for each in tree_leaves(out) if isinstance(each, OnDevice)}
        self.made |= new - set(read)
        return out


def passes_that_a_graph_may_record() -> None:
    """Passes and commits over a held cache wait for nothing; each does what the one before did, to the same memory."""
    prompt, sizes = tiny_models.prompt([0, 1]), {**tiny_models.SIZES, "max_position_embeddings": 2048}
    window = random_models.random_model(MistralConfig(**sizes, sliding_window=8))
    long = {name: torch.ones(2, 600, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
    cases = {"a ring": Case(window, long, "plain"), "llama": Case(tiny_models.llama(), prompt, "plain")}
    both = recurrent() | images()
    cases |= {name: both[name] for name in ("plain, bamba", "plain, mamba", "plain, llamagen")}
    for name, case in cases.items():
        for parents in ([-1, 0, 0, 1], None):
            meter = Recorder()
            meter.begin()
            with meter:
                target = case.decoder(run.moved).target
                rows = torch.tensor([[-1, 0, 0, 2], [-1, 0, 1, 1]], device=DEVICE)
                index = TreeIndex.dynamic(rows) if parents is None else TreeIndex.static(parents, DEVICE)
                started = target.start_fixed(run.sent(case.prompt), 10, index.nodes)
                held = target.held(started.cache, index.nodes)
                if parents is not None:
                    target.expect(held, index)
                held = held.load(started.cache)
                units = torch.full((2, index.nodes), 3, device=DEVICE)
                draft = Draft(units, index, torch.ones_like(units, dtype=torch.bool))
                path, count = units[:, 1:] * 0 + torch.arange(1, index.nodes, device=DEVICE), units[:, 0] * 0 + 1
                noted = []
                for _ in range(3):
                    meter.begin()
                    meter.reset()
                    with torch.no_grad(), target.ready(held, index.nodes):
                        target.forward(held, draft)
                        target.commit(held, path, count)
                    assert not meter.waits, (name, parents, meter.waits)
                    noted.append(meter.operations)
                assert noted[1] == noted[2], (name, parents)


CHECKS: Mapping[str, Callable[[], None]] = {
    check.__name__: check
    for check in (
        the_device_itself,
        long_calls,
        scores_that_are_no_numbers,
        a_draft_process_elsewhere,
        recorded_rounds,
        passes_that_a_graph_may_record,
    )
}


def main(*names: str) -> None:
    """Print the figures of the cases and what the checks found, of those names; of all, if there are none."""
    examine_once()
    run.main(*names)
    torch.manual_seed(0)
    for name, check in CHECKS.items():
        if names and name not in names:
            continue
        try:
            check()
            error = ""
        except Exception:
            error = traceback.format_exc()
        print(json.dumps({"name": name, "error": error}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
