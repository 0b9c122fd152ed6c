"""Kinds `pard`, `ppd`, `gated-lora` of `mmspec train drafter`: blocks in one pass, what is learnt, files, refusals."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BloomConfig, BloomForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.training import loop
from mmspec_text.drafters.heads.unroll import along
from mmspec_text.drafters.pard import Pard, PardOptions
from mmspec_text.drafters.ppd import read_prompts
from mmspec_text.training.blocks import MaskedModel, PromptTokens, begun_pard, begun_ppd, fill_blocks, refuse_odd_blocks
from mmspec_text.training.gated import begun_gated
from mmspec_text.training.heads import compared, depth_metrics, drawn_roots, head_loss, kept_roots
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.texts import Batch, Stream, Texts
from tests.support import byte_llama

SIZES: dict[str, Any] = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2)
SIZES |= dict(num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.3)


def llama(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SIZES)).eval().requires_grad_(False)


def some_units(rows: int = 2, length: int = 9) -> Tensor:
    return torch.randint(40, (rows, length), generator=torch.Generator().manual_seed(1))


def behind(model: Any, known: Tensor, fillers: Tensor) -> Tensor:
    """The logits of a model at fillers behind `known [unit]`, in a pass of their own, `[filler, vocab]`."""
    embedded = torch.cat([model.get_input_embeddings()(known), fillers])
    with torch.no_grad():
        return model(inputs_embeds=embedded[None], use_cache=False).logits[0, len(known) :]


def test_blocks_are_passes_of_their_own() -> None:
    """Whatever else hangs behind the text; and the text is what it is without them."""
    model, units = llama(), some_units()
    roots, fillers = (
        torch.tensor([[3, 0, 8], [5, 6, 1]]),
        torch.randn(3, 16, generator=torch.Generator().manual_seed(2)),
    )
    with torch.no_grad():
        text, levels = fill_blocks(model, units, roots, fillers, [3, 2, 1])
        _, alone = fill_blocks(model, units, roots, fillers, [3, 2, 1], text=False)
        assert torch.allclose(text, model(units, use_cache=False).logits, atol=1e-5)
    assert [level.shape[1] for level in levels] == [3, 2, 1]
    for depth, level in enumerate(levels):
        assert torch.allclose(level, alone[depth], atol=1e-6)
        for row in range(2):
            for column in range(level.shape[1]):
                theirs = behind(model, units[row, : roots[row, column] + 1], fillers)[depth]
                assert torch.allclose(level[row, column], theirs, atol=1e-5)


def test_a_share_of_drafts_goes_on() -> None:
    """PARD's drop of tokens, with its floor; what is left is compared at the roots that have all units before it."""
    assert kept_roots(10, 0.7, 6) == [10, 7, 5, 4, 3, 2] and kept_roots(3, 1.0, 2) == [3, 3]
    batch, head = Batch.whole(some_units()), MaskedModel(llama(1), 39, 0.5)
    _, top = Teacher(llama(), ()).model, Teacher(llama(), (-1,)).said(batch.ids, None).top
    found = list(compared(head, torch.empty(2, 9, 0), top, batch.ids, batch, 3, 512))
    roots, _ = drawn_roots(batch, 512)
    assert [one.scored.shape[1] for one in found] == [8, 4, 2]
    for depth, one in enumerate(found):
        for row in range(2):
            for column, root in enumerate(roots[row, : one.scored.shape[1]].tolist()):
                known = torch.cat([batch.ids[row, : root + 1], torch.full((depth,), 39)])
                assert torch.allclose(one.scored[row, column], head.model(known[None]).logits[0, -1], atol=1e-5)
                assert bool(one.mask[row, column]) == (root + depth < 9)


