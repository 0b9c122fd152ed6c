"""`judge`: accept a drafted token that a small trained layer finds right, though the target would write another. Lossy.

Judge decoding (Bachmann et al., arXiv 2501.19309). Verification asks whether a token is the target's own; a judge asks
whether it is a right one. It is one linear layer on the target's last hidden state *at the drafted token itself*: the
pass that verifies the draft reads the token, so that its state is there and costs no further pass. A token is accepted
if σ(w·h + b) > δ, or if the base rule accepts it; the first one that both refuse ends the draft, and the base rule's
own draw takes its place.
The base rule here is `match`, so that with δ = 1 the output is plain decoding's for the same seed.
The paper could not be read here: δ = 0.5, the weighted loss and the data (`mmspec train judge`) are a reconstruction.
Guarantee: none below δ = 1. Given a drafted token x, the emitted one is x where the judge accepts it, and the target's
own draw where it does not: at total variation 1 - p(x) from p, or 0. That is what is measured. Where drafts are point
masses (greedy ones, lookups, copies) it is the bias itself; where they are drawn, its mean over drafts is no less than
the bias, because a draw that shares the target's noise equals it with a probability of at least p(x).
A judge knows texts like those that it was trained on (the paper's accuracy drops beyond them).
Knobs: `head`; `threshold` (δ: lower accepts more and alters more; 0 accepts everything).
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mmspec.core.capabilities import RunsModel
from mmspec.core.distributions import Categorical, Distribution
from mmspec.core.hidden import FINAL, GivesHidden, ReadsHidden
from mmspec.core.noise import DraftNoise, Round
from mmspec.core.protocols import Target
from mmspec.core.rules.rule import walk, walk_where
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.files import save_whole
from mmspec.hosts.fingerprint import identity
from mmspec.hosts.loading import PREFIX
from mmspec.registry.options import option
from mmspec.registry.printable import shown
from mmspec.shipped import asset
from mmspec_zoo.specs import JUDGE

FORMAT = "mmspec-judge-1"
FILE = "judge.safetensors"  # of a shipped judge, in its folder


@dataclass(frozen=True, eq=False)
class JudgeHead:
    """A judge: σ(w·h + b) is the probability that a token is right, given the target's state h at the token.

    Its file is of safetensors, with `weight [hidden]` and `bias [1]`; the metadata names the format, the target and the
    target's identity (`mmspec.hosts.fingerprint`).
    """

    weight: Tensor  # w, `[hidden]` float32
    bias: Tensor  # b, `[1]` float32
    target: str = ""
    identity: str = ""  # the target's identity; "" for a target without a model, such as a toy

    def logit(self, states: Tensor) -> Tensor:
        """w·h + b of states `[…, hidden]`, in float32."""
        return states.float() @ self.weight + self.bias

    def to(self, device: torch.device) -> "JudgeHead":
        return replace(self, weight=self.weight.to(device), bias=self.bias.to(device))

    def save(self, path: Path) -> None:
        """Write the file, whole."""
        about = {"format": FORMAT, "target": self.target, "identity": self.identity}
        tensors = {"weight": self.weight.contiguous(), "bias": self.bias.contiguous()}
        save_whole(path, lambda side: save_file(tensors, side, about))

    @classmethod
    def load(cls, name: str | Path) -> "JudgeHead":
        """Read the file; of a shipped judge by its name, `mmspec/…`."""
        is_shipped = isinstance(name, str) and name.startswith(PREFIX)
        path = asset(str(name).removeprefix(PREFIX)) / FILE if is_shipped else Path(name)
        if not path.is_file():
            raise ValueError(f"there is no judge {shown(path)}; `mmspec train judge` makes one")
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ValueError(f"the judge {shown(path)} cannot be read: {shown(error)}") from error
        weight, bias = tensors.get("weight"), tensors.get("bias")
        if about.get("format") != FORMAT or weight is None or bias is None or set(tensors) != {"weight", "bias"}:
            raise ValueError(f"{shown(path)} is no judge: it is not of the format {FORMAT}; see `mmspec train judge`")
        if weight.dim() != 1 or bias.shape != (1,) or not weight.is_floating_point() or not bias.is_floating_point():
            raise ValueError(f"{shown(path)} is no judge: weight is {list(weight.shape)}, and bias {list(bias.shape)}")
        if not (weight.isfinite().all() and bias.isfinite().all()):
            raise ValueError(f"the judge {shown(path)} holds numbers that are not finite")
        return cls(weight.float(), bias.float(), about.get("target", ""), about.get("identity", ""))

    def refuse_other(self, target: Target) -> GivesHidden:
        """The target, if it is the one whose states the judge reads."""
        if not isinstance(target, GivesHidden):
            raise ValueError(f"a judge reads the target's hidden states, and {type(target).__name__} gives none")
        whose = f"the judge was trained on the states of {shown(self.target) or 'another model'}"
        if target.hidden_size != len(self.weight):
            raise ValueError(
                f"{whose}, which have {len(self.weight)} numbers, and the target's have {target.hidden_size}: train "
                "one for this target (`mmspec train judge`)"
            )
        own = identity(target.model) if isinstance(target, RunsModel) else ""
        if own != self.identity:
            raise ValueError(
                f"{whose} (identity {shown(self.identity) or 'unknown'}), and this target has other weights "
                f"(identity {own or 'unknown'}): train one for this target (`mmspec train judge`)"
            )
        return target


@dataclass(frozen=True)
class JudgeOptions:
    head: Any = option(None, "the file that `mmspec train judge` wrote for this target, or mmspec/text-14m-judge")
    threshold: Annotated[float, Field(ge=0, le=1)] = option(
        0.5, "δ: least probability of a right token; 1 accepts the target's own only"
    )


class Judge:
    """The rule `judge`."""

    exactness: str = JUDGE.exactness
    needs, offers = JUDGE.needs, JUDGE.offers
    by_position = True

    def __init__(self, options: JudgeOptions = JudgeOptions()) -> None:
        if options.head is None:
            raise ValueError("the rule judge needs a judge: head=FILE, which `mmspec train judge` makes for a target")
        self.options = options
        self.head = options.head if isinstance(options.head, JudgeHead) else JudgeHead.load(options.head)
        delta = options.threshold
        self._least = math.inf if delta == 1 else -math.inf if delta == 0 else math.log(delta / (1 - delta))

    def wrap(self, target: Target) -> Target:
        return self.head.refuse_other(target).with_hidden([FINAL])

    def bind(self, target: Target) -> None:
        if not isinstance(target, ReadsHidden) or target.boundaries != (FINAL,):
            raise ValueError(
                "a judge and this drafter read different hidden states of the target; take a drafter without a "
                "trained head, such as draft-model"
            )

    def draft_noise(self, round: Round) -> DraftNoise:
        return DraftNoise(round, shared=True)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        distribution = scores.distribution
        drawn = distribution.draw(round.by_position(draft.index))
        units = distribution.units(drawn)
        if draft.nodes == 1:  # nothing was drafted, and there is nothing to judge
            none = torch.zeros(drawn.shape[:2], device=drawn.device)
            return replace(walk(draft, drawn, units), tv=none, excess_acceptance=none)
        right = self._right(scores)
        own = units[:, :-1] == draft.drafted
        verdict = walk_where(draft, right | own, drawn, units)
        altered = torch.where(right, 1 - _chance(distribution, draft.drafted, own), 0.0)
        altered = torch.nn.functional.pad(torch.where(draft.valid[:, 1:], altered, 0.0), (0, 1))
        return replace(verdict, tv=altered, excess_acceptance=altered)

    def _right(self, scores: Scores) -> Tensor:
        """True if the judge accepts the drafted nodes: `[batch, node - 1]` bool."""
        assert scores.hidden is not None, "the target was wrapped"
        if self.head.weight.device != scores.hidden.device:
            self.head = self.head.to(scores.hidden.device)
        return self.head.logit(scores.hidden[:, 1:]) > self._least


def _chance(distribution: Distribution, units: Tensor, own: Tensor) -> Tensor:
    """The target's probabilities of drafted units `[batch, node - 1]`; of a greedy call, whether they are its own."""
    if not isinstance(distribution, Categorical):
        return own.float()
    return distribution.take(torch.arange(units.shape[1], device=units.device)[None]).of(units)
