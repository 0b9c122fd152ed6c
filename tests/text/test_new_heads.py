"""New heads of `mmspec train drafter` in miniature: beginnings, what they learn, their files."""

import copy
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from mmspec.hosts.model_info import LanguagePart, ModelInfo
from mmspec.testing.tiny_models import llama
from mmspec.training import loop
from mmspec.training.losses import Top
from mmspec_text.drafters.clover import read_first_clover
from mmspec_text.drafters.dflash import dflash_features
from mmspec_text.drafters.heads.dflash.checkpoint import read_dflash
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint as read_eagle
from mmspec_text.drafters.heads.mtp.checkpoint import read_checkpoint
from mmspec_text.drafters.heads.mtp.network import MtpNetwork
from mmspec_text.drafters.heads.unroll import along
from mmspec_text.drafters.medusa import read_medusa
from mmspec_text.training.eagle import begun_first
from mmspec_text.training.heads import compared, depth_metrics, drawn_roots, head_loss
from mmspec_text.training.new_head import Begin, NewHead
from mmspec_text.training.new_heads import (
    begun_clover,
    begun_dflash,
    begun_medusa,
    begun_mtp,
    inner_boundaries,
    mask_token_of,
    new_mtp,
)
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.texts import Batch, Stream, Texts


def begun_shared(model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
    """Medusa's heads over the target's output layer."""
    return begun_medusa(model, replace(recipe, own_output=False), name)


FIRST: dict[str, Begin] = {kind: partial(begun_first, kind) for kind in ("eagle", "fspad", "falcon")}
KINDS: dict[str, Begin] = {"mtp": begun_mtp, "medusa": begun_medusa, "shared": begun_shared, "dflash": begun_dflash}
KINDS |= {**FIRST, "clover": begun_clover}
SIZES: dict[str, Any] = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2)
SIZES |= dict(num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64)


def target(kind: str = "llama") -> Any:
    torch.manual_seed(0)
    made = LlamaForCausalLM(LlamaConfig(**SIZES)) if kind == "llama" else Qwen3ForCausalLM(Qwen3Config(**SIZES))
    return made.eval().requires_grad_(False)


def read_back(kind: str, folder: Path, model: Any) -> nn.Module:
    """A head as its drafter reads it."""
    if kind == "mtp":
        model_info = ModelInfo.of(model)
        layer = MtpNetwork(read_checkpoint(str(folder), model_info), model_info)
        layer.join_model(model_info)
        return layer
    reads: dict[str, Any] = {"dflash": read_dflash, "clover": read_first_clover, **dict.fromkeys(FIRST, read_eagle)}
    reads["falcon"] = partial(read_eagle, kind="falcon")
    heads: Any = reads.get(kind, read_medusa)(str(folder)).network(40)
    heads.join(model.get_input_embeddings(), model.get_output_embeddings(), model.device, model.dtype)
    return heads


def learn_a_little(network: nn.Module) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in network.parameters():
            weights.add_(0.1 * torch.randn_like(weights))


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
        for weights in (*head.network.parameters(), *model.parameters()):  # as float16 holds them
            weights.copy_((weights + 0.1 * torch.randn_like(weights)).half())
    head.write(tmp_path / "head")
    g = torch.Generator().manual_seed(1)
    units = torch.randint(40, (2, 7), generator=g)
    features = torch.randn(2, 7, 16 * len(head.boundaries), generator=g)
    read = read_back(kind, tmp_path / "head", model)
    assert torch.equal(drafts(read, features, units), drafts(head.network.eval(), features, units))


@pytest.mark.parametrize("kind", ["mtp", "medusa", "shared", "eagle", "fspad"])
def test_a_new_head_scores_as_the_target_does(kind: str) -> None:
    """It has learnt nothing, so it says again what the target said: Medusa's exactly, a layer nearly."""
    model = target()
    head = KINDS[kind](model, DrafterRecipe(depth=2), "mmspec/some")
    ids = torch.randint(40, (2, 9), generator=torch.Generator().manual_seed(1))
    features, logits = Teacher(model, head.boundaries)(ids)
    assert features is not None
    first = drafts(head.network, features, ids)[0]
    theirs = logits[:, : first.shape[1]]
    if kind in ("medusa", "shared"):
        assert torch.allclose(first, theirs, atol=1e-5)
    similar = torch.cosine_similarity(first, theirs, -1)  # the projection of a new layer is a little noisy
    assert float(similar.min()) > 0.95 and float(first.norm() / theirs.norm()) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_is_the_targets_is_trained(kind: str) -> None:
    model = target()
    before = copy.deepcopy(model.state_dict())
    head = KINDS[kind](model, DrafterRecipe(depth=2), "mmspec/some")
    learn_a_little(head.network)  # matrices behind zeros have no gradient
    texts = Texts([Stream(torch.arange(200) % 40, 1.0)], 2, 16, 0)
    head_loss(Teacher(model, head.boundaries).said, DrafterRecipe().draft_loss, 2)(
        head.network, texts.batch_at(0)
    ).backward()
    assert all(p.grad is not None for p in head.network.parameters())
    with torch.no_grad():
        for weights in head.network.parameters():
            weights.add_(1.0)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize(
    "kind",
    [
        "mtp",
        "fspad",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("medusa", "shared", "clover", "dflash", "eagle", "falcon")
        ),
    ],
)
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
    before = depth_metrics(head.network, teacher, [Batch.whole(window)], 2)
    loss = head_loss(teacher.said, recipe.draft_loss, 2)
    loop.fit(head.network, texts.batch_at, loss, recipe.loop(head.hidden), tmp_path, str)
    after = depth_metrics(head.network, teacher, [Batch.whole(window)], 2)
    assert before.length < 1.5 and after.length > 2.0


