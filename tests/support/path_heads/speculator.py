"""MLP speculators, tied or not, and an LSTM speculator."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmspec_text.drafters.mlp_speculator import ArcticLstm, MlpSpeculator, canonical, read_lstm, read_mlp
from tests.support.path_heads.layout import Given, PathLayout, Shapes, gelu, scaled

UNITS, INNER = 3, 10


def mixture(config: Mapping[str, Any]) -> tuple[float, float]:
    """The weights of a state and of an embedding."""
    state = 0.5 ** (0.5 / int(config["n_predict"]))
    return state, math.sqrt(1 - state**2) * math.sqrt(INNER / 2)


def shapes(tied: bool, hidden: int, vocab: int) -> Shapes:
    made: Shapes = {}
    for depth in range(1 if tied else UNITS):
        made[f"speculator.emb.{depth}.weight"] = (vocab, INNER)
        made[f"speculator.ln.{depth}.weight"] = made[f"speculator.ln.{depth}.bias"] = (INNER,)
        made[f"speculator.head.{depth}.weight"] = (vocab, INNER)
    for depth in range(2 if tied else UNITS):
        made[f"speculator.proj.{depth}.weight"] = (INNER, hidden if depth == 0 else INNER)
    return made


def forward(tied: bool, given: Given, features: Tensor, units: Sequence[int], path: Sequence[int]) -> list[Tensor]:
    w = {key.removeprefix("speculator."): value for key, value in given.weights.items()}
    state, found = features[-1].double(), []
    of_state, of_token = mixture(given.config)
    if given.config.get("scale_input"):
        state = scaled(state) / math.sqrt(2)
    for depth, unit in enumerate([units[-1], *path]):
        own, proj = (0, min(depth, 1)) if tied else (depth, depth)
        mixed = of_state * (w[f"proj.{proj}.weight"] @ state) + of_token * w[f"emb.{own}.weight"][unit]
        state = gelu(scaled(mixed) * w[f"ln.{own}.weight"] + w[f"ln.{own}.bias"])
        found.append(w[f"head.{own}.weight"] @ state)
    return found


def lstm_shapes(hidden: int, vocab: int) -> Shapes:
    norms = {f"{part}_ln.0.{end}": (INNER,) for part in ("cell", "state") for end in ("weight", "bias")}
    tables = {"forget_emb.0.weight": (vocab, INNER), "head.0.weight": (vocab, INNER)}
    return {"projs.0.weight": (4 * INNER, hidden), "projs.1.weight": (4 * INNER, INNER), **norms, **tables}


def lstm_forward(given: Given, features: Tensor, units: Sequence[int], path: Sequence[int]) -> list[Tensor]:
    w, found = given.weights, []
    state, cell = features[-1].double(), torch.zeros(INNER, dtype=torch.float64)
    of_state, of_token = mixture(given.config)
    if given.config.get("scale_input"):
        state = scaled(state) / math.sqrt(2)
    for depth, unit in enumerate([units[-1], *path]):
        fed = of_token / of_state * w["forget_emb.0.weight"][unit].repeat(4)
        z = w[f"projs.{min(depth, 1)}.weight"] @ state + fed
        forget, take, give, new = (z[i * INNER : (i + 1) * INNER] for i in range(4))
        new = gelu(scaled(new) * w["cell_ln.0.weight"] + w["cell_ln.0.bias"])
        cell = cell / (1 + torch.exp(-forget)) + new / (1 + torch.exp(-take))
        state = gelu(scaled(cell) * w["state_ln.0.weight"] + w["state_ln.0.bias"]) / (1 + torch.exp(-give))
        found.append(w["head.0.weight"] @ state)
    return found


def config(tied: bool, scale: bool, hidden: int, vocab: int) -> dict[str, Any]:
    sizes = {"emb_dim": hidden, "inner_dim": INNER, "vocab_size": vocab, "n_predict": UNITS}
    return {"model_type": "mlp_speculator", **sizes, "tie_weights": tied, "scale_input": scale}


def lstm_config(hidden: int, vocab: int) -> dict[str, Any]:
    widths = {"emb_dim": str(INNER), "inner_dim": str(INNER), "proj_dim": str(INNER), "input_hidden_dim": hidden}
    tied = {"tie_weights": True, "tie_lstm_embs": True, "scale_input": True, "method": "sum_lstm"}
    return {**widths, **tied, "n_predict": UNITS, "vocab_size": vocab}


SPECULATORS = {
    "mlp-speculator": PathLayout(
        MlpSpeculator,
        read_mlp,
        canonical,
        partial(config, False, False),
        partial(shapes, False),
        partial(forward, False),
    ),
    "mlp-speculator-tied": PathLayout(
        MlpSpeculator,
        read_mlp,
        canonical,
        partial(config, True, True),
        partial(shapes, True),
        partial(forward, True),
        copies={f"speculator.emb.{depth}.weight": "speculator.emb.0.weight" for depth in range(1, UNITS)},
    ),
    "arctic-lstm": PathLayout(
        ArcticLstm,
        read_lstm,
        canonical,
        lstm_config,
        lstm_shapes,
        lstm_forward,
        copies={"cell_emb.0.weight": "forget_emb.0.weight", "head.1.weight": "head.0.weight"},
    ),
}