def test_drafts_under_training_are_those_in_use() -> None:
    """Row t drafts behind the root t + 1: masks stand behind it, prompt tokens behind the unit before it."""
    units = some_units()
    small, target = MaskedModel(llama(1), 39, 0.5), llama()
    prompts = PromptTokens(target, 3, seed=0)
    rows: Any = [torch.stack(list(along(head, units.new_empty(2, 9, 0), units, 3)), 2) for head in (small, prompts)]
    for row in range(2):
        for t in range(6):
            masked = behind(
                small.model,
                units[row, : t + 1],
                small.model.get_input_embeddings()(torch.cat([units[row, t + 1 : t + 2], torch.tensor([39, 39])])),
            )
            assert torch.allclose(rows[0][row, t], masked, atol=1e-5)
            prompted = behind(target, units[row, : t + 1], prompts.embeddings.detach())
            assert torch.allclose(rows[1][row, t], prompted, atol=1e-5)


def gated(model: Any, depth: int = 3) -> Any:
    """A gated LoRA before its training, of which all weights differ."""
    head = begun_gated(model, DrafterRecipe(depth=depth, context=16, rank=2), "some")
    torch.manual_seed(3)
    with torch.no_grad():
        for weights in head.network.parameters():
            weights.add_(0.3 * torch.randn_like(weights))
    return head.network


def test_a_gated_block_is_a_pass_of_a_model_that_has_the_lora_in_its_weights() -> None:
    """Over the keys of the unmodified one, which is read up to the unit before the root; the gradient stays here."""
    model, units = llama(), some_units()
    head = gated(model)
    network, target = head.network, llama()
    with torch.no_grad():
        for name, down, up in zip(network.names, network.down, network.up, strict=True):
            target.get_submodule(name).weight.add_(network.scale * up @ down)
    roots = torch.tensor([[3, 1], [6, 8]])
    found = head.filled(units, roots, [2, 2, 1])
    for row, column in ((row, column) for row in range(2) for column in range(2)):
        root = int(roots[row, column])
        keys = model(units[row, None, :root], use_cache=True).past_key_values
        masked = target.model(inputs_embeds=network.embeddings[None], past_key_values=keys).last_hidden_state[0]
        for depth in range(3 - column):
            z, told = masked[depth], units[row, min(root + depth, 8)]
            assert torch.allclose(found.states[depth][row, column], z, atol=1e-4)
            assert torch.allclose(found.plain[depth][row, column], model.lm_head(z), atol=1e-4)
            scored = network.sampled(z[None, None], told[None, None])[0, 0]
            assert torch.allclose(found.scored[depth][row, column], scored, atol=1e-4)
    text = model(units, use_cache=False).logits
    assert torch.equal(text, llama()(units, use_cache=False).logits), "hooks are left on the target"
    sum(each.square().mean() for level in found for each in level).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in head.parameters())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("kind", ["pard", "ppd"])
def test_layers_run_again_for_the_gradient(kind: str) -> None:
    """The gradient is the same, and the layers are afterwards what they were."""
    model, batch, found = llama(), Batch.whole(some_units()), []
    for recompute in (False, True):
        recipe = DrafterRecipe(depth=3, hard=0.0, context=16, recompute=recompute)
        head = (begun_ppd if kind == "ppd" else partial(begun_pard, None))(model, recipe, "some")
        layer = (model if kind == "ppd" else head.network.model).model.layers[0]
        runs = list[int]()
        hook = layer.mlp.register_forward_pre_hook(lambda *given, runs=runs: runs.append(1))
        head_loss(Teacher(llama(), head.boundaries).said, recipe.draft_loss, 3)(head.network, batch).backward()
        hook.remove()
        assert len(runs) == 1 + recompute and "forward" not in vars(layer)
        found.append([p.grad for p in head.network.parameters()])
    for one, other in zip(*found, strict=True):
        assert one is not None and torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("kind", ["pard", "ppd", "gated-lora"])
