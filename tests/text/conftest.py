"""Tiny random Llamas, sharp enough to decide and soft enough to be drawn from; prompts; and both ways to run a call."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

import mmspec
from mmspec.compare.equality import Stock, stock
from mmspec.core.report import Report

logging.set_verbosity_error()
VOCAB, CONTEXT = 131, 512


class Ours(NamedTuple):
    """The result of a call of an enabled model."""

    ids: Tensor
    state: Tensor
    report: Report


def llama(seed: int = 0, **config: Any) -> LlamaForCausalLM:
    sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
    settings = dict(num_key_value_heads=2, max_position_embeddings=CONTEXT, vocab_size=VOCAB, pad_token_id=0)
    torch.manual_seed(seed)
    # No end by default: tests that want rows to end say where.
    model = LlamaForCausalLM(LlamaConfig(**{**sizes, **settings, "eos_token_id": None, **config})).eval()
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.data.mul_(4)
    model.lm_head.weight.data.mul_(4)
    return model


def noisy(model: LlamaForCausalLM, amount: float) -> LlamaForCausalLM:
    """A drafter: the same weights, a little wrong."""
    torch.manual_seed(99)
    other = LlamaForCausalLM(model.config).eval()
    other.load_state_dict(model.state_dict())
    for weights in other.parameters():
        weights.data.add_(torch.randn_like(weights) * amount * weights.std())
    return other


@pytest.fixture(scope="session")
def make_llama() -> Callable[..., LlamaForCausalLM]:
    return llama


@pytest.fixture(scope="session")
def target() -> LlamaForCausalLM:
    return llama()


@pytest.fixture(scope="session")
def good(target: LlamaForCausalLM) -> LlamaForCausalLM:
    return noisy(target, 0.05)


@pytest.fixture(scope="session")
def bad() -> LlamaForCausalLM:
    return llama(seed=7, num_hidden_layers=1)


@pytest.fixture(autouse=True)
def left_as_found(target: LlamaForCausalLM) -> Iterator[None]:
    """Every test draws from the same seed; none may leave the shared model enabled."""
    torch.manual_seed(0)
    yield
    enabled = "generate" in target.__dict__
    mmspec.disable(target)
    assert not enabled, "the test left the shared model enabled"


@pytest.fixture(scope="session")
def prompts() -> Callable[[int, int], dict[str, Tensor]]:
    """`prompts(batch, seed)`: rows of several lengths, padded on the left, with repeats that lookup can find."""

    def make(batch: int, seed: int = 0) -> dict[str, Tensor]:
        g = torch.Generator().manual_seed(seed)
        ids = torch.randint(3, VOCAB, (batch, 7), generator=g).repeat(1, 2)
        lengths = torch.tensor([14, 5, 11])[:batch]
        mask = torch.arange(14) >= 14 - lengths[:, None]
        return {"input_ids": ids * mask, "attention_mask": mask.long()}

    return make


@pytest.fixture(scope="session")
def theirs() -> Callable[..., Stock]:
    """`theirs(model, inputs, seed, **kwargs)`: unmodified transformers; the same call runs once a session."""
    known: dict[Any, Stock] = {}

    def run(model: Any, inputs: Mapping[str, Tensor], seed: int, **kwargs: Any) -> Stock:
        rows = tuple(tuple(row) for row in inputs["input_ids"].tolist())
        key = (id(model), rows, seed, repr(sorted(kwargs.items())))
        if key not in known:
            known[key] = stock(model, inputs, seed, **kwargs)
        return known[key]

    return run


@pytest.fixture(scope="session")
def ours() -> Callable[..., Ours]:
    """`ours(model, inputs, seed, spec, **kwargs)`: the same under `mmspec.enable(model, **spec)`."""

    def run(model: Any, inputs: Mapping[str, Tensor], seed: int, spec: Mapping[str, Any], **kwargs: Any) -> Ours:
        with mmspec.enable(model, **spec) as enabled:
            torch.manual_seed(seed)
            ids = model.generate(**inputs, **kwargs)
            assert enabled.report is not None
            return Ours(ids, torch.get_rng_state(), enabled.report)

    return run


@pytest.fixture(params=["plain", "prompt-lookup", "good", pytest.param("bad", marks=pytest.mark.slow)])
def spec(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments of `enable`: every method, `draft-model` with a good drafter, and with a bad one in the slow tier."""
    name = request.param
    if name in ("good", "bad"):
        return {"method": "draft-model", "drafter": request.getfixturevalue(name), "k": {"good": 4, "bad": 2}[name]}
    return {"method": name}
