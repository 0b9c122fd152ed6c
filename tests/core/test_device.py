"""Every method of the text, image and recurrent plugins on the logical device: what it waits for, what it launches.

The outputs equal the CPU's, no operation mixes devices, and no round waits or launches more than the table says. The
table only gets smaller: who makes a method wait less, or launch less, writes the new number.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mmspec.registry import installed

ROOT = Path(__file__).parents[2]

CEILINGS: dict[str, tuple[int, int]] = {
    "auto": (1, 500),
    "plain": (1, 215),
    "prompt-lookup": (1, 360),
    "suffix": (1, 330),
    "token-recycling": (1, 370),
    "draft-model": (1, 1260),
    "draft-tree": (1, 1460),
    "rsd": (1, 2350),
    "cascade": (7, 1370),
    "a drafter in Python": (1, 320),
    "auto, history processors": (1, 920),
    "token-recycling, a constraint": (33, 820),  # transformers' processor itself waits in every call
    "prompt-lookup, history processors": (1, 610),
    "token-recycling, history processors": (1, 730),
    "plain, llamagen": (1, 310),
    "gs-sjd, llamagen": (1, 460),
    "mc-sjd, llamagen": (1, 1210),
    "sjd, llamagen": (1, 1390),
    "gsd, llamagen": (1, 1860),
    "lantern, llamagen": (1, 1810),
    "gs-sjd, janus": (1, 490),
    "plain, bamba": (1, 255),
    "prompt-lookup, bamba": (1, 395),
    "token-recycling, bamba": (1, 400),
    "stree, bamba": (1, 1340),
    "plain, mamba": (1, 305),
    "prompt-lookup, mamba": (1, 450),
    "token-recycling, mamba": (1, 450),
    "stree, mamba": (1, 1390),
}
"""Most waits, and most launches outside of models, of any round."""

DEVICE = """
import torch
from tests.support.logical_device import DEVICE, Meter
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
    assert meter.launches.total() == 3, meter.launches
    later = there.to("cpu", non_blocking=True)
    torch.ones(2).pin_memory().to(DEVICE, non_blocking=True)
    assert not meter.waits
    assert later.tolist() != [0, 1, 2]
    assert int(there.sum()) == 3
    assert later.tolist() == [0, 1, 2]
    torch.tensor([1.0], device=DEVICE), there[there > 1], there.cpu(), there.tolist(), there[[0, 1]]
    assert meter.waits.total() == 6, meter.waits
"""

LONG = """
from tests.support import device_run as run
from mmspec.hosts.slot_layer import BLOCK
from mmspec.testing import tiny_models

case = run.Case(tiny_models.llama(), tiny_models.prompt([0, 1]), "draft-model", options={"model": tiny_models.small()})
expected = case.decoder(lambda model: model).generate(case.prompt, BLOCK + 20, seed=3, warp=case.warp)
with run.logical.Meter() as meter:
    decoder, seen = case.decoder(run.moved), set()
    state = decoder.start(run.sent(case.prompt), BLOCK + 20, seed=3, warp=case.warp)
    while not state.finished:
        meter.reset()
        decoder.advance(state)
        assert meter.waits.total() == 1, meter.waits
        for slots in (state.cache.slots, state.memory.cache.slots):
            assert not slots.free_to_read
            unused = slots.visible - int(slots.length.inner.max())
            assert unused < BLOCK + 2 * state.width, (unused, state.host_emitted)
        seen.add(state.cache.slots.visible)
    assert [row.tolist() for row in state.output()] == [row.tolist() for row in expected.units]
    assert seen == {BLOCK, 2 * BLOCK}, seen
"""


def child(*arguments: str) -> str:
    """What a process with our code prints; the device changes torch, so that it has a process of its own."""
    path = os.pathsep.join(map(str, (ROOT, ROOT / "plugins", os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path, "MMSPEC_STRICT": "1"}
    ran = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def excess(figures: dict[str, Any], waits: int, launches: int) -> str:
    """What is wrong with a case; "" if nothing is."""
    if "error" in figures:
        return str(figures["error"])
    most = max(figures["waits"]), max(figures["launches"])
    if not figures["same"] or figures["faults"]:
        return f"the output differs from the CPU's, or the drafter failed ({figures['faults']} times)"
    if most[0] > waits or most[1] > launches:
        return (
            f"a round has {most[0]} waits and {most[1]} launches, allowed {waits} and {launches}: {figures['places']}"
        )
    return ""


def test_the_device_itself() -> None:
    child("-c", DEVICE)


def test_long_calls_read_what_rows_have_and_wait_once_a_round() -> None:
    child("-W", "ignore", "-c", LONG)


def test_no_method_waits_or_launches_more_than_its_ceiling() -> None:
    lines = child("-W", "ignore", "-m", "tests.support.device_run").splitlines()
    found = {figures.pop("name"): figures for figures in map(json.loads, lines)}
    assert found.keys() == CEILINGS.keys()
    wrong = {name: excess(figures, *CEILINGS[name]) for name, figures in found.items()}
    assert not any(wrong.values()), "\n".join(f"{name}: {fault}" for name, fault in wrong.items() if fault)
    drafting = [figures for name, figures in found.items() if not name.startswith(("plain", "prompt-lookup"))]
    assert all(figures["accepted"] for figures in drafting)  # drafts are right now and then


@pytest.mark.parametrize("owner", ["text", "image", "ssm"])
def test_every_method_is_in_the_table(owner: str) -> None:
    methods = {spec.name for spec in installed().components("method") if spec.owner == owner}
    assert methods <= {name.split(",")[0] for name in CEILINGS}