def test_only_the_drafter_learns(kind: str, tmp_path: Path) -> None:
    """Of the target nothing; and the loss falls."""
    model, recipe = llama(), DrafterRecipe(steps=30, depth=3, hard=0.0, learning_rate=2e-2, context=24)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    begun: Any = {"ppd": begun_ppd, "gated-lora": begun_gated, "pard": partial(begun_pard, None)}[kind]
    head = begun(model, recipe, "some")
    teacher, texts = Teacher(model, head.boundaries), Texts([Stream(torch.arange(400) % 10, 1.0)], 4, 24, 0)
    loss, lines = head_loss(teacher.said, recipe.draft_loss, 3), list[str]()
    first = float(loss(head.network, texts.batch_at(0)).detach())
    loop.fit(head.network, texts.batch_at, loss, recipe.loop(head.hidden), tmp_path, lines.append)
    assert float(loss(head.network, texts.batch_at(0)).detach()) < 0.8 * first
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    learnt = sum(p.numel() for p in head.network.parameters())
    ranked = (
        128 * 2 * (16 + 16 + 16 + 8 + 16 + 8 + 16 + 16 + 3 * (16 + 24))
    )  # of each layer's q, k, v, o, and its MLP's
    sampler = 32 * 16 + 16 * 16 + 6 * 16
    assert learnt == {"ppd": 3 * 16, "gated-lora": 3 * 16 + ranked + sampler}.get(kind, learnt)
    assert depth_metrics(head.network, teacher, [Batch.whole(torch.arange(24)[None] % 10)], 3).length >= 1


def test_a_draft_model_that_is_given(tmp_path: Path) -> None:
    """It begins as it is, goes on by AdamW alone, and is read by `pard` with the mask that it was trained with."""
    target = load_model(str(byte_llama.save(tmp_path / "target"))).float().requires_grad_(False)
    small = byte_llama.save(tmp_path / "small")
    recipe = DrafterRecipe(depth=3, context=16, draft_model=str(small))
    tokenizer = load_tokenizer(str(small))
    head = begun_pard(tokenizer, target, recipe, "some")
    network: Any = head.network
    assert head.hidden is None and all(p.requires_grad for p in network.parameters())
    stored = load_model(str(small)).state_dict()
    assert all(torch.equal(value, stored[key]) for key, value in network.model.state_dict().items())
    head.write(tmp_path / "pard")
    assert json.loads((tmp_path / "pard" / "config.json").read_text()).items() >= {"pard_token": 256}.items()
    read = Pard(PardOptions(model=str(tmp_path / "pard")))
    assert read.mask == network.mask == 256
    assert load_tokenizer(str(tmp_path / "pard")).vocab_size == tokenizer.vocab_size
    again: Any = begun_pard(tokenizer, target, replace(recipe, draft_model=str(tmp_path / "pard")), "some").network
    assert again.mask == 256
    llama().save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="has 40 ids, and the target 257: only one of the target's"):
        begun_pard(tokenizer, target, DrafterRecipe(draft_model=str(tmp_path / "other")), "some")


def test_an_adapter_as_its_authors_write_it(tmp_path: Path) -> None:
    """Their own loader took an adapter of these files, and scored what `ppd` scores."""
    head = begun_ppd(llama(), DrafterRecipe(depth=2, context=16), "mmspec/some")
    head.write(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    fields: dict[str, Any] = {"prompt_tuning_init": "RANDOM"}  # the loader asks for no tokenizer
    fields |= {"num_special_tokens": 2, "virtual_tokens_per_special_token": 1, "num_virtual_tokens": 2, "token_dim": 16}
    assert config.items() >= {"peft_type": "PROMPT_TUNING", "base_model_name_or_path": "mmspec/some", **fields}.items()
    network: Any = head.network
    assert torch.equal(read_prompts(str(tmp_path)).embeddings, network.embeddings.half())


def test_targets_whose_blocks_are_others() -> None:
    """A window that a pass over blocks does not have, and positions that are counted from what is seen."""
    fillers = torch.randn(2, 16, generator=torch.Generator().manual_seed(2))
    refuse_odd_blocks(llama(), 24, fillers, "the target")
    torch.manual_seed(0)
    window = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=6)).eval()
    torch.manual_seed(0)
    counted = BloomForCausalLM(BloomConfig(vocab_size=40, hidden_size=16, n_layer=2, n_head=2, initializer_range=0.3))
    with pytest.raises(ValueError, match=r"the target .* says other things in a pass over many blocks .* windows"):
        refuse_odd_blocks(window, 24, fillers, "the target")
    with pytest.raises(ValueError, match=r"the target \(BloomForCausalLM\) takes no blocks behind a text"):
        refuse_odd_blocks(counted.eval(), 24, fillers, "the target")