def test_clover_begins_as_the_targets_last_block() -> None:
    """With its norms; a cell that nearly keeps the state; and a block that adds nothing where layers differ."""
    model = target()
    with torch.no_grad():
        model.model.norm.weight.uniform_(1, 2)
    head: Any = begun_clover(model, DrafterRecipe(depth=2), "mmspec/some").network
    own = model.model.layers[-1].state_dict()
    assert all(torch.equal(value, own[key]) for key, value in head.layers[0].state_dict().items())
    assert all(torch.equal(norm.weight, model.model.norm.weight) for norm in (head.clover_norm, head.clover_head_norm))
    cell = head.clover_head_mlp_rnn
    for part, diagonal in (("q", 1), ("k", 1), ("v", 0)):
        noise = getattr(cell, part).weight.detach() - diagonal * torch.eye(16)
        assert 0 <= float(noise.min()) < float(noise.max()) <= 0.01 and not getattr(cell, part).bias.any()
    other: Any = begun_clover(target("qwen"), DrafterRecipe(depth=2), "mmspec/some").network
    assert not other.layers[0].mlp.down_proj.weight.any() and bool((other.clover_norm.weight == 1).all())
    odd = Qwen3ForCausalLM(Qwen3Config(**{**SIZES, "num_attention_heads": 3, "head_dim": 8}))
    with pytest.raises(ValueError, match=r"3 heads, which do not make its 16 numbers: train --kind eagle3"):
        begun_clover(odd, DrafterRecipe(), "mmspec/some")


def test_a_target_whose_layers_are_not_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Module()
    layer.mlp = nn.ModuleDict({"experts": nn.Linear(2, 2)})
    layer.input_layernorm = nn.RMSNorm(2)
    model_info = ModelInfo.of(llama())
    monkeypatch.setitem(vars(model_info), "language", LanguagePart([layer], nn.Module()))
    with pytest.raises(ValueError, match=r"layers with experts.*train --kind eagle3"):
        new_mtp(model_info, 0)


def test_the_layers_that_a_block_reads(tmp_path: Path) -> None:
    """Never the state behind the last one, whatever the target; and the ids that are stored name layers' outputs."""
    assert [inner_boundaries(layers) for layers in (1, 2, 3, 8, 32)] == [
        (0,),
        (1,),
        (1, 2),
        (2, 4, 6),
        (2, 16, 30),
    ]
    head = begun_dflash(target(), DrafterRecipe(depth=2), "mmspec/some")
    head.write(tmp_path / "head")
    assert dflash_features(read_dflash(str(tmp_path / "head")), 2).boundaries == head.boundaries == (1,)


FIELDS: dict[str, dict[str, Any]] = {
    **{
        kind: {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "pad_token_id": 0, entry: value}
        for kind, (entry, value) in {"eagle": ("bias", True), "fspad": ("bias", True), "falcon": ("k_mask", 2)}.items()
    },
    "dflash": {
        "architectures": ["DFlashDraftModel"],
        "block_size": 3,
        "num_target_layers": 2,
        "dflash_config": {"mask_token_id": 39, "target_layer_ids": [0]},
    },
    "medusa": {
        "model_type": "medusa",
        "medusa_num_heads": 2,
        "medusa_num_layers": 1,
        "base_model_name_or_path": "mmspec/some",
        "hidden_size": 16,
        "vocab_size": 40,
        "medusa_fc_bias": True,
    },
    "shared": {
        "architectures": ["MedusaModel"],
        "num_heads": 2,
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "vocab_size": 40,
        "original_lm_head": True,
        "medusa_fc_bias": True,
    },
}
"""What DFlash's authors and vLLM read of a config, and must find."""
INSIDE = r"input_layernorm|post_attention_layernorm|mlp\.(gate|up|down)_proj|self_attn\.([qkvo]_proj|[qk]_norm)"
ONE = r"layers\.0\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj|post_attention_layernorm)\.weight"
KEYS = {
    "eagle": rf"fc\.(weight|bias)|embed_tokens\.weight|{ONE}",
    "fspad": rf"fc\.(fc\.(weight|bias)|(mlp\.(gate|up|down)_proj|post_attention_layernorm)\.weight)|"
    rf"embed_tokens\.weight|{ONE}",
    "falcon": rf"lstm\.(weight|bias)_[ih]h_l[01]|embed_tokens\.weight|{ONE}",
    "dflash": rf"(fc|hidden_norm|norm|layers\.[01]\.({INSIDE}))\.weight",
    "medusa": r"[01]\.(0\.linear\.(weight|bias)|1\.weight)",
    "shared": r"blocks\.[01]\.layers\.0\.(weight|bias)",
}


