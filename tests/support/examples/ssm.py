"""Recurrent layers: tiny models with random weights."""

from functools import cache

from transformers import BambaConfig

from mmspec.testing import Example
from mmspec.testing import tiny_models as tiny
from mmspec_ssm.drafters.stree import StreeOptions
from mmspec_ssm.target import RecurrentTarget
from tests.support import random_models

MAMBA = dict(mamba_n_heads=4, mamba_d_head=8, mamba_d_state=4, mamba_n_groups=1, mamba_expand=2)


@cache
def hybrid() -> Example:
    """The target `recurrent` on a Mamba-2 layer and one of attention."""
    model = random_models.random_model(BambaConfig(**tiny.SIZES, **MAMBA, attn_layer_indices=[1]), gain=4.0, head=8.0)
    return Example(target=RecurrentTarget(model), prompt=tiny.prompt, again=tiny.again)


def stree() -> list[Example]:
    """A tree and a chain of fixed sizes; a measured size would make drafts depend on the speed of the machine."""
    return [
        Example(options=StreeOptions(model=random_models.small(), nodes=7, rates=(0.6, 0.2))),
        Example(options=StreeOptions(model=random_models.small(), nodes=7, form="chain")),
    ]


EXAMPLES = {"ssm:recurrent": hybrid, "ssm:stree": stree}
