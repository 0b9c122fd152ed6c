"""Parts of layers in one launch, against transformers' own."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from mmspec.hosts.buffer_cache import BufferCache
from mmspec.hosts.fused_layers import FusedLayers, rotated
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import SIZES, random_model

HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@HALVES
def test_norms_up_to_one_rounding(device, dtype):
    norm = LlamaRMSNorm(96, eps=1e-5).to(device, dtype)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 5, 96, device=device).to(dtype)
    (fused,) = FusedLayers.of(norm).norms
    expected = norm(x)
    with FusedLayers.of(norm).used():
        found, alone = norm(x), norm(x[1:, 3:4])
    assert fused is norm and "forward" not in vars(norm)
    assert torch.isclose(found.float(), expected.float(), rtol=2 * torch.finfo(dtype).eps, atol=0.0).all()
    assert torch.equal(alone, found[1:, 3:4]), "a row does not depend on others"


@HALVES
def test_rotations_to_the_bit(device, dtype):
    """Of views as attention layers make them, with one row of angles for all, and with one for each."""
    q, k = (torch.randn(3, 7, heads, 48, device=device).to(dtype).transpose(1, 2) for heads in (4, 2))
    for rows in (1, 3):
        cos, sin = (torch.randn(rows, 7, 48, device=device).to(dtype) for _ in range(2))
        expected = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
        found = rotated(None, q, k, cos, sin)
        assert found[0].is_contiguous()
        if dtype == torch.bfloat16 and device.type == "cpu":  # to which Triton's interpreter rounds towards zero
            assert all(torch.allclose(a, b, rtol=0.02, atol=0.1) for a, b in zip(found, expected, strict=True))
        else:
            assert all(map(torch.equal, found, expected))


def test_other_parts_are_left_alone(device):
    """Gemma's norm is another function, and in float32 nothing is fused."""
    assert not FusedLayers.of(GemmaRMSNorm(32).to(device, torch.bfloat16)).norms
    assert not FusedLayers.of(LlamaRMSNorm(32).to(device)).norms


def test_passes_over_a_held_cache_use_them(device):
    """The logits are the eager pass's up to rounding, and the model is as it was."""
    model = random_model(LlamaConfig(**{**SIZES, "vocab_size": 61})).to(device, torch.float16)
    target, original = TransformersTarget(model), modeling_llama.apply_rotary_pos_emb
    started = target.start_fixed(torch.arange(2, 12, device=device)[None], 4, 3)
    held = target.held(started.cache, 3, None)
    assert isinstance(held.slots, BufferCache)
    held.fall_back()
    fused = held.slots.fused
    assert len(fused.norms) == 2 * len(model.model.layers) + 1 and len(fused.sites) == 1
    with target.ready(held, 3):
        assert modeling_llama.apply_rotary_pos_emb is not original and "forward" in vars(model.model.norm)
    assert modeling_llama.apply_rotary_pos_emb is original and "forward" not in vars(model.model.norm)
