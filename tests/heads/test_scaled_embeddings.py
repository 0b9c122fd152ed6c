"""Targets that scale their embeddings (Gemma 2 and 3): what each kind of head reads, as the code that trains it does.

Heads of the EAGLE family read the table, which their kits copy; all others read what the target's embedding returns.
"""

from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma2Config, Gemma3TextConfig

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Rejection
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.target import TransformersTarget
from mmspec.registry import installed
from mmspec.testing.tiny_models import SIZES
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from mmspec_text.drafters.heads.layers import embedded, looked_up
from mmspec_text.drafters.mtp import Mtp, MtpOptions
from tests.heads.conftest import SAMPLED, checkpoint, features_of, written_out
from tests.support.dflash_forward import BlockFlags, BlockWrittenOut, everything
from tests.support.draft_rounds import assert_distributions, played
from tests.support.examples import heads as head_example
from tests.support.examples.heads import random_dflash
from tests.support.examples.heads import random_layers as random_checkpoint
from tests.support.random_models import random_model

CONFIGS = {"gemma2": Gemma2Config, "gemma3": Gemma3TextConfig}
SCALE = 4.0
"""The root of the models' width."""


@cache
def model(name: str) -> Any:
    kinds = ["sliding_attention", "full_attention"]
    config = CONFIGS[name](**SIZES, sliding_window=64, layer_types=kinds, query_pre_attn_scalar=8)
    return random_model(config, gain=4.0)


def table(name: str) -> Tensor:
    weight: Tensor = model(name).get_input_embeddings().weight.detach()
    return weight


@pytest.mark.parametrize("name", CONFIGS)
def test_the_targets_embedding_scales(name: str) -> None:
    """Else the tests here would show nothing; a norm inside the module is left out."""
    embedding, units = model(name).get_input_embeddings(), torch.tensor([[1, 5]])
    assert torch.allclose(embedded(units, embedding, torch.float32), SCALE * table(name)[units])
    assert torch.equal(looked_up(units, embedding, torch.float32), table(name)[units])
    normed = nn.Embedding(7, 4)
    normed.embed_norm = nn.LayerNorm(4)
    assert torch.equal(embedded(units, normed, torch.float32), normed.weight[units])


@pytest.mark.parametrize("name", ["gemma2", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_eagle_reads_the_table(name: str, rows: dict[str, Tensor]) -> None:
    """EAGLE-1, which has no norm between the embedding and its first layer."""
    stored = checkpoint("eagle-1")

    def expected(reference: Any, known: Tensor, path: list[int]) -> Tensor:
        features = features_of(stored, known[:-1], model(name))
        return torch.stack(reference.draft_logits(features, known[1:].tolist(), path)).log_softmax(-1)

    drafter = Eagle(EagleOptions(model=stored, probe=False, form="chain"))
    recorded, accepted = played(Decoder(TransformersTarget(model(name)), drafter, Rejection(), k=3), rows, SAMPLED, 4)
    right, scaled = written_out(stored, model(name)), written_out(stored, model(name))
    scaled.embedding = SCALE * scaled.embedding
    assert max(accepted) > 0 and assert_distributions(recorded, partial(expected, right)) > 10
    with pytest.raises(AssertionError):
        assert_distributions(recorded, partial(expected, scaled))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_dflash_reads_what_the_target_reads(name: str, rows: dict[str, Tensor]) -> None:
    stored = random_dflash()
    a = stored.architecture
    flags = BlockFlags(a.heads, a.key_heads, a.head_dim, a.block, 3, (everything, everything), theta=10000.0)

    def expected(scale: float, known: Tensor, path: list[int]) -> Tensor:
        before: list[Tensor] = []
        hook = model(name).model.norm.register_forward_pre_hook(lambda module, args: before.append(args[0]))
        with torch.no_grad():
            states = model(name)(input_ids=known[None, :-1], output_hidden_states=True, use_cache=False).hidden_states
        hook.remove()
        features = list(torch.cat([states[1][0], before[0][0]], -1))
        output = model(name).lm_head.weight.detach()
        reference = BlockWrittenOut(stored.weights, flags, scale * table(name), output)
        block = reference.block(features, int(known[-1]))
        return torch.stack(reference.behind(block, int(known[-1]), path)).log_softmax(-1)

    example = head_example.dflash()[0].options
    drafter = installed().get("drafter", "dflash").load()(example)
    recorded, accepted = played(Decoder(TransformersTarget(model(name)), drafter, Rejection(), k=3), rows, SAMPLED, 4)
    assert max(accepted) > 0 and assert_distributions(recorded, partial(expected, SCALE)) > 10
    with pytest.raises(AssertionError):
        assert_distributions(recorded, partial(expected, 1.0))


@pytest.mark.parametrize("kind", ["hydra", pytest.param("mtp", marks=pytest.mark.slow)])
def test_other_heads_read_what_the_target_reads(kind: str, rows: dict[str, Tensor], monkeypatch: Any) -> None:
    """Every embedding that a draft reads is the scaled one."""
    target = TransformersTarget(model("gemma2"))
    if kind == "mtp":
        drafter: Any = Mtp(MtpOptions(model=random_checkpoint(ModelInfo.of(target.model)), probe=False, form="chain"))
    else:
        drafter = installed().get("drafter", kind).load()(getattr(head_example, kind)()[0].options)
    seen: list[tuple[Tensor, Tensor]] = []

    def watched(units: Tensor, embedding: nn.Module, dtype: torch.dtype) -> Tensor:
        seen.append((units, embedded(units, embedding, dtype)))
        return seen[-1][1]

    home = "mmspec_text.drafters.heads.mtp.network" if kind == "mtp" else f"mmspec_text.drafters.{kind}"
    monkeypatch.setattr(f"{home}.embedded", watched)
    played(Decoder(target, drafter, Rejection(), k=3), rows, SAMPLED, 2)
    assert seen and all(torch.allclose(found, SCALE * table("gemma2")[units]) for units, found in seen)
