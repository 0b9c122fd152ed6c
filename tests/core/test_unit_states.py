"""Hidden states that new units are drawn from: those of the model's own forward, whatever was drafted."""

from typing import Any

import pytest
import torch

from mmspec.authors import FINAL, UnitStates, Warp, decoder_for
from mmspec.testing.tiny_models import llama, prompt
from tests.support.random_models import small

LIMIT = 14


@pytest.mark.parametrize(
    ("method", "how"),
    [
        ("plain", {}),
        ("prompt-lookup", {}),
        ("draft-tree", {"drafter": small(), "options": {"nodes": 8}}),
        ("draft-model", {"drafter": small(), "rule": "rejection"}),
    ],
)
def test_states_are_those_of_the_models_own_forward(method: str, how: dict[str, Any]) -> None:
    """A ragged batch, rows that end early; at the last boundary and behind the final norm."""
    inputs, layers = prompt([0, 1, 2]), llama().config.num_hidden_layers
    decoder, states = decoder_for(llama(), method, k=3, hidden=[1, FINAL], **how), UnitStates()
    for state in decoder.rounds(inputs, LIMIT, seed=3, warp=Warp.sampling(0.9), ends=5):
        states.step(state)
    assert state.report.accepted > 0 or method == "plain"
    assert min(state.host.emitted) < LIMIT, "no row ended early, so that this was not tested"
    for row, own in enumerate(states.rows()):
        new = int(state.host.emitted[row])
        known = state.history[row, int(state.pads[row]) : int(state.known[row])]
        with torch.no_grad():
            recorded = llama()(input_ids=known[None], output_hidden_states=True).hidden_states
        wanted = torch.cat([recorded[1][0], recorded[layers][0]], -1)[len(known) - new - 1 : -1]
        assert len(own) == new, "one for each unit, the first of which is drawn from the prompt's last state"
        assert own.shape == wanted.shape and torch.allclose(own, wanted, atol=1e-3)


def test_targets_that_give_none() -> None:
    decoder, states = decoder_for(llama(), "plain"), UnitStates()
    with pytest.raises(ValueError, match=r"hidden=\[FINAL\]"):
        for state in decoder.rounds(prompt([0]), 3):
            states.step(state)