@pytest.mark.parametrize("kind", FIELDS)
def test_files_have_what_others_read(kind: str, tmp_path: Path) -> None:
    """The authors' classes loaded heads of these files, Medusa's, DFlash's, EAGLE's and FSPAD's, and drafted what we
    draft. Falcon's are those of the fixture that its class loaded.
    """
    KINDS[kind](target(), DrafterRecipe(depth=2), "mmspec/some").write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.items() >= FIELDS[kind].items()
    if kind == "medusa":
        stored = torch.load(tmp_path / "medusa_lm_head.pt", weights_only=True)
        assert len(stored) == 6 and all(stored[f"{head}.1.weight"].shape == (40, 16) for head in range(2))
    elif kind in FIRST:
        stored = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
        assert len(stored) == {"eagle": 11, "fspad": 15, "falcon": 17}[kind]
    else:
        stored = load_file(tmp_path / "model.safetensors")
    assert all(re.fullmatch(KEYS[kind], key) for key in stored)


def test_an_id_for_units_that_are_not_known() -> None:
    model = target()
    assert mask_token_of(model) == 39
    model.config.pad_token_id = 5
    assert mask_token_of(model) == 5
    model.generation_config.eos_token_id = [5, 7]
    assert mask_token_of(model) == 39
    model.config.mask_token_id = 6
    assert mask_token_of(model) == 6
    with torch.no_grad():
        model.get_input_embeddings().weight[6] = 0
    assert mask_token_of(model) == 39


def test_batches_of_a_step() -> None:
    assert DrafterRecipe(batches=3).loop("layers").batches == 3 and DrafterRecipe().loop("layers").batches == 1


def test_roots_are_drawn_from_what_is_learnt() -> None:
    """Without replacement, by the batch's seed; both a root and what follows it are the answer's."""
    counted = torch.zeros(2, 30, dtype=torch.bool)
    counted[0, 9:29] = True  # the units 10 to 29 are an answer
    counted[1, 3:5] = True
    batch = Batch(torch.arange(60).view(2, 30), counted, seed=4)
    roots, drawn = drawn_roots(batch, 8)
    first, second = (row[inside].tolist() for row, inside in zip(roots, drawn, strict=True))
    assert len(set(first)) == 8 and set(first) <= set(range(10, 29)) and second == [4]
    assert torch.equal(drawn_roots(batch, 8)[0], roots)
    assert not torch.equal(drawn_roots(Batch(batch.ids, counted, seed=5), 8)[0], roots)
    assert int(drawn_roots(batch, 512)[1].sum()) == 20
    whole, _ = drawn_roots(Batch.whole(batch.ids), 512)
    assert sorted(whole[0].tolist()) == list(range(1, 30))


def test_drawn_blocks_are_those_behind_all_units() -> None:
    """With enough roots, the loss compares what a walk along the text does; and units behind the text count nowhere."""
    model = target()
    head = begun_dflash(model, DrafterRecipe(depth=3), "mmspec/some")
    learn_a_little(head.network)
    batch = Batch.whole(torch.randint(40, (2, 9), generator=torch.Generator().manual_seed(1)))
    features, logits = Teacher(model, head.boundaries)(batch.ids)
    assert features is not None
    with torch.no_grad():
        steps = list(along(head.network, features, batch.ids, 3))
        whole = Top(*logits.softmax(-1).sort(descending=True))
        found = list(compared(head.network, features, whole, batch.ids, batch, 3, 512))
    roots, _ = drawn_roots(batch, 512)
    for depth, (step, one) in enumerate(zip(steps, found, strict=True)):
        for row, places in enumerate(roots.tolist()):
            for column, root in enumerate(places):
                assert bool(one.mask[row, column]) == (root + depth < 9)
                if root <= 6:
                    assert torch.allclose(one.scored[row, column], step[row, root - 1], atol=1e-5)
                if root + depth < 8:
                    assert one.units[row, column] == batch.ids[row, root + depth + 1]
                    assert torch.equal(one.p.dense(40)[row, column], logits.softmax(-1)[row, root + depth])
