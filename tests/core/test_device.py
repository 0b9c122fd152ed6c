"""Every method of every plugin on the logical device: what it waits for, what it launches.

The outputs equal the CPU's, no operation mixes devices, and no round waits or launches more than the table says: one
wait a round, or the reason beside the number. The table only gets smaller: who makes a method wait less, or launch
less, writes the new number.
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
    "auto": (1, 535),  # copies and recycled tokens, in one tree
    "plain": (1, 215),
    "prompt-lookup": (1, 360),
    "suffix": (1, 270),
    "suffix, samples": (1, 270),
    "suffix-tree": (1, 300),
    "rest": (1, 320),
    "rasd": (1, 1380),
    "united": (1, 1400),
    # Their draft models run here in the call's own thread, and each of their passes reads what it was asked.
    "pearl": (14, 900),
    "saguaro": (25, 1200),
    "mirror-sd": (24, 900),
    "lookahead": (2, 360),  # what the target said is read where the trees are made
    "llmcad": (5, 1500),  # each level may end the draft
    "s2d": (5, 1380),  # each unit may need more layers: asked once, and behind the first exit all run
    "vocab-trim": (1, 1260),
    "vocab-trim, its own output": (1, 1260),
    "omnidraft": (2, 1800),  # how many pieces the longest row has is read now and then
    "grammar": (1, 270),
    "jacobi-text": (1, 350),
    "token-recycling": (1, 370),
    "draft-model": (1, 1260),
    "draft-model, confidence": (1, 1280),
    "pard": (1, 1010),
    "ppd-model": (18, 1560),  # its first round reads the prompt, and the others wait as those of cascade
    "draft-tree": (1, 1460),
    "specmemo": (1, 1460),
    "dyspec": (1, 1460),
    "sequoia": (3, 1460),  # in the first round, its two counts move; later 1
    "bild": (5, 1050),  # each unit may end the draft
    "fly": (1, 1050),
    "ambedkar": (1, 1260),
    "rapid": (1, 1260),
    "rapid, mixed": (1, 1280),
    "judge": (3, 1030),  # in the first round, the judge moves, which is two tensors; later 1
    "rsd": (1, 2340),
    "layer-skip": (2, 950),  # the first time, what its layers return is read in a pass
    "swift": (4, 600),  # each unit may end the draft, and the text of a set's measure is read
    "del": (4, 520),  # exit and length are chosen, and each unit may end the draft
    "assd": (1, 1260),
    "assd, bigrams": (1, 1300),
    "cascade": (4, 1350),  # each pass of the middle level says how much is left to draft
    "triforce": (4, 1350),  # as cascade
    # The launches of a head are the drafter's own: it is no model that is moved.
    "eagle, a tree": (1, 1525),
    "eagle, a chain": (1, 1320),
    "dflash": (1, 1350),
    "p-eagle": (1, 1310),
    "falcon": (1, 1450),
    "ppd": (1, 940),
    "ppd, sparse": (1, 1000),
    "gated-lora": (1, 1500),
    "medusa": (1, 940),
    "hydra": (3, 1060),  # in the first round, its rotary frequencies move, which are two tensors; later 1
    "clover": (1, 1180),
    "clover-2": (1, 1180),
    "mlp-speculator": (1, 950),
    "arctic-lstm": (1, 1000),
    "mtp": (1, 1520),
    "gemma4-assistant": (1, 1660),
    "a drafter in Python": (1, 270),
    "draft-model, another vocabulary": (1, 1520),
    "draft-model, another vocabulary and a short context": (3, 1330),  # near its end, shapes are read twice
    "prompt-lookup, a stopping criterion": (
        3,
        380,
    ),  # a user's criterion must not be asked about a token behind the end
    "prompt-lookup, stop strings": (4, 400),  # in the first round, transformers moves its two tables; later 2
    "token-recycling, a constraint": (29, 750),  # transformers' processor itself waits for every row of every call
    "prompt-lookup, history processors": (1, 610),
    "token-recycling, history processors": (1, 700),
    "auto, history processors": (1, 890),
    "plain, llamagen": (1, 240),
    "gs-sjd, llamagen": (1, 340),
    "mc-sjd, llamagen": (1, 620),
    "sjd, llamagen": (1, 805),  # as in the papers, 16 new numbers a window
    "gs-sjd-pac, llamagen": (1, 520),
    "sjd-pac, llamagen": (1, 800),
    "gsd, llamagen": (1, 1610),  # the same, and their groups
    "lantern, llamagen": (1, 1350),
    "eagle, llamagen": (1, 1560),
    "eagle, llamagen, relaxed": (1, 2350),
    "gs-sjd, janus": (1, 320),
    "plain, glm-image": (1, 195),
    "token-recycling, emu3": (1, 380),
    "gs-sjd, chameleon": (1, 300),
    "plain, bamba": (1, 250),
    "prompt-lookup, bamba": (1, 390),
    "token-recycling, bamba": (1, 400),
    "stree, bamba": (1, 1330),
    "eagle, bamba": (1, 1650),
    "plain, mamba": (1, 300),
    "prompt-lookup, mamba": (1, 440),
    "token-recycling, mamba": (1, 440),
    "stree, mamba": (1, 1380),
    "plain, latents": (1, 270),
    "reflection, latents": (1, 830),
    "draft-reflection, latents": (1, 1700),
    "denoise-ahead, latents": (2, 660),  # each call of the head with drafts says which chains are finished
    "cspd, latents": (1, 2200),
    "causal-sets, latents": (1, 880),
    "plain, mixtures": (1, 270),
    "reflection, mixtures": (3, 1850),  # each block of proposals says which nodes still wait: there is no cut-off
    "plain, codes": (1, 230),
    "frame-gs-sjd, codes": (1, 320),
    "plain, frames": (1, 580),
    "branch-prediction, frames": (
        4,
        1390,
    ),  # sync, commit, and two drafts: which frames exist decides what the network makes
    "branch-prediction, oasis": (4, 1430),  # the same
    "nfd, frames": (4, 1170),  # sync, commit, a draft, and the measured distances
    "student, frames": (7, 2600),  # as above, and which of a level's frames the teacher accepts, for three levels
}
"""Most waits, and most launches outside of models, of any round."""

OFTEN = (
    *("plain", "prompt-lookup", "token-recycling", "draft-model", "draft-tree", "eagle, a tree"),
    *("token-recycling, a constraint", "prompt-lookup, history processors", "gs-sjd, llamagen", "sjd-pac, llamagen"),
    *("prompt-lookup, bamba", "stree, mamba", "reflection, latents", "plain, mixtures", "frame-gs-sjd, codes"),
    *("branch-prediction, frames",),
)
"""The cases of the fast tier: every kind of target, drafter and rule; the slow tier has all."""

CHECKS = (
    "the_device_itself",
    "long_calls",
    "scores_that_are_no_numbers",
    "recorded_rounds",
    "passes_that_a_graph_may_record",
)
"""Of `tests.support.device_checks`, in the process that fills the table."""


def child(*arguments: str) -> str:
    """The output of a process with our code; the device changes torch, so that it has a process of its own."""
    path = os.pathsep.join(map(str, (ROOT, ROOT / "plugins", os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path, "MMSPEC_STRICT": "1"}
    ran = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def excess(figures: dict[str, Any], waits: int, launches: int) -> str:
    """The fault of a case; "" if nothing is."""
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


def figures_of(*arguments: str) -> dict[str, dict[str, Any]]:
    """The findings of a process on the device, by case or check."""
    lines = child("-W", "ignore", *arguments).splitlines()
    return {figures.pop("name"): figures for figures in map(json.loads, lines)}


@pytest.fixture(scope="module")
def often() -> dict[str, dict[str, Any]]:
    """The figures of the fast tier's cases, and what every check found."""
    return figures_of("-m", "tests.support.device_checks", *OFTEN, *CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_the_device_and_rounds_on_it(name: str, often: dict[str, dict[str, Any]]) -> None:
    assert not often[name]["error"], often[name]["error"]


@pytest.mark.slow
def test_a_draft_process_elsewhere() -> None:
    """The process itself is tested in tests/zoo/overlap/test_overlap_process.py."""
    (check,) = figures_of("-m", "tests.support.device_checks", "a_draft_process_elsewhere").values()
    assert not check["error"], check["error"]


def check_ceilings(found: dict[str, dict[str, Any]]) -> None:
    """Outputs are the CPU's, drafts are of use, and no round is above its ceiling."""
    wrong = {name: excess(figures, *CEILINGS[name]) for name, figures in found.items()}
    assert not any(wrong.values()), "\n".join(f"{name}: {fault}" for name, fault in wrong.items() if fault)
    for name, figures in found.items():
        # Only a CPU compacts empty drafts, so that `auto` changes drafters in other rounds there.
        assert name.startswith("auto") or figures["accepted"] == figures["accepted_on_cpu"], name
        drafting = not name.startswith(("plain", "prompt-lookup", "denoise-ahead"))
        assert figures["accepted"] or not drafting, f"no draft of {name} was right"


def test_no_frequent_method_waits_or_launches_more_than_its_ceiling(often: dict[str, dict[str, Any]]) -> None:
    check_ceilings({name: often[name] for name in OFTEN})


@pytest.mark.slow
def test_no_method_waits_or_launches_more_than_its_ceiling() -> None:
    found = figures_of("-m", "tests.support.device_run")
    assert found.keys() == CEILINGS.keys()
    check_ceilings(found)
    wide, unsure = (found[name]["nodes"][:2] for name in ("draft-model", "draft-model, confidence"))
    assert wide == [5, 5] and unsure[0] == 5 > unsure[1], "budgets follow what the policy kept"


@pytest.mark.slow
def test_a_device_without_float64() -> None:
    """What sums in float64 elsewhere runs, and its output is the CPU's."""
    names = ("suffix", "gsd, llamagen", "plain, bamba", "prompt-lookup, mamba")
    found = figures_of("-m", "tests.support.device_run", "--without-float64", *names)
    assert found.keys() == set(names)
    wrong = {name: excess(figures, *CEILINGS[name]) for name, figures in found.items()}
    assert not any(wrong.values()), wrong


def test_every_method_is_in_the_table() -> None:
    methods = {spec.name for spec in installed().components("method")}
    assert methods <= {name.split(",")[0] for name in CEILINGS}
