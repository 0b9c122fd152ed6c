"""Parts of layers in one launch, against transformers' own."""

import pytest
import torch
from torch.nn.functional import silu
from transformers import LlamaConfig
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from mmspec.api.build import decoder_for
from mmspec.core.compile import captured
from mmspec.core.warp import Warp
from mmspec.hosts.buffer_cache import BufferCache
from mmspec.hosts.fused_layers import FusedLayers, rotated
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import SIZES
from tests.support.random_models import random_model

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
def test_norms_of_heads_that_are_parts_of_longer_rows(device, dtype):
    from mmspec.core.kernels import layers

    rows, weight = torch.randn(2, 5, 6 * 48, device=device).to(dtype), torch.randn(48, device=device).to(dtype)
    for heads in (rows.unflatten(-1, (6, 48))[:, :, 2:5], rows.unflatten(-1, (6, 48))[:, 1:3].transpose(1, 2)):
        assert torch.equal(layers.normalised(heads, weight, 1e-6), layers.normalised(heads.contiguous(), weight, 1e-6))


@HALVES
def test_norms_of_sums(device, dtype):
    """The sum is torch's up to its rounding, in which Triton's interpreter differs, and its norm that of the sum."""
    from mmspec.core.kernels import layers

    (a, b), weight = torch.randn(2, 3, 7, 96, device=device).to(dtype), torch.randn(96, device=device).to(dtype)
    total = torch.empty_like(a)
    found = layers.normalised(a, weight, 1e-6, b, total)
    assert torch.isclose(total.float(), (a + b).float(), rtol=2 * torch.finfo(dtype).eps, atol=0.0).all()
    assert torch.equal(found, layers.normalised(total, weight, 1e-6))


@HALVES
def test_gates_up_to_rounding(device, dtype):
    from mmspec.core.kernels import layers

    x = (4 * torch.randn(2, 5, 2 * 1100, device=device)).to(dtype)
    active = x.new_empty(2, 5, 1100)
    found, (gate, up) = layers.gated(x, active), x.chunk(2, -1)
    for one, other in ((active, silu(gate)), (found, active * up)):
        assert torch.isclose(one.float(), other.float(), rtol=2 * torch.finfo(dtype).eps, atol=1e-7).all()


@HALVES
def test_rotations_up_to_rounding(device, dtype):
    """Of views as attention layers make them, with one row of angles for all, and with one for each."""
    q, k = (torch.rand(3, 7, heads, 48, device=device).to(dtype).transpose(1, 2) for heads in (4, 2))
    for rows in (1, 3):
        angle = torch.randn(rows, 7, 24, device=device).repeat(1, 1, 2)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        expected = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
        found = rotated(None, q, k, cos, sin)
        assert found[0].is_contiguous() and found[0].shape == q.shape and found[1].shape == k.shape
        for one, other in zip(found, expected, strict=True):
            assert (one.float() - other.float()).abs().max() <= 4 * torch.finfo(dtype).eps
        alone = rotated(None, q[1:2, :, 3:4], k[1:2, :, 3:4], cos[-1:, 3:4], sin[-1:, 3:4])
        assert rows == 3 or torch.equal(alone[0], found[0][1:2, :, 3:4]), "a node does not depend on others"


class GatedRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states, gate=None):
        gated = hidden_states if gate is None else hidden_states * torch.nn.functional.silu(gate)
        return super().forward(gated)


def test_gated_norms_keep_their_gate(device):
    """They are norms like others where no gate is given, as Mamba-2's are."""
    norm = GatedRMSNorm(64).to(device, torch.float16)
    x, gate = (torch.randn(2, 3, 64, device=device).half() for _ in range(2))
    fused, expected = FusedLayers.of(norm), norm(x, gate)
    assert fused.norms
    with fused.used():
        assert torch.equal(norm(x, gate), expected) and torch.equal(norm(x, gate=gate), expected)


def test_other_parts_are_left_alone(device):
    """Gemma's norm is another function, and in float32 nothing is fused."""
    assert not FusedLayers.of(GemmaRMSNorm(32).to(device, torch.bfloat16)).norms
    assert not FusedLayers.of(LlamaRMSNorm(32).to(device)).norms


def test_passes_over_a_held_cache_use_them(device):
    """The logits are the eager pass's up to rounding, and the model is as it was."""
    model = random_model(LlamaConfig(**{**SIZES, "vocab_size": 61})).to(device, torch.float16)
    target, original = TransformersTarget(model), modeling_llama.apply_rotary_pos_emb
    started = target.start_fixed(torch.arange(2, 12, device=device)[None], 4, 3)
    held = target.held(started.cache, 3)
    assert isinstance(held.slots, BufferCache)
    held.fall_back()
    fused = held.slots.fused
    assert len(fused.norms) == 2 * len(model.model.layers) + 1 and len(fused.sites) == 1
    with target.ready(held, 3):
        assert modeling_llama.apply_rotary_pos_emb is not original and "forward" in vars(model.model.norm)
    assert modeling_llama.apply_rotary_pos_emb is original and "forward" not in vars(model.model.norm)


def test_recorded_rounds_run_on_them(device, monkeypatch):
    """A call whose rounds are recorded writes what eager rounds write, where no two tokens are nearly as likely."""
    from mmspec.core.kernels import layers

    monkeypatch.setattr(captured, "RECORDING", (device.type,))
    model = random_model(LlamaConfig(**{**SIZES, "vocab_size": 61}), gain=4.0).to(device, torch.float16)
    turned, calls = layers.rotated, []
    monkeypatch.setattr(layers, "rotated", lambda *given: calls.append(1) or turned(*given))
    ids = torch.arange(2, 14, device=device)[None] % 7 + 3
    found, expected = (
        decoder_for(model, "prompt-lookup", k=2, compile=compile).generate(ids, 6, warp=Warp.sampling(0))
        for compile in (None, False)
    )
    assert calls and found.report.recorded and not expected.report.recorded
    assert torch.equal(found.units[0], expected.units[0])
