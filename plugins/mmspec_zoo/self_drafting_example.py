"""What the conformance kit tries self-drafting on: the kit's own small model, and one of more layers."""

from functools import cache
from typing import Any

from transformers import LlamaConfig

from mmspec.hosts.target import TransformersTarget
from mmspec.testing.conformance.example import Example
from mmspec.testing.tiny_models import SIZES, prompt, random_model
from mmspec_zoo.self_drafting.dynamic_exit import DynamicExitOptions
from mmspec_zoo.self_drafting.layer_skip import LayerSkipOptions
from mmspec_zoo.self_drafting.swift import SwiftOptions


@cache
def deeper() -> Any:
    """A Llama of four layers whose inner ones matter less than the others, as they do in trained models."""
    inner = {f"layers.{number}.{part}": 0.3 for number in (1, 2) for part in ("self_attn.o_proj", "mlp.down_proj")}
    return random_model(LlamaConfig(**{**SIZES, "num_hidden_layers": 4}), head=8.0, factors=inner)


def _example(options: Any, **more: Any) -> Example:
    return Example(options=options, target=TransformersTarget(deeper()), prompt=prompt, **more)


def layer_skip() -> Example:
    """Three of four layers."""
    return _example(LayerSkipOptions(exit=3))


def swift() -> Example:
    """A short window, so that sets are searched in short calls, too."""
    return _example(SwiftOptions(window=4, nodes=8), learns=True)


def dynamic_exit() -> Example:
    """Three exits; the rows of a batch share them."""
    return _example(DynamicExitOptions(latest=3), learns=True)
