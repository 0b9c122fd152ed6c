"""`counterfactual`: of the proposals that a draft has, the one that a swap of identities changes least. Lossy.

AMBEDKAR (arXiv 2509.02133), whose verifier does not ask which proposal is likeliest. For every proposal c behind a node
it compares what the target says next in the text and in the same text with other names for who it is about, by the
Jensen-Shannon divergence J(c) = JSD(p(· | text, c), p(· | swapped text, c)). The proposal of the least J is emitted,
the earliest of equal ones. (The paper's text could not be read here: this is a summary's.) The path of choices is
accepted as deep as a draft goes; its last unit is emitted as the round's, where what follows it has no proposals yet.
A call's first unit and its last one, which no draft has, are the target's own.
`TargetOutput.auxiliary [batch, node]` has J, of a target that knows it (`SwappedTarget`); where there is none, or no
proposal, the target's own unit is emitted, with the noise of its position.
Guarantee: none. Its bias is the total variation of the emitted unit from the target's distribution, 1 - p(c).
Knobs: `above` (nats, at most ln 2: where no proposal is as divergent, the target's own unit stays; 0 chooses always, as
in the paper, and 1 never, which is exact).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.distributions import Categorical, take_nodes
from mmspec.core.noise import DraftNoise, Round
from mmspec.core.rules.rule import walk
from mmspec.core.types import Draft, Scores, TargetOutput, Verdict
from mmspec.registry.options import option
from mmspec_zoo.conditioned.paired import PairedTarget, padded
from mmspec_zoo.specs import COUNTERFACTUAL


@dataclass(frozen=True)
class CounterfactualOptions:
    above: Annotated[float, Field(ge=0, le=1)] = option(
        0.0, "least divergence of a proposal, in nats, from which on the least divergent is chosen; 1: never, exact"
    )


class Counterfactual:
    exactness: str = COUNTERFACTUAL.exactness
    by_position = True
    needs, offers = COUNTERFACTUAL.needs, COUNTERFACTUAL.offers

    def __init__(self, options: CounterfactualOptions = CounterfactualOptions()) -> None:
        self.options = options

    def draft_noise(self, round: Round) -> DraftNoise:
        return DraftNoise(round, shared=True)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        distribution = scores.distribution
        drawn = distribution.draw(round.by_position(draft.index))
        units, none = distribution.units(drawn), torch.zeros_like(draft.valid, dtype=torch.float32)
        if scores.auxiliary is None or draft.nodes == 1:
            return replace(walk(draft, drawn, units), tv=none, excess_acceptance=none)
        chosen, most = least_divergent(draft, scores.auxiliary)
        chooses = most >= self.options.above
        wanted = torch.where(chooses, take_nodes(draft.units, chosen), units)
        verdict = walk(draft, drawn, wanted)
        # The unit behind the last choice is not emitted: the choice itself is the round's last unit.
        last = (verdict.length - 1).clamp(min=0)[:, None]
        nodes = verdict.path.clamp(min=0)
        before = torch.where(last > 0, nodes.gather(1, (last - 1).clamp(min=0)), 0)
        bare = take_nodes(most, nodes.gather(1, last))[:, 0].isneginf()
        cut = (verdict.length > 0) & take_nodes(chooses, before)[:, 0] & bare
        length = verdict.length - cut.long()
        unit = torch.where(cut, take_nodes(draft.units, nodes.gather(1, last))[:, 0], verdict.unit)
        path = torch.where(torch.arange(verdict.path.shape[1], device=last.device) < length[:, None], verdict.path, -1)
        if isinstance(distribution, Categorical):
            likely = distribution.on(None).gather(-1, wanted[..., None])[..., 0]
        else:
            likely = (wanted == units).float()
        tv = torch.where(chooses, 1 - likely, none)
        return Verdict(path, length, unit, drawn, tv, tv)


def least_divergent(draft: Draft, divergence: Tensor) -> tuple[Tensor, Tensor]:
    """The child of every node with the least of `divergence [batch, node]`, and the largest one of its children, -inf
    where there are none: `[batch, node]` each.
    """
    nodes = torch.arange(draft.nodes, device=divergence.device)
    child = (draft.index.parent[:, None] == nodes[:, None]) & draft.valid[:, None] & (nodes > 0)  # [batch, node, child]
    each = divergence[:, None].expand(-1, draft.nodes, -1)
    return torch.where(child, each, torch.inf).argmin(-1), torch.where(child, each, -torch.inf).amax(-1)


class SwappedTarget(PairedTarget):
    """A target that says, beside its scores, how far they are from those behind prompts with other identities."""

    def together(self, output: TargetOutput, second: TargetOutput) -> TargetOutput:
        assert output.logits is not None and second.logits is not None, "both are one model over a vocabulary"
        return replace(output, auxiliary=divergence(output.logits, second.logits))


def divergence(scores: Tensor, second: Tensor) -> Tensor:
    """The Jensen-Shannon divergence of two distributions, from their scores `[…, vocab]`, in nats: `[…]`."""
    p, q = (each.float().log_softmax(-1) for each in (scores, second))
    middle = torch.logaddexp(p, q) - torch.log(torch.tensor(2.0))
    return ((p.exp() * (p - middle) + q.exp() * (q - middle)).sum(-1) / 2).clamp(min=0)


def swapped(pairs: Sequence[Sequence[str]], tokenizer: Any) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    """A function of prompts `[batch, length]` behind `pads [batch]` of padding: the same with the words of each pair in
    each other's place. A prompt without any of them keeps its ids.
    """
    other = {one: two for first, second in pairs for one, two in ((first, second), (second, first))}
    words = re.compile(rf"\b({'|'.join(map(re.escape, sorted(other, key=len, reverse=True)))})\b")

    def row(ids: Tensor) -> Tensor:
        text = tokenizer.decode(ids, skip_special_tokens=False)
        new = words.sub(lambda found: other[found[0]], text)
        given = ids if new == text else torch.tensor(tokenizer(new, add_special_tokens=False)["input_ids"])
        return given.to(ids.device)

    return lambda units, pads: padded([row(ids[pad:]) for ids, pad in zip(units, pads.tolist(), strict=True)])
