"""The rule `counterfactual`: divergences by scipy, a round by hand, choices against forwards of the model itself."""

from typing import Any

import pytest
import torch
from scipy.spatial.distance import jensenshannon
from torch import Tensor

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.distributions import PointMass
from mmspec.core.noise import Round
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Scores
from mmspec.core.warp import Warp
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.hosts.target import TransformersTarget
from mmspec_zoo.conditioned.counterfactual import (
    Counterfactual,
    CounterfactualOptions,
    divergence,
    swapped,
)
from tests.support.zoo import build

PAIRS = (("king", "queen"), ("man", "woman"))


def test_divergence_is_scipys() -> None:
    p, q = torch.randn(2, 5, 9, generator=torch.Generator().manual_seed(0)).unbind()
    expected = jensenshannon(p.softmax(-1), q.softmax(-1), axis=-1) ** 2
    assert torch.allclose(divergence(p, q), torch.tensor(expected).float(), atol=1e-6)
    assert divergence(p, p).abs().max() < 1e-6


def verdict(J: list[float], above: float = 0.0) -> tuple[list[int], int, int]:
    """Path, length and last unit of a draft of two proposals, of which each has two. The target's own unit is 9 behind
    every node but the root, and 5, the second proposal, behind the root.
    """
    draft = Draft(
        torch.tensor([[1, 4, 5, 40, 41, 50, 51]]), TreeIndex.static((-1, 0, 0, 1, 1, 2, 2)), torch.ones(1, 7).bool()
    )
    own = torch.tensor([[5, 9, 9, 9, 9, 9, 9]])
    scores = Scores(PointMass(own), torch.ones_like(own, dtype=torch.bool), auxiliary=torch.tensor([J]))
    rule = Counterfactual(CounterfactualOptions(above=above))
    found = rule.accept(draft, scores, round_of())
    return found.path[0].tolist(), int(found.length), int(found.unit)


def round_of() -> Round:
    decoder = Decoder(TransformersTarget(build("llama")))
    return decoder.start(torch.tensor([[1]]), 4, seed=0, warp=Warp.sampling(temperature=0)).round()


@pytest.mark.parametrize(
    ("J", "above", "expected"),
    [
        ([0, 0.3, 0.2, 0.1, 0.0, 0.4, 0.1], 0.0, ([2, -1], 1, 51)),  # 5 has less than 4, and behind it 51
        ([0, 0.1, 0.2, 0.2, 0.2, 0.4, 0.1], 0.0, ([1, -1], 1, 40)),  # 4, and behind it the first of equal ones
        ([0, 0.1, 0.2, 0.2, 0.2, 0.4, 0.1], 0.15, ([1, -1], 1, 40)),  # some proposal is as divergent everywhere
        ([0, 0.1, 0.2, 0.0, 0.0, 0.0, 0.0], 0.15, ([1, -1], 1, 9)),  # but not behind 4, where the target's own stays
        ([0, 0.1, 0.2, 0.2, 0.2, 0.4, 0.1], 1.0, ([2, -1], 1, 9)),  # never: the target's 5, then its 9
    ],
)
def test_a_round_by_hand(J: list[float], above: float, expected: Any) -> None:
    assert verdict(J, above) == expected


def test_prompts_are_swapped_both_ways() -> None:
    tokenizer = load_tokenizer("mmspec/text-14m")
    texts = ["The king and the woman", "No kingdom here", "a queen"]
    rows = [torch.tensor(tokenizer(text)["input_ids"]) for text in texts]
    widest = max(map(len, rows))
    units = torch.stack([torch.nn.functional.pad(row, (widest - len(row), 0)) for row in rows])
    made = swapped(PAIRS, tokenizer)(units, torch.tensor([widest - len(row) for row in rows]))
    found = [tokenizer.decode(ids[mask.bool()]) for ids, mask in zip(*made.values(), strict=True)]
    assert found == ["The queen and the man", "No kingdom here", "a king"]


def test_every_unit_is_the_least_divergent_proposal() -> None:
    """Against forwards of whole texts: of the small model, which proposes, and of the target behind both prompts."""
    large, small = (load_model(f"mmspec/text-{size}", "cpu") for size in ("14m", "1m"))
    tokenizer, clause = load_tokenizer("mmspec/text-14m"), "All are equal.\n"
    ids = tokenizer("What says the king? The king", return_tensors="pt")["input_ids"]
    how: dict[str, Any] = {"drafter": small, "condition": clause, "swap": PAIRS, "tokenizer": tokenizer, "proposals": 3}
    with mmspec.enable(large, "ambedkar", rule="counterfactual", **how) as spec:
        out = large.generate(input_ids=ids, max_new_tokens=7, do_sample=False)[0, ids.shape[1] :].tolist()
    assert spec.report is not None and spec.report.exactness == "lossy" and spec.report.bias.tv > 0
    other = swapped(PAIRS, tokenizer)(ids, torch.tensor([0]))["input_ids"]
    assert not torch.equal(ids[0, : other.shape[1]], other[0]), "the pair changes nothing"
    front = torch.tensor(tokenizer(clause, add_special_tokens=False)["input_ids"])

    def said(model: Any, *parts: Any) -> Tensor:
        whole = torch.cat([torch.as_tensor(part, dtype=torch.int64) for part in parts])
        with torch.no_grad():
            return model(input_ids=whole[None]).logits[0, -1]

    for n, unit in enumerate(out):
        proposals = said(small, ids[0], out[:n]).topk(3).indices.tolist()
        apart = [
            float(divergence(said(large, front, ids[0], out[:n], [c]), said(large, front, other[0], out[:n], [c])))
            for c in proposals
        ]
        # The prefill's unit is the target's own, and so is a call's last one, for which there is no draft.
        assert n in (0, 6) or unit == proposals[min(range(3), key=apart.__getitem__)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_never_choosing_is_exact(temperature: float) -> None:
    """Greedy calls have the text of `ambedkar` under its own rule; sampled ones, whose noise is another, no bias."""
    large, small = (load_model(f"mmspec/text-{size}", "cpu") for size in ("14m", "1m"))
    tokenizer = load_tokenizer("mmspec/text-14m")
    ids = tokenizer("What says the king? The king", return_tensors="pt")["input_ids"]
    how: dict[str, Any] = {"drafter": small, "condition": "All are equal.\n", "tokenizer": tokenizer}
    call: dict[str, Any] = {"max_new_tokens": 9, "do_sample": temperature > 0, "temperature": temperature or None}
    with mmspec.enable(large, "ambedkar", **how):
        expected = large.generate(input_ids=ids, **call)
    with mmspec.enable(large, "ambedkar", rule="counterfactual", swap=PAIRS, above=1.0, **how) as spec:
        found = large.generate(input_ids=ids, **call)
    assert spec.report is not None and spec.report.bias.tv == 0
    assert temperature or torch.equal(found, expected)


def test_swaps_without_the_rule_are_refused() -> None:
    model = load_model("mmspec/text-1m", "cpu")
    with pytest.raises(ValueError, match=r'nothing offers counterfactual .* which rule="counterfactual" does'):
        mmspec.enable(model, "ambedkar", drafter=model, condition="", swap=PAIRS)
