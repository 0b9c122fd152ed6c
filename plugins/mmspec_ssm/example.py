"""What the conformance kit tries this plugin on: tiny models with random weights."""

from functools import cache

from mmspec.testing.conformance import tiny
from mmspec.testing.conformance.example import Example
from mmspec_ssm.drafters.stree import StreeOptions
from mmspec_ssm.target import RecurrentTarget
from tests.support.zoo.recipe import Recipe

SIZES = dict(
    tiny.SIZES,
    mamba_n_heads=4,
    mamba_d_head=8,
    mamba_d_state=4,
    mamba_n_groups=1,
    mamba_expand=2,
    attn_layer_indices=[1],
)


@cache
def hybrid() -> Example:
    """Of the target `recurrent`: a Mamba-2 layer and one of attention."""
    model = Recipe("bamba", "ssd", SIZES, gain=4.0, head=8.0).model()
    return Example(target=RecurrentTarget(model), prompt=tiny.prompt, again=tiny.again)


def stree() -> list[Example]:
    """A tree, and a chain."""
    return [
        Example(options=StreeOptions(model=tiny.small(), nodes=7, rates=(0.6, 0.2))),
        Example(options=StreeOptions(model=tiny.small(), nodes=7, shape="chain")),
    ]
