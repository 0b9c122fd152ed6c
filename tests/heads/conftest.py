"""A Llama of seven tokens and heads of random weights for it: few tokens, so that a random head is often right."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, Rule
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama, prompt
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from mmspec_text.drafters.heads.eagle.checkpoint import Checkpoint
from mmspec_text.drafters.heads.eagle.family import Architecture
from mmspec_text.drafters.heads.latent import Latent
from tests.support.eagle_forward import Flags, WrittenOut
from tests.support.examples.heads import THIRD, random_checkpoint
from tests.support.laws import assert_follows

FIRST = replace(
    THIRD, fused=False, projected=False, features=1, final_norm=False, own_output=False, first_norms=frozenset()
)
"""A head of EAGLE-1."""
FSPAD = replace(FIRST, sampled=True, split=True)
"""A head of FSPAD."""
ONE = replace(THIRD, fc_norm=True, norm_output=True)
"""A head of EAGLE-3.1."""
LATENT = replace(
    THIRD, key_heads=2, head_dim=4, latent=Latent(2, rank=6, still=5, turning=4, value=7, queries=5, pairs=False)
)
"""A head of EAGLE-3 with DeepSeek's attention, through which `test_published.py` follows its authors' class."""
KEPT = torch.tensor([0, 2, 3, 5, 6])
MAPS = {
    "d2t": KEPT - torch.arange(5),
    "t2d": torch.zeros(7, dtype=torch.bool).index_fill(0, KEPT, True),
}
HEADS: dict[str, tuple[Architecture, Mapping[str, Tensor]]] = {
    "eagle-1": (FIRST, {}),
    "fspad": (FSPAD, {}),
    "eagle-3": (THIRD, {}),
    "eagle-3.1": (ONE, {}),
    "pruned": (replace(THIRD, draft_vocab=5), MAPS),
    "sliding": (replace(THIRD, window=5), {}),
    "latent": (LATENT, {}),
}


SEEDS = {"fspad": 1}
"""Seeds of heads that are hardly ever right with the usual one, 0."""


def checkpoint(name: str, seed: int = 0) -> Checkpoint:
    architecture, maps = HEADS[name]
    return random_checkpoint(architecture, (0, 1, 2), seed + SEEDS.get(name, 0), maps)


def written_out(stored: Checkpoint, model: Any = None) -> WrittenOut:
    a, model = stored.architecture, llama() if model is None else model
    flags = Flags(
        a.hidden,
        a.heads,
        a.key_heads,
        a.head_dim,
        a.target_hidden,
        third=a.fused,
        fc_norm=a.fc_norm,
        norm_output=a.norm_output,
        norm_before_residual=a.norm_before_residual,
        window=a.window,
    )
    weights = {key: value for key, value in stored.weights.items() if key not in ("d2t", "t2d")}
    return WrittenOut(weights, flags, model.model.embed_tokens.weight.detach(), model.lm_head.weight.detach())


def features_of(stored: Checkpoint, ids: Tensor, model: Any = None) -> Tensor:
    """The target's features of a row by itself, by transformers' own record: `[unit, width]`."""
    model = llama() if model is None else model
    with torch.no_grad():
        out = model(input_ids=ids[None], output_hidden_states=True, use_cache=False)
    recorded = out.hidden_states
    if not stored.architecture.fused:
        return recorded[-1][0]  # behind the final norm
    *inner, last = stored.layer_ids
    assert last == len(recorded) - 1, "the last state of the record is behind the norm, so ours is read elsewhere"
    before: list[Tensor] = []
    norm = model.model.norm if "norm" in model.model._modules else model.model.final_layernorm
    hook = norm.register_forward_pre_hook(lambda module, args: before.append(args[0]))
    with torch.no_grad():
        model(input_ids=ids[None], use_cache=False)
    hook.remove()
    return torch.cat([*(recorded[i][0] for i in inner), before[0][0]], -1)


@pytest.fixture
def decoder() -> Callable[..., Decoder]:
    """`decoder(name, rule, k, **options)`: a decoder with one of `HEADS`."""

    def make(name: str, rule: Rule | None = None, k: int = 4, seed: int = 0, **options: Any) -> Decoder:
        drafter = Eagle(EagleOptions(model=checkpoint(name, seed), probe=False, **options))
        return Decoder(TransformersTarget(llama()), drafter, rule or Match(), k=k)

    return make


@pytest.fixture
def rows() -> dict[str, Tensor]:
    """A ragged batch of three."""
    return prompt([0, 1, 2])


GREEDY, SAMPLED = Warp.sampling(temperature=0), Warp.sampling()


@pytest.fixture(scope="session")
def prompts() -> Callable[[int], dict[str, Tensor]]:
    """`prompts(batch)`: rows of several lengths, padded on the left, of 131 ids."""

    def make(batch: int) -> dict[str, Tensor]:
        ids = torch.randint(3, 131, (batch, 7), generator=torch.Generator().manual_seed(0)).repeat(1, 2)
        mask = torch.arange(14) >= 14 - torch.tensor([14, 5, 11])[:batch, None]
        return {"input_ids": ids * mask, "attention_mask": mask.long()}

    return make


@pytest.fixture(scope="session")
def law() -> Callable[..., float]:
    """`law(decoder, length)`: the p value of the joint of so many tokens, by a rule that uses q.

    The acceptance length is at least `least`: else a rule that takes no draft would pass. `model` is the target's, if
    it is not the Llama of seven tokens in float32.
    """

    def measured(ours: Decoder, length: int = 3, least: float = 1.1, model: Any = None) -> float:
        prompt = torch.tensor([[1, 4, 2, 6, 3]])

        def sample(seed: int, rows: int) -> Tensor:
            output = ours.generate(prompt.expand(rows, -1), length, seed=seed, warp=SAMPLED)
            assert output.report.acceptance_length > least
            return torch.stack(output.units)

        joint, texts, model = torch.ones(1), prompt, llama() if model is None else model
        for _ in range(length):
            with torch.no_grad():
                p = model(input_ids=texts, use_cache=False).logits[:, -1].float().softmax(-1)
            joint = (joint[:, None] * p).flatten()
            texts = torch.cat([texts.repeat_interleave(7, 0), torch.arange(7).repeat(len(texts))[:, None]], 1)
        return assert_follows(sample, joint.reshape([7] * length), rows=20_000)

    return measured
