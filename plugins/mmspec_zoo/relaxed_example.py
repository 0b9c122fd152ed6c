"""What the conformance kit tries the relaxed rules on."""

import torch

from mmspec.hosts.fingerprint import identity
from mmspec.testing import tiny_models
from mmspec.testing.conformance.example import Example
from mmspec_zoo.relaxed.judge import JudgeHead, JudgeOptions
from mmspec_zoo.relaxed.rollback import RollbackOptions


def rollback() -> Example:
    """A threshold that some units of a toy are below, and some above."""
    return Example(options=RollbackOptions(threshold=1.0), strict={"threshold": 0.0})


def judge() -> Example:
    """A layer of random weights that accepts some units of the kit's model, and refuses others."""
    model = tiny_models.llama()
    weight = torch.randn(model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    head = JudgeHead(weight, torch.zeros(1), "the kit's model", identity(model))
    settings = vars(tiny_models.transformers())
    return Example(**{**settings, "options": JudgeOptions(head=head), "strict": {"threshold": 1.0}})
