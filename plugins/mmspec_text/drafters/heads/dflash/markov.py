"""DSpark's Markov head: a term of the logits that depends on the unit before (arXiv 2607.05147, eq. 5 and 6).

    vanilla: w2 e;   gated: w2 (sigmoid(gate [h, e]) e);   e = w1[unit before], h = the block's state
    rnn: g, c, o = joint [s, e, h];  s' = sigmoid(g) s + (1 - sigmoid(g)) tanh(c);  term: w2 tanh(o)

Names of parameters are the keys of checkpoints.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec_text.drafters.heads.dflash.architecture import DFlashArchitecture


class Markov(nn.Module):
    """See the module."""

    def __init__(self, a: DFlashArchitecture) -> None:
        super().__init__()
        self.kind, self.rank = a.sequel, a.rank
        self.markov_w1 = nn.Embedding(a.vocab, a.rank)
        self.markov_w2 = nn.Linear(a.rank, a.draft_vocab, bias=False)
        if a.sequel == "gated":
            self.gate_proj = nn.Linear(a.hidden + a.rank, a.rank)
        if a.sequel == "rnn":
            self.joint_proj = nn.Linear(2 * a.rank + a.hidden, 3 * a.rank)

    def forward(self, scored: Tensor, units: Tensor, states: Tensor, above: Tensor | None) -> tuple[Tensor, Tensor]:
        """As `Sequel`; what children need is the recurrent state, which has no width but for `rnn`."""
        before = F.embedding(units, self.markov_w1.weight)
        if self.kind == "rnn":
            above = torch.zeros_like(before) if above is None else above
            gate, new, out = self.joint_proj(torch.cat([above, before, states], -1)).chunk(3, -1)
            gate = gate.sigmoid()
            return self._added(scored, out.tanh()), gate * above + (1 - gate) * new.tanh()
        if self.kind == "gated":
            before = self.gate_proj(torch.cat([states, before], -1)).sigmoid() * before
        return self._added(scored, before), before[..., :0]

    def _added(self, scored: Tensor, state: Tensor) -> Tensor:
        """Logits with the term; the target's output layer may have fewer rows than the head."""
        term: Tensor = self.markov_w2(state)
        return scored + term[..., : scored.shape[-1]]
