"""The file of a judge: one linear layer, and the identity of the model whose states it reads.

A safetensors file with `weight [hidden]` and `bias [1]`; its metadata names the format, the target and the target's
identity (`mmspec.hosts.fingerprint`).
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mmspec.core.capabilities import RunsModel
from mmspec.core.hidden import GivesHidden
from mmspec.core.protocols import Target
from mmspec.files import save_whole
from mmspec.hosts.fingerprint import identity
from mmspec.registry.printable import shown

FORMAT = "mmspec-judge-1"


@dataclass(frozen=True, eq=False)
class JudgeHead:
    """A judge: σ(w·h + b) is the probability that a token is right, given the target's state h at the token."""

    weight: Tensor  # w, `[hidden]` float32
    bias: Tensor  # b, `[1]` float32
    target: str = ""
    identity: str = ""  # the target's identity; "" for a target without a model, such as a toy

    def logit(self, states: Tensor) -> Tensor:
        """w·h + b of states `[…, hidden]`, in float32."""
        return states.float() @ self.weight + self.bias

    def to(self, device: torch.device) -> "JudgeHead":
        """The judge on a device."""
        return replace(self, weight=self.weight.to(device), bias=self.bias.to(device))

    def save(self, path: Path) -> None:
        """Write the file, whole."""
        about = {"format": FORMAT, "target": self.target, "identity": self.identity}
        tensors = {"weight": self.weight.contiguous(), "bias": self.bias.contiguous()}
        save_whole(path, lambda side: save_file(tensors, side, about))

    @classmethod
    def load(cls, path: Path) -> "JudgeHead":
        """Read the file.

        Raises:
            ValueError: There is none, it is damaged, or it holds something else.
        """
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
        """The target, if it is the one whose states the judge reads.

        Raises:
            ValueError: It gives no states, states of another width, or is another model.
        """
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
