"""Kinds `mtp` and `medusa` of `mmspec train drafter` in miniature: where they begin, what they learn, their files."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from mmspec.hosts.anatomy import Anatomy
from mmspec.hosts.language_part import LanguagePart
from mmspec.testing.tiny_models import llama
from mmspec.training import loop
from mmspec_text.drafters.heads.medusa.checkpoint import read_medusa
from mmspec_text.drafters.heads.mtp.checkpoint import read_checkpoint
from mmspec_text.drafters.heads.mtp.network import MtpNetwork
from mmspec_text.training.along import along
from mmspec_text.training.head_loss import head_loss
from mmspec_text.training.heads import Begin
from mmspec_text.training.medusa import begun_medusa
from mmspec_text.training.metrics import depth_metrics
from mmspec_text.training.mtp import begun_mtp, new_mtp
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.texts import Stream, Texts

KINDS: dict[str, Begin] = {"mtp": begun_mtp, "medusa": begun_medusa}
SIZES: dict[str, Any] = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2)
SIZES |= dict(num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64)


def target(kind: str = "llama") -> Any:
    torch.manual_seed(0)
    made = LlamaForCausalLM(LlamaConfig(**SIZES)) if kind == "llama" else Qwen3ForCausalLM(Qwen3Config(**SIZES))
    return made.eval().requires_grad_(False)


def read_back(kind: str, folder: Path, model: Any) -> nn.Module:
    """A head as its drafter reads it."""
    if kind == "mtp":
        anatomy = Anatomy.of(model)
        layer = MtpNetwork(read_checkpoint(str(folder), anatomy), anatomy)
        layer.join(anatomy)
        return layer
    heads: nn.Module = read_medusa(str(folder)).network(40)
    heads.join(model.get_input_embeddings(), model.get_output_embeddings(), model.device, model.dtype)
    return heads


def drafts(head: nn.Module, features: Tensor, units: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.stack(list(along(head, features, units, 2)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "qwen"])
def test_a_head_that_was_saved_is_the_same_head(kind: str, family: str, tmp_path: Path) -> None:
    """Of a Llama, and of a target with norms of queries and keys, which the layer has, too."""
    model = target(family)
    head = KINDS[kind](model, DrafterRecipe(depth=2), "mmspec/some")
    with torch.no_grad():
        for weights in head.network.parameters():  # as float16 holds them
            weights.copy_((weights + 0.1 * torch.randn_like(weights)).half())
    head.write(tmp_path / "head")
    g = torch.Generator().manual_seed(1)
    features, units = torch.randn(2, 7, 16, generator=g), torch.randint(40, (2, 7), generator=g)
    read = read_back(kind, tmp_path / "head", model)
    assert torch.equal(drafts(read, features, units), drafts(head.network.eval(), features, units))


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_head_scores_as_the_target_does(kind: str) -> None:
    """It has learnt nothing, so it says again what the target said: Medusa's exactly, a layer nearly."""
    model = target()
    head = KINDS[kind](model, DrafterRecipe(depth=2), "mmspec/some")
    ids = torch.randint(40, (2, 9), generator=torch.Generator().manual_seed(1))
    features, logits = Teacher(model, head.boundaries)(ids)
    assert features is not None
    first = drafts(head.network, features, ids)[0]
    theirs = logits[:, : first.shape[1]]
    if kind == "medusa":
        assert torch.allclose(first, theirs, atol=1e-5)
    similar = torch.cosine_similarity(first, theirs, -1)  # the projection of a new layer is a little noisy
    assert float(similar.min()) > 0.95 and float(first.norm() / theirs.norm()) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_is_the_targets_is_trained(kind: str) -> None:
    model = target()
    before = copy.deepcopy(model.state_dict())
    head = KINDS[kind](model, DrafterRecipe(depth=2), "mmspec/some")
    texts = Texts([Stream(torch.arange(200) % 40, 1.0)], 2, 16, 0)
    head_loss(Teacher(model, head.boundaries), DrafterRecipe().draft_loss, 2)(
        head.network, texts.batch_at(0)
    ).backward()
    assert all(p.grad is not None for p in head.network.parameters())
    with torch.no_grad():
        for weights in head.network.parameters():
            weights.add_(1.0)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns_a_target_that_counts(kind: str, tmp_path: Path) -> None:
    """The next unit is one more than the last, and after 9 comes 0 in the text: a head finds it out at every depth."""
    model = target()
    g = torch.Generator().manual_seed(0)
    table = torch.randn(40, 16, generator=g)
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(table)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        following = torch.cat([table[9:10], table[:9], table[10:]])  # the row of a unit is the state of the one before
        model.get_output_embeddings().weight.copy_(4 * following)
    recipe = DrafterRecipe(steps=80, learning_rate=5e-2, depth=2, hard=0.0)
    head = KINDS[kind](model, recipe, "mmspec/some")
    teacher = Teacher(model, head.boundaries)
    texts = Texts([Stream(torch.arange(4000) % 10, 1.0)], 4, 24, 0)
    window = (3 + torch.arange(24))[None] % 10
    before = depth_metrics(head.network, teacher, [window], 2)
    loss = head_loss(teacher, recipe.draft_loss, 2)
    loop.fit(head.network, texts.batch_at, loss, recipe.loop(head.hidden), tmp_path, str)
    after = depth_metrics(head.network, teacher, [window], 2)
    assert before.length < 1.5 and after.length > 2.0


def test_a_target_whose_layers_are_not_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Module()
    layer.mlp = nn.ModuleDict({"experts": nn.Linear(2, 2)})
    layer.input_layernorm = nn.RMSNorm(2)
    anatomy = Anatomy.of(llama())
    monkeypatch.setitem(vars(anatomy), "language", LanguagePart([layer], nn.Module()))
    with pytest.raises(ValueError, match=r"layers with experts.*train --kind eagle3"):
        new_mtp(anatomy, 0)
