"""Guesses of a player: repeats, habits, several at once."""

from dataclasses import replace

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec_video.drafters.action_model import ActionModel, ActionModelOptions
from mmspec_video.drafters.action_repeat import ActionRepeat
from tests.support.examples.video import Player

ACTIONS = 4


def guessed(history, k=1, **options):
    """Drafted actions behind a history, `[node]`, and their parents."""
    target = Player.random(ACTIONS, seed=0)
    drafter = ActionModel(ActionModelOptions(**options))
    decoder = Decoder(target, drafter, k=k)
    state = decoder.start(torch.tensor([history[:2]]), len(history) + k + 2)
    for action in history[2:]:
        state.history[0, state.prompt_length + state.host.emitted[0] - 1] = action
        state.live = replace(state.live, root=torch.tensor([action]), emitted=state.emitted + 1)
        state.host.emitted[0] += 1
    # `emitted` counts one more than was written: the first drawn unit was written over.
    state.live = replace(state.live, emitted=state.emitted - 1)
    state.host.emitted[0] -= 1
    draft = drafter.propose(state, k, None)
    return draft.units[0].tolist(), draft.index.parent[0, 1:].tolist()


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([2, 2, 2, 2], 2),  # goes on
        ([1, 2, 1, 2, 1, 2, 1], 2),  # alternates
        ([1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1], 2),  # three, then the other
        ([3, 0, 0, 1, 3, 0, 0, 1, 3, 0], 0),  # a round of four: the context decides, not what is frequent
        ([3, 0, 0, 1, 3, 0, 0, 1, 3, 0, 0], 1),
        ([1, 2, 2, 2, 2, 1, 3, 3, 1], 3),  # what came lately counts more than what came before
        ([0, 1, 2, 3], 3),  # nothing known of it: repeats
    ],
)
def test_habits_are_learned_from_this_player(history, expected):
    assert guessed(history)[0] == [expected]


def test_a_chain_goes_on_as_the_model_thinks():
    assert guessed([1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 1], k=5)[0] == [2, 1, 1, 2, 1]


def test_branches_are_the_likeliest_actions_each_with_a_chain():
    units, parents = guessed([1, 2, 1, 3, 1, 2, 1, 3, 1, 2, 1], k=2, branches=2, ngram=1)
    assert sorted(units[:2]) == [2, 3] and units[2:] == [1, 1] and parents == [0, 0, 1, 2]
    units, parents = guessed([1, 2, 1, 2], branches=9)
    assert sorted(units) == [0, 1, 2, 3] and parents == [0] * 4  # no more than there are


def test_a_row_learns_from_its_own_player_only():
    target, drafter = Player.random(ACTIONS, seed=0), ActionModel(ActionModelOptions(branches=3))
    decoder = Decoder(target, drafter, k=3)
    prompts = torch.tensor([[1, 2, 1, 2, 1], [3, 3, 0, 3, 3]])
    together = drafter.propose(decoder.start(prompts, 9, seed=[5, 6]), 3, None)
    for row in range(2):
        alone = drafter.propose(decoder.start(prompts[row : row + 1], 9, seed=[5 + row]), 3, None)
        assert torch.equal(alone.units[0], together.units[row])


def test_repeats():
    decoder = Decoder(Player.random(ACTIONS, seed=0), ActionRepeat(), k=3)
    state = decoder.start(torch.tensor([[1, 2], [3, 0]]), 9)
    draft = decoder.drafter.propose(state, 3, None)
    assert torch.equal(draft.units, state.root[:, None].expand(-1, 3)) and draft.index.is_chain
