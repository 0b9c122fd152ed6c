"""Sorted speculative decoding: its drafts by a loop without caches."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec_zoo.sorted.s2d import S2D, UNSURE, S2DOptions, StoppedChain
from tests.support.draft_rounds import played
from tests.support.zoo import noisy

EXITS, SURE, STOP, K = (1, 2, 4), 0.6, 0.4, 4


@pytest.fixture(scope="module")
def sorted_llama(make_llama: Callable) -> Any:
    """Four layers; the later ones matter less, as in models that can be left early."""
    model = make_llama(seed=3, num_hidden_layers=4)
    for layer in model.model.layers[1:]:
        layer.self_attn.o_proj.weight.data.mul_(0.1)
        layer.mlp.down_proj.weight.data.mul_(0.1)
    model.lm_head.weight.data.mul_(2)
    return model


@torch.no_grad()
def by_hand(model: Any, text: list[int], sure: float = SURE) -> tuple[list[int], list[int]]:
    """The draft behind a text and who drafted each of its units, as the paper's loop is written, without a cache.

    Every unit: the states behind 1, 2 and 4 layers of a forward of the unmodified model over all of the text, through
    norm and output layer. The first of them whose likeliest unit has `sure` drafts it. If none has, the last one does;
    or the draft ends here, where even that has less than `stop`.
    """
    units, exits = list[int](), list[int]()
    while len(units) < K:
        output = model.model(input_ids=torch.tensor([text + units]), output_hidden_states=True).hidden_states
        states = [output[1], output[2]]
        ends = [*(model.model.norm(each) for each in states), output[4]]  # transformers has normed the last one
        probabilities = [model.lm_head(end[0, -1]).softmax(-1) for end in ends]
        exit = next((i for i, each in enumerate(probabilities) if float(each.max()) >= sure), 2)
        if exit == 2 and float(probabilities[2].max()) < STOP:
            return units, [*exits, UNSURE]
        units.append(int(probabilities[exit].argmax()))
        exits.append(exit)
    return units, exits


@pytest.mark.parametrize(
    ("seed", "spoken", "kept"),
    [(10, [[2, 1, 0, 1], [0, 0, 0, 0]], [2, 4]), (11, [[0, 2, 0, 2], [2, UNSURE]], [4, 1])],
)
def test_two_rounds_by_hand(
    sorted_llama: Any,
    prompts: Callable,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    spoken: list[list[int]],
    kept: list[int],
) -> None:
    """Two rounds of one row: units, the exit of each, and where the draft ends are those of the loop above.

    Text 10. Round 1: only the last exit is sure of the first unit, the middle one of the second and of the fourth, the
    first one of the third; the target keeps two, so that the second of them waits for the last layers. Round 2: the
    first exit is sure of four.
    Text 11. Round 1: the first exit drafts a unit, the last one another, with which the layers behind the first exit
    see the unit before; and so again; all four are kept. Round 2: the last exit is sure of one unit, and of the next
    nobody is: the draft ends before it.
    """
    recorded, accepted, spoke = rounds(sorted_llama, prompts(1, seed), 2, monkeypatch)
    assert accepted == kept
    for number, (known, _, draft) in enumerate(recorded):
        units, exits = by_hand(sorted_llama, known[0].tolist())
        assert draft.units[0][draft.valid[0]].tolist() == units
        assert exits == spoken[number]
        assert spoke[number] == [[exit] for exit in exits], "asked until the draft ended, and no longer"


def rounds(model: Any, rows: Any, number: int, monkeypatch: Any, sure: float = SURE) -> Any:
    """Rounds of a target that is a little different: drafts, what was accepted, and by round and level who drafted."""
    spoke, level = list[list[list[int]]](), StoppedChain.level

    def heard(self: StoppedChain, frontier: Any, depth: int) -> Any:
        if depth == 1:
            spoke.append([])
        spoke[-1].append(frontier.auxiliary[:, 0].tolist())
        return level(self, frontier, depth)

    monkeypatch.setattr(StoppedChain, "level", heard)
    drafter = S2D(S2DOptions(model=model, exits=EXITS, sure=sure, stop=STOP))
    target = TransformersTarget(noisy(model, 0.02))
    recorded, accepted = played(Decoder(target, drafter, Match(), k=K), rows, Warp(sample=False), rounds=number)
    return recorded, accepted, spoke


def test_rounds_of_a_ragged_batch(sorted_llama: Any, prompts: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row as if it were alone: its units, its exits, where its draft ends."""
    recorded, accepted, spoke = rounds(sorted_llama, prompts(3), 12, monkeypatch)
    seen = set[int]()
    for number, (known, done, draft) in enumerate(recorded):
        for row in (row for row in range(3) if not done[row]):
            units, exits = by_hand(sorted_llama, known[row].tolist())
            assert draft.units[row][draft.valid[row]].tolist() == units
            assert [level[row] for level in spoke[number]][: len(exits)] == exits
            seen.update(exits)
    assert seen == {UNSURE, 0, 1, 2} and {0, 1, K} <= set(accepted), (seen, accepted)


def test_one_draft_model_for_two_targets(make_llama: Callable, sorted_llama: Any, prompts: Callable) -> None:
    """Greedy texts of each are its own; of the one that the draft model is like, drafts come true."""
    targets = noisy(sorted_llama, 0.02), make_llama(seed=11)
    lengths = []
    for target in targets:
        call = dict(max_new_tokens=24, do_sample=False)
        expected = stock(target, prompts(3), 0, **call)
        with mmspec.enable(target, "s2d", drafter=sorted_llama, exits=EXITS, sure=SURE, stop=STOP, k=K) as spec:
            torch.manual_seed(0)
            assert_same(target.generate(**prompts(3), **call), expected, torch.get_rng_state())
            assert spec.report is not None and not spec.report.faults
            lengths.append(spec.report.acceptance_length)
    assert lengths[0] > 1.3 and lengths[0] > lengths[1]


@pytest.mark.parametrize(("sure", "exits"), [(0.0, {0}), (1.0, {2, UNSURE})])
def test_the_lowest_and_the_highest_threshold(
    sorted_llama: Any, prompts: Callable, monkeypatch: pytest.MonkeyPatch, sure: float, exits: set[int]
) -> None:
    recorded, _, spoke = rounds(sorted_llama, prompts(1), 6, monkeypatch, sure)
    assert {number for each in spoke for level in each for number in level} == exits
    for known, _, draft in recorded:
        assert draft.units[0][draft.valid[0]].tolist() == by_hand(sorted_llama, known[0].tolist(), sure)[0]


def test_bad_input(make_llama: Callable) -> None:
    model = make_llama()
    with pytest.raises(ValueError, match="s2d needs a smaller model"):
        mmspec.enable(model, "s2d")
    for wrong in ({"sure": 1.5}, {"stop": -0.1}, {"exits": (0, 2)}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            mmspec.enable(model, "s2d", drafter=make_llama(), **wrong)
    with pytest.raises(ValueError, match="a model of 2 layers has sub-models of its first 1 to 2 layers, the smaller"):
        mmspec.enable(model, "s2d", drafter=make_llama(), exits=(2, 1))
    with pytest.raises(ValueError, match="one exit has no sub-models to choose from; the method draft-model takes it"):
        mmspec.enable(model, "s2d", drafter=make_llama(num_hidden_layers=1))
