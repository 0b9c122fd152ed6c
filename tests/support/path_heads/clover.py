"""Clover's speculators: a cell for each depth, or one."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from mmspec_text.drafters.clover import Clover, read_clover
from tests.support.eagle_forward import norm
from tests.support.path_heads.block import CONFIG, HEADS, WIDTH, attended, block_shapes, last_state
from tests.support.path_heads.layout import Given, PathLayout, Shapes

UNITS = 3


def shapes(cells: int, hidden: int, vocab: int) -> Shapes:
    made = block_shapes("augmenting.", hidden)
    for cell in range(cells):
        made |= {f"cells.{cell}.{part}_norm.weight": (hidden,) for part in ("state", "token")}
        made |= {f"cells.{cell}.{part}_proj.weight": (HEADS * WIDTH, hidden) for part in "qkv"}
        made[f"cells.{cell}.o_proj.weight"] = (hidden, HEADS * WIDTH)
    return {**made, "norm.weight": (hidden,)}


def forward(cells: int, given: Given, features: Tensor, units: Sequence[int], path: Sequence[int]) -> list[Tensor]:
    w, eps = given.weights, float(given.config["rms_norm_eps"])
    states, found = [last_state(w, "augmenting.", features)], []
    for depth, unit in enumerate([units[-1], *path]):
        name = f"cells.{min(depth, cells - 1)}"
        token = norm(given.embedding[unit], w[f"{name}.token_norm.weight"], eps)
        seen = [*(norm(state, w[f"{name}.state_norm.weight"], eps) for state in states), token]
        query = w[f"{name}.q_proj.weight"] @ token
        keys, values = ([w[f"{name}.{part}_proj.weight"] @ x for x in seen] for part in "kv")
        out = []
        for head in range(HEADS):
            own = slice(head * WIDTH, (head + 1) * WIDTH)
            out.append(attended(query[own], [key[own] for key in keys], [value[own] for value in values]))
        states.append(states[-1] + w[f"{name}.o_proj.weight"] @ torch.cat(out))
        found.append(given.output @ norm(states[-1], w["norm.weight"], eps))
    return found


def layout(cells: int) -> PathLayout:
    return PathLayout(
        Clover,
        read_clover,
        lambda key: key,
        lambda hidden, vocab: {**CONFIG, "num_speculators": UNITS, "vocab_size": vocab},
        partial(shapes, cells),
        partial(forward, cells),
    )


CLOVER = {"clover": layout(UNITS), "clover-one-cell": layout(1)}
