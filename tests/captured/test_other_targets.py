"""Captured rounds over recurrent models and pictures."""

from typing import Any

import pytest
import torch
from transformers import BambaConfig, Mamba2Config, MambaConfig

from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.testing.tiny_models import SIZES
from mmspec_image.drafters.jacobi import ImageJacobi
from tests.captured.conftest import forget, lockstep
from tests.support.examples.image import janus, llamagen
from tests.support.examples.ssm import MAMBA
from tests.support.random_models import random_model

MAMBA_SIZES = dict(vocab_size=13, hidden_size=16, num_hidden_layers=2, state_size=4, pad_token_id=0, eos_token_id=None)
RECURRENT = {
    "bamba": BambaConfig(**{**SIZES, "vocab_size": 13}, **MAMBA, attn_layer_indices=[1]),
    "mamba": MambaConfig(**MAMBA_SIZES),
    "mamba2": Mamba2Config(**MAMBA_SIZES, num_heads=4, head_dim=8, n_groups=1, expand=2),
}


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("bamba", "token-recycling"),
        *(
            pytest.param(kind, method, marks=pytest.mark.slow)
            for kind in RECURRENT
            for method in ("plain", "prompt-lookup", "token-recycling")
        ),
    ],
)
def test_recurrent_models(kind: str, method: str) -> None:
    model = random_model(RECURRENT[kind], gain=4.0, head=8.0)
    how: Any = {"k": 3} if method != "plain" else {}
    eager, captured = (decoder_for(model, method, shape="one" if how else 4, compile=c, **how) for c in (None, True))
    ids = torch.tensor([[3, 4, 5, 6] * 3, [0, 0, 0, 0, *[7, 8] * 4]])
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    lockstep(eager, captured, inputs, 16, seed=3, warp=Warp.sampling(0.9), ends=[7])
    torch._dynamo.utils.counters.clear()
    lockstep(eager, captured, inputs, 11, seed=4, warp=Warp.sampling(0.9), ends=[7])
    assert not torch._dynamo.utils.counters["stats"].get("unique_graphs"), "the second call traces nothing"


@pytest.mark.parametrize("example", [llamagen, pytest.param(janus, marks=pytest.mark.slow)], ids=["llamagen", "janus"])
def test_pictures_under_guidance(example: Any) -> None:
    found = example()
    forget(found.target.model)
    eager, captured = (Decoder(found.target, ImageJacobi(), k=4, shape="one", compile=c) for c in (None, True))
    for rows in ((0, 1), (2, 3)):
        lockstep(eager, captured, found.prompt(rows), 16, seed=3, warp=Warp.sampling(0.9, guidance=2.0))
    assert len(captured.captures.pool.rounds) == 1
