"""The head that ends drafts: a linear layer that says how likely it is that the next piece is accepted.

OmniDraft (arXiv 2507.02659) ends a draft where P(any piece is refused) > γ. The layer reads the small model's last
state in front of a piece, so that it decides before the piece is drawn, and learns Σ min(p, q), which min(1, p / q) of
a drawn unit is on average: by binary cross-entropy, between calls (`mmspec_zoo.vocabularies.lesson`). The paper's, by
notes on it, reads the piece, too. It begins with a chance of 0.88 everywhere.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmspec.core.hidden import FINAL
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.target import TransformersTarget

FILE = "stop_head.safetensors"
"""In the folder of a small model that learnt."""
BEGUN = 2.0
"""The logit that a new head has everywhere."""


def stop_head(small: TransformersTarget, model: Any) -> nn.Linear:
    """The head that is stored beside a small model, which a name or a folder may say, or a new one."""
    head = nn.Linear(small.hidden_size, 1, device=small.model.device)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.fill_(BEGUN)
    file = Path(model) / FILE if isinstance(model, str | Path) else None
    if file is not None and file.is_file():
        head.load_state_dict(load_file(file))
    return head


def save_stop_head(head: nn.Linear, folder: Path) -> None:
    """Write it beside its small model."""
    save_file({name: weight.detach().contiguous() for name, weight in head.named_parameters()}, folder / FILE)


class Guessing:
    """A small model whose outputs say how likely the next piece is accepted: `TargetOutput.auxiliary`."""

    def __init__(self, target: TransformersTarget, head: nn.Linear) -> None:
        self.target, self.head = target.with_hidden([FINAL]), head
        self.offers, self.vocab, self.context = target.offers, target.vocab, target.context
        self.commit, self.truncate = self.target.commit, self.target.truncate

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        started = self.target.start(inputs, limit, width)
        return replace(started, hidden=None)

    @torch.no_grad()
    def verify(self, cache: Any, draft: Draft, first: int = 0) -> TargetOutput:
        output = self.target.verify(cache, draft, first)
        assert output.hidden is not None
        sure: Tensor = self.head.to(output.hidden.device)(output.hidden.float())[..., 0].sigmoid()
        return replace(output, hidden=None, auxiliary=sure)
