"""What heads that step along paths draft: the distributions of the forward written out, round after round."""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, RecursiveRejection, Rejection
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions
from tests.heads.conftest import GREEDY, SAMPLED
from tests.support.draft_rounds import ROUNDS, Budgets, assert_distributions, assert_dynamic_tree, played
from tests.support.path_heads import KINDS, LAYOUTS

NAMES = [pytest.param(name, marks=[] if name in KINDS else [pytest.mark.slow]) for name in LAYOUTS]
CHAIN, BRANCHING = {"form": "chain"}, {"form": "branching", "branching": (2, 2, 1)}
FAST = ("medusa", "hydra", "mlp-speculator")
"""Those whose forward written out is quick enough for trees."""


@cache
def features(known: tuple[int, ...], normed: bool) -> Tensor:
    """The target's states behind its final norm, by transformers' own record, or before it: `[unit, width]`."""
    before: list[Tensor] = []
    hook = llama().model.norm.register_forward_pre_hook(lambda module, args: before.append(args[0][0]))
    with torch.no_grad():
        out = llama()(input_ids=torch.tensor([known]), output_hidden_states=True, use_cache=False)
    hook.remove()
    last: Tensor = out.hidden_states[-1][0]
    return last if normed else before[0]


def expected(name: str) -> Callable[[Tensor, list[int]], Tensor]:
    """Log probabilities behind known units and a path, and behind each prefix of the path."""
    layout = LAYOUTS[name]
    given = layout.given(llama())

    def behind(known: Tensor, path: list[int]) -> Tensor:
        units = known.tolist()
        found = layout.forward(given, features(tuple(units[:-1]), layout.normed), units[1:], path)
        return torch.stack(found).log_softmax(-1)

    return behind


def decoder(name: str, folder: Path, rule: Any, k: int = 3, **form: Any) -> Decoder:
    layout = LAYOUTS[name]
    drafter = layout.drafter(PathOptions(model=str(layout.save(folder)), probe=False, **form))
    return Decoder(TransformersTarget(llama()), drafter, rule, k=k)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("form", "rule"), [(CHAIN, Rejection), pytest.param(BRANCHING, RecursiveRejection, marks=pytest.mark.slow)]
)
def test_distributions_of_successive_rounds(
    name: str, form: dict[str, Any], rule: type, rows: dict[str, Tensor], tmp_path: Path
) -> None:
    """A ragged batch of three, after rounds that accepted nothing, a part and all; no draft is longer than a path."""
    ours = decoder(name, tmp_path, rule(), k=9, **form)
    recorded, accepted = played(ours, rows, SAMPLED)
    assert len(recorded) == ROUNDS and {0} < set(accepted), "no round accepted a part, so nothing was tested"
    assert all(draft.index.deepest == 3 for _, _, draft in recorded)
    assert_distributions(recorded, expected(name))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in LAYOUTS]
)
def test_the_dynamic_tree_of_successive_rounds(name: str, rows: dict[str, Tensor], tmp_path: Path) -> None:
    ours = decoder(name, tmp_path, Match(), form="rerank", width=3, nodes=8)
    recorded, accepted = played(ours, rows, GREEDY)
    assert 0 in accepted and max(accepted) > 0, "no round accepted a part, so nothing was tested"
    assert_dynamic_tree(recorded, expected(name), 8)


@pytest.mark.parametrize("name", ["mlp-speculator", pytest.param("hydra++", marks=pytest.mark.slow)])
def test_rounds_without_a_draft_are_caught_up(name: str, rows: dict[str, Tensor], tmp_path: Path) -> None:
    """A head that was not asked for some rounds begins with the feature of the last one, or with all of theirs."""
    ours = decoder(name, tmp_path, Rejection(), k=4, **CHAIN)
    ours.policy = Budgets()
    recorded, _ = played(ours, rows, SAMPLED, rounds=6)
    assert [draft.units.shape[1] for _, _, draft in recorded] == [2, 3, 3]
    assert_distributions(recorded, expected(name))


@pytest.mark.parametrize("name", ["medusa", "hydra++", "clover-2", "arctic-lstm"])
def test_in_half_precision(name: str, rows: dict[str, Tensor], tmp_path: Path) -> None:
    """A head follows a target that was cast: its drafts are those of full precision, within rounding."""
    layout, model = LAYOUTS[name], copy.deepcopy(llama()).to(torch.bfloat16)
    drafter = layout.drafter(PathOptions(model=str(layout.save(tmp_path)), probe=False, form="chain"))
    ours = Decoder(TransformersTarget(model), drafter, Rejection(), k=3)
    recorded, _ = played(ours, rows, SAMPLED, rounds=1)
    (known, _, draft), close = recorded[0], expected(name)
    assert draft.distribution is not None
    q = draft.distribution.on(None)
    for row in range(3):
        wanted = close(known[row], draft.units[row, :-1].tolist()).exp()
        assert 0.5 * (q[row] - wanted).abs().sum(-1).mean() < 0.1
