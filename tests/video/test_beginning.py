"""What a token model begins with: heads that look at a place, codes that look alike."""

import pytest
import torch
import torch.nn.functional as F

from mmspec.models.rope import turn
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.train import beginning

PERIOD = 21
"""Units of a frame of the model, and the action behind it."""


@pytest.fixture
def model() -> TokenWorldModel:
    torch.manual_seed(0)
    return TokenWorldModel(16, 4, 4, 5, 3, dim=160, n_layer=1, n_head=5, multiple_of=16)


@pytest.fixture
def entries() -> torch.Tensor:
    return F.normalize(torch.randn(16, 8, generator=torch.Generator().manual_seed(1)), dim=-1)


def test_codes_that_look_alike_begin_alike(model: TokenWorldModel, entries: torch.Tensor) -> None:
    actions = model.tok_embeddings.weight[16:].clone()
    with torch.no_grad():
        beginning.alike(model, entries)
    near = (entries @ entries.T).flatten()
    for weights in (model.tok_embeddings.weight[:16], model.output.weight):
        rows = F.normalize(weights, dim=-1)
        assert torch.corrcoef(torch.stack([near, (rows @ rows.T).flatten()]))[0, 1] > 0.8
        assert len(weights.unique(dim=0)) == 16
    assert torch.equal(model.tok_embeddings.weight[16:], actions)


def test_heads_begin_by_looking_at_their_places_whatever_is_there(
    model: TokenWorldModel, entries: torch.Tensor
) -> None:
    beginning.begin(model, entries)
    cell, columns = 2 * PERIOD + 2 * 5 + 2, 5  # in the last frame, away from its edges
    for head, (frame, row, column) in enumerate(beginning.OFFSETS):
        weight = looks(model, head, cell)
        assert int(weight.argmax()) == cell + frame * PERIOD + row * columns + column
        assert weight.max() > 0.4


def test_a_head_begins_by_looking_at_the_action_that_leads_to_the_frame(
    model: TokenWorldModel, entries: torch.Tensor
) -> None:
    """Who predicts the first cell of a frame is the action itself."""
    beginning.begin(model, entries)
    action = 2 * PERIOD - 1
    for unit in (action, *range(2 * PERIOD, 3 * PERIOD - 1)):
        weight = looks(model, len(beginning.OFFSETS), unit)
        assert int(weight.argmax()) == action and weight.max() > 0.6


@torch.no_grad()
def looks(model: TokenWorldModel, head: int, unit: int) -> torch.Tensor:
    """Weights of a unit of some sequence, over all units up to it."""
    codes = torch.randint(16, (1, 3, 20), generator=torch.Generator().manual_seed(2))
    units = torch.cat([codes, torch.full((1, 3, 1), 17)], -1).flatten(1)[:, :-1]
    block, width = model.layers[0], model.layers[0].attention.width
    made = block.attention.wqkv(block.attention_norm(model.embed(units))).unflatten(-1, (-1, width))
    query, key = turn(made[:, :, :10], model.rotary[: units.shape[1]][None])[0].split(5, 1)
    return (key[: unit + 1, head] @ query[unit, head] / width**0.5).softmax(-1)
