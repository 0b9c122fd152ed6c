"""Drafters of LlamaGen as LANTERN stores them, with random weights, and their forward written out row by row.

The forward has no cache, no mask and no batch, and turns neighbouring numbers by row and column of a cell. Rows whose
units are still to come stand on conditioning positions, where queries and keys vanish.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mmspec_image.models.llamagen import LlamaGenTransformer
from tests.support.eagle_forward import norm, silu

CODES, GRID, DIM, HEADS, INSIDE, CAPTION = 7, 8, 32, 4, 24, 5
WIDTH = DIM // HEADS


def target(kind: str, vanish: bool = True) -> LlamaGenTransformer:
    """A LlamaGen of seven codes, of classes (`c2i`) or captions (`t2i`)."""
    of: dict[str, Any] = {"num_classes": 5} if kind == "c2i" else {"caption_dim": 6, "cls_token_num": CAPTION}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        sizes: dict[str, Any] = dict(dim=DIM, n_layer=2, n_head=HEADS, multiple_of=16)
        model = LlamaGenTransformer(CODES, GRID, **sizes, model_type=kind, **of, condition_vanishes=vanish)
        for weights in model.parameters():
            weights.data.copy_(torch.randn_like(weights) * (0.3 if weights.dim() > 1 else 1.0))
    return model.eval()


def weights(seed: int = 0) -> dict[str, Tensor]:
    """Tensors under LANTERN's keys."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (CODES, DIM),
        "fc.weight": (DIM, 2 * DIM),
        "fc.bias": (DIM,),
        **{f"layers.0.self_attn.{part}_proj.weight": (DIM, DIM) for part in "qkvo"},
        "layers.0.mlp.gate_proj.weight": (INSIDE, DIM),
        "layers.0.mlp.up_proj.weight": (INSIDE, DIM),
        "layers.0.mlp.down_proj.weight": (DIM, INSIDE),
        "layers.0.post_attention_layernorm.weight": (DIM,),
    }
    g = torch.Generator().manual_seed(seed)
    drawn = {key: torch.randn(shape, generator=g) for key, shape in shapes.items()}
    return {key: 1.5 * x / x.shape[-1] ** 0.5 if x.dim() > 1 else 1 + 0.3 * x for key, x in drawn.items()}


def save(folder: Path, kind: str, changed: dict[str, Any] | None = None, seed: int = 0) -> Path:
    """A head in LANTERN's files."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": DIM,
        "intermediate_size": INSIDE,
        "max_position_embeddings": 2048,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": 1,
        "num_key_value_heads": HEADS,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "vocab_size": CODES,
        "input_type": kind,
        **(changed or {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights(seed), folder / "model.safetensors")
    return folder


class LanternForward:
    """A head's forward on one half of a picture.

    Args:
        tensors: Its weights under LANTERN's keys.
        before: Conditioning positions of the target.
    """

    def __init__(self, tensors: dict[str, Tensor], before: int) -> None:
        self.w, self.before = {key: value.double() for key, value in tensors.items()}, before

    def states(self, features: Tensor, units: Sequence[int], path: Sequence[int]) -> list[Tensor]:
        """The state at the last known row and behind each unit of a path.

        Args:
            features: `[row, width]`: the target's, of the condition and of all codes but the last.
            units: The known codes.
            path: Drafted units behind them.
        """
        rows = [*features.double()]
        of_rows = [0] * (self.before - 1) + [int(unit) for unit in units]
        assert len(rows) == len(of_rows)
        found = [self._last(rows, of_rows)]
        for unit in path:
            rows, of_rows = [*rows, found[-1]], [*of_rows, unit]
            found.append(self._last(rows, of_rows))
        return found

    def _last(self, rows: Sequence[Tensor], units: Sequence[int]) -> Tensor:
        """The state that the last row feeds back; one layer, so that other rows give keys and values alone."""
        w, joined = self.w, []
        for state, unit in zip(rows, units, strict=True):
            embedded = w["embed_tokens.weight"][unit]
            joined.append(w["fc.weight"] @ torch.cat([embedded, state]) + w["fc.bias"])
        name = "layers.0.self_attn"
        turned = {
            part: [self._turned(w[f"{name}.{part}_proj.weight"] @ x, place) for place, x in enumerate(joined)]
            for part in "qk"
        }
        values = [w[f"{name}.v_proj.weight"] @ x for x in joined]
        out = []
        for head in range(HEADS):
            own = slice(head * WIDTH, (head + 1) * WIDTH)
            scores = torch.stack([turned["q"][-1][own] @ key[own] for key in turned["k"]]) / math.sqrt(WIDTH)
            share = scores.softmax(0)
            out.append(sum(s * value[own] for s, value in zip(share, values, strict=True)))
        x = joined[-1] + w[f"{name}.o_proj.weight"] @ torch.cat(out)
        inner = norm(x, w["layers.0.post_attention_layernorm.weight"], 1e-6)
        gate, up = (w[f"layers.0.mlp.{part}_proj.weight"] @ inner for part in ("gate", "up"))
        return x + w["layers.0.mlp.down_proj.weight"] @ (silu(gate) * up)

    def _turned(self, x: Tensor, place: int) -> Tensor:
        """Pairs of neighbours: the first half of a head's pairs by the row, the second by the column."""
        cell = place - (self.before - 1)
        if cell < 0:
            return torch.zeros_like(x)
        row, column = divmod(cell, GRID)
        pairs = x.view(HEADS, WIDTH // 2, 2)
        out = torch.empty_like(pairs)
        quarter = WIDTH // 4
        for pair in range(WIDTH // 2):
            along = row if pair < quarter else column
            angle = along * 10_000.0 ** (-(pair % quarter) / quarter)
            a, b = pairs[:, pair, 0], pairs[:, pair, 1]
            out[:, pair, 0] = a * math.cos(angle) - b * math.sin(angle)
            out[:, pair, 1] = b * math.cos(angle) + a * math.sin(angle)
        return out.flatten()
