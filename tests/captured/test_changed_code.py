"""Captured rounds, and code that users set on a model between two calls: hooks, replaced methods."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.testing.tiny_models import SIZES
from mmspec_image.drafters.jacobi import ImageJacobi
from tests.captured.conftest import forget, lockstep
from tests.support.examples.image import llamagen
from tests.support.random_models import random_model

CONFIG = LlamaConfig(**{**SIZES, "num_hidden_layers": 1, "vocab_size": 61, "hidden_size": 32, "num_attention_heads": 4})


def louder(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    return 2 * out + torch.linspace(-1, 1, out.shape[-1])


def hook(layer: nn.Module) -> Callable[[], None]:
    return layer.register_forward_hook(louder).remove


def pre_hook(layer: nn.Module) -> Callable[[], None]:
    return layer.register_forward_pre_hook(lambda module, args: (louder(module, None, args[0]), *args[1:])).remove


def own_forward(layer: nn.Module) -> Callable[[], None]:
    forward = layer.forward
    layer.forward = lambda *args: louder(layer, args, forward(*args))  # type: ignore[method-assign]
    return lambda: vars(layer).pop("forward")


@pytest.mark.parametrize(
    "change", [hook, *(pytest.param(change, marks=pytest.mark.slow) for change in (pre_hook, own_forward))]
)
def test_the_next_call_runs_what_was_set_and_the_one_behind_it_what_was_there(change: Any) -> None:
    model = random_model(CONFIG, gain=4.0)
    ids = torch.randint(2, 61, (1, 5), generator=torch.Generator().manual_seed(1)).repeat(1, 4)
    how: Any = dict(method="prompt-lookup", k=3)
    eager, captured = (decoder_for(model, **how, shape="one", compile=c) for c in (None, True))
    texts = []
    for changed in (False, True, False):
        undo = change(model.lm_head) if changed else lambda: None
        lockstep(eager, captured, ids, 12, seed=3, warp=Warp.sampling(0.9))
        texts.append(captured.generate(ids, 12, seed=3, warp=Warp.sampling(0.9)).units[0].tolist())
        undo()
    assert texts[0] == texts[2] != texts[1]
    assert len(captured.captures.pool.rounds) == 2, "what was undone needs no new round"


def test_what_generate_notes_on_a_model_ends_no_captured_round() -> None:
    """transformers' `generate` with a static cache leaves its length on the model."""
    model = random_model(CONFIG, gain=4.0)
    ids = torch.randint(2, 61, (1, 20), generator=torch.Generator().manual_seed(1))
    decoder = decoder_for(model, "plain", shape="one", compile=True)
    for new in (4, 8, 12):
        decoder.generate(ids, 12, seed=3)
        model.generate(ids, max_new_tokens=new, do_sample=False, cache_implementation="static")
    assert len(decoder.captures.pool.rounds) == 1


@pytest.mark.slow
def test_a_picture_model_with_a_hook() -> None:
    found = llamagen()
    forget(found.target.model)
    eager, captured = (Decoder(found.target, ImageJacobi(), k=4, shape="one", compile=c) for c in (None, True))
    call: Any = dict(limit=16, seed=3, warp=Warp.sampling(0.9, guidance=2.0))
    lockstep(eager, captured, found.prompt((0, 1)), **call)
    norm = next(module for module in reversed(list(found.target.model.modules())) if "Norm" in type(module).__name__)
    handle = norm.register_forward_hook(louder)
    lockstep(eager, captured, found.prompt((0, 1)), **call)
    handle.remove()
