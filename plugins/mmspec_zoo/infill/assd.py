"""`assd`: an any-order model drafts for itself, several blanks at once as if they were independent.

Any-subset speculative decoding (Guo and Ermon, arXiv 2504.20456, algorithm 1; read from the released code, MIT):
* Draft: one pass in which no blank that is still empty sees another gives q_1 … q_k, the distributions of the next k
  blanks of the order given the filled ones; their tokens are drawn independently.
* Verify: one pass with the drafted tokens in their places and the order in the mask gives p_1 … p_k, the conditionals
  of the order, and here p_{k+1} too, which the release leaves out.
* The rule keeps token i with probability min(1, p_i / q_i), and draws the first one that is not kept from the residual.
q_1 = p_1, so the first token is always kept: a round has two passes and fills two blanks at least, and a last blank is
filled by one pass. So a row of n blanks takes n passes at most, prefill and drafts included
(`1 + report.equivalent_passes`). The release lets the caller pick an n-gram drafter instead, which is not here.
Guarantee: `lossless` under `rejection`; under `match` the output is plain decoding's in the same order.
Knob: `k` blanks are drafted a round; more are worth less, as a blank's own neighbours are then still empty.
"""

from dataclasses import replace

import torch

from mmspec.core.drafters.growing import grown
from mmspec.core.drafters.none import Memoryless
from mmspec.core.drafters.shapes import Chain
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, TargetOutput
from mmspec_zoo.infill.any_order import AnyOrder
from mmspec_zoo.specs import ASSD


class Assd(Memoryless):
    needs, offers = ASSD.needs, ASSD.offers
    runs_target = True

    def bind(self, target: Target) -> None:
        if not isinstance(target, AnyOrder):
            raise ValueError(f"{type(target).__name__} cannot score several blanks at once, which assd drafts with")
        self._target = target

    def width(self, k: int) -> int:
        return k

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        output = self._target.ahead(state.cache, state.root, k)
        state.report.inner_passes += 1

        def scored(draft: Draft, first: int) -> TargetOutput:
            return output.take(draft.index.depth[:, first:])

        first = output.take(torch.zeros_like(state.root[:1, None]))
        draft, _, _ = grown(Chain(), state, k, k, noise, first, feed=scored)
        # The root fills one of the row's own blanks, and the round's last unit another.
        room = self._target.left(state.cache)[:, None] - 2
        return replace(draft, valid=draft.valid & (draft.index.depth[:, 1:] <= room))
