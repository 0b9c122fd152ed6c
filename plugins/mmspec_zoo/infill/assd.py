"""`assd`: an any-order model drafts for itself, several blanks at once as if they were independent.

Any-subset speculative decoding (Guo and Ermon, arXiv 2504.20456, algorithm 1; read from the released code, MIT):
* Draft: one pass in which no blank that is still empty sees another gives q_1 … q_k, the distributions of the next k
  blanks of the order given the filled ones; their tokens are drawn independently.
* Verify: one pass with the drafted tokens in their places and the order in the mask gives p_1 … p_k, the conditionals
  of the order, and here p_{k+1} too, which the release leaves out.
* The rule keeps token i with probability min(1, p_i / q_i), and draws the first one that is not kept from the residual.
q_1 = p_1, so the first token is always kept: a round has two passes and fills two blanks at least, and a last blank is
filled by one pass. So a row of n blanks takes n passes at most, prefill and drafts included
(`1 + report.equivalent_passes`).
With `draft=bigram` the text itself drafts, without a pass (the release's `context_ngram.py`): a blank's token follows
its left neighbour, known or drafted just before, as often as it does so in the known text; behind a neighbour that is
empty, or that nothing follows there, and at the text's beginning, known tokens count alone. The release lets the model
draft there in the last of these cases. Counts are those of the filled text in every round.
Guarantee: `lossless` under `rejection`; under `match` the output is plain decoding's in the same order.
Knobs: `draft`; `k` blanks are drafted a round; more are worth less, as a blank's own neighbours are then still empty.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from mmspec.core.drafters.growing import grown
from mmspec.core.drafters.none import Memoryless
from mmspec.core.drafters.shapes import Chain
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, TargetOutput
from mmspec.registry.options import option
from mmspec_zoo.infill.any_order import AnyOrder, Filling
from mmspec_zoo.specs import ASSD


@dataclass(frozen=True)
class AssdOptions:
    """Options of `assd`."""

    draft: Literal["model", "bigram"] = option(
        "model", "what drafts: the model in a pass of its own, or the known text"
    )


class Assd(Memoryless):
    needs, offers = ASSD.needs, ASSD.offers

    def __init__(self, options: AssdOptions = AssdOptions()) -> None:
        self.options = options
        self.runs_target = options.draft == "model"

    def bind(self, target: Target) -> None:
        if not isinstance(target, AnyOrder):
            raise ValueError(f"{type(target).__name__} cannot score several blanks at once, which assd drafts with")
        assert target.vocab is not None
        self._target, self._vocab = target, target.vocab

    def width(self, k: int) -> int:
        return k

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        cache, root = state.cache, state.root[:, None]
        if self.options.draft == "bigram":
            known = cache.text(root)

            def scored(draft: Draft, first: int) -> TargetOutput:
                return bigrams(cache, known, draft.units, self._vocab)

            first = bigrams(cache, known, root, self._vocab)
        else:
            output = self._target.ahead(cache, state.root, k)
            state.report.inner_passes += 1

            def scored(draft: Draft, first: int) -> TargetOutput:
                return output.take(draft.index.depth[:, first:])

            first = output.take(torch.zeros_like(root[:1]))
        draft, _, _ = grown(Chain(), state, k, k, noise, first, feed=scored)
        # The root fills one of the row's own blanks, and the round's last unit another.
        room = self._target.left(state.cache)[:, None] - 2
        return replace(draft, valid=draft.valid & (draft.index.depth[:, 1:] <= room))


def bigrams(cache: Filling, known: tuple[Tensor, Tensor], units: Tensor, vocab: int) -> TargetOutput:
    """The output behind `units [batch, n]`, the root and a drafted chain: how often each token follows the next blank's
    left neighbour in the `known` text, which has the root alone; else how often it is there.
    """
    ids, there = known
    filled, drafted = cache.text(units)
    at = cache.behind(units.shape[1], 1)  # [batch, 1]
    left, has_left = filled.gather(1, (at - 1).clamp(min=0)), drafted.gather(1, (at - 1).clamp(min=0)) & (at > 0)
    follows = (ids[:, :-1] == left) & there[:, :-1] & there[:, 1:] & has_left
    none = torch.zeros(len(ids), vocab, device=ids.device)
    counts = none.scatter_add(1, ids[:, 1:], follows.float())
    alone = none.scatter_add(1, ids, there.float())
    return TargetOutput(logits=torch.where(follows.any(1, keepdim=True), counts, alone).log()[:, None])
