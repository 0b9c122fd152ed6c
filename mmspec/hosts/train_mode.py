"""Models in `train()` mode: what works otherwise there than in `eval()`, and cannot be the same under speculation.

Dropout draws for every unit of a pass, and a pass over a draft has other units than one of transformers' own steps.
What does nothing in `train()` mode does no harm there: such models are taken.
"""

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from transformers import PreTrainedConfig

_RANDOM = ("drop", "jitter")
"""Parts of the names of attributes that a layer reads as a rate, where it calls a function and has no module for it."""

_CONFIGURED = ("attention_dropout", "hidden_dropout", "layerdrop")
"""Rates that some layers read from their configuration."""


def refuse_training(model: nn.Module, role: str = "model") -> None:
    """Refuse a model that is not what it would be in `eval()` mode.

    Args:
        model: The live model.
        role: What the message calls it.

    Raises:
        ValueError: Names the first layer that works otherwise.
    """
    for name, module in model.named_modules():
        why = _otherwise(module) if module.training else ""
        if why:
            where = f"its {name}" if name else f"{type(module).__name__}"
            raise ValueError(
                f"the {role} is in train() mode, where {where} {why}, so that drafts cannot be verified exactly; call "
                f"eval() on the {role}, as in model.eval()"
            )


def _otherwise(module: Any) -> str:
    """What a module in training does; empty where that is what it does in evaluation."""
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
