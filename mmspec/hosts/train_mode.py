"""Refusal of models in `train()` mode whose layers compute something else than in `eval()` mode.

Dropout draws for every unit of a pass, and a pass over a draft has other units than transformers' own step. Models in
`train()` mode without such layers are accepted.
"""

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from transformers import PreTrainedConfig

_RANDOM = ("drop", "jitter")
"""Attributes whose name has one of these parts are rates of layers that call a dropout function."""

_CONFIGURED = ("attention_dropout", "hidden_dropout", "layerdrop")  # rates that some layers read from their config


def refuse_training(model: nn.Module, role: str = "model") -> None:
    """Refuse a model that computes something else than in `eval()` mode."""
    for name, module in model.named_modules():
        why = _difference(module) if module.training else ""
        if why:
            where = f"its {name}" if name else f"{type(module).__name__}"
            raise ValueError(
                f"the {role} is in train() mode, where {where} {why}, so that drafts cannot be verified exactly; call "
                f"eval() on the {role}, as in model.eval()"
            )


def _difference(module: Any) -> str:
    """The work that a module does only in training mode; "" if nothing."""
    if isinstance(module, _DropoutNd):
        return f"drops units at random (p={module.p})" if module.p else ""
    if isinstance(module, _BatchNorm):
        return "normalises by the batch at hand"
    if vars(module).get("gradient_checkpointing"):
        return "keeps no cache (gradient checkpointing)"
    rates = {name: value for name, value in vars(module).items() if any(word in name for word in _RANDOM)}
    config = vars(module).get("config")
    if isinstance(config, PreTrainedConfig):
        rates = {name: value for name, value in vars(config).items() if name in _CONFIGURED} | rates
    active = [f"{name}={rate}" for name, rate in rates.items() if isinstance(rate, float) and rate > 0]
    return f"draws at random ({active[0]})" if active else ""
