"""A gated LoRA: own rows to the bit, drafts beside a model that has the LoRA in its weights, linear decoding, files.

That model reads nothing but the masks, over the keys of the unmodified one; the sampler is written out.
"""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, Rule
from mmspec.core.types import Draft
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.gated_lora import GatedLora, GatedLoraOptions, read_gated
from mmspec_text.training.gated import write_gated
from tests.heads.conftest import GREEDY, SAMPLED
from tests.support.draft_rounds import played
from tests.support.examples.heads import gated_adapter


def decoder(rule: Rule | None = None, k: int = 3, **options: Any) -> Decoder:
    drafter = GatedLora(GatedLoraOptions(model=gated_adapter(), **options))
    return Decoder(TransformersTarget(llama()), drafter, rule or Match(), k=k)


@cache
def merged() -> Any:
    """The Llama with the LoRA in its weights."""
    model, network = copy.deepcopy(llama()), gated_adapter().network
    with torch.no_grad():
        for name, down, up in zip(network.names, network.down, network.up, strict=True):
            model.get_submodule(name).weight += network.scale * up @ down
    return model


@cache
def states(known: tuple[int, ...]) -> Tensor:
    """The states at the masks, which stand behind the last unit before the root."""
    masks = gated_adapter().embeddings
    with torch.no_grad():
        keys = llama()(torch.tensor([known[:-1]]), use_cache=True).past_key_values
        out = merged().model(inputs_embeds=masks[None], past_key_values=keys)
    return out.last_hidden_state[0]


def expected(known: Tensor, path: list[int]) -> Tensor:
    """Log probabilities behind known units and a path, and behind each of its prefixes."""
    w = {key: value.double() for key, value in gated_adapter().network.state_dict().items()}
    rows, model = [], llama()
    for z, unit in zip(states(tuple(known.tolist())), [int(known[-1]), *path], strict=False):
        x = torch.cat([model.model.embed_tokens.weight[unit], z]).double()
        for layer in ("sampler.0", "sampler.1"):
            x = F.silu(w[f"{layer}.linear.weight"] @ x + w[f"{layer}.linear.bias"])
            x = (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt() * w[f"{layer}.norm.weight"] + w[
                f"{layer}.norm.bias"
            ]
        rows.append((model.lm_head.weight.double() @ x).log_softmax(-1))
    return torch.stack(rows).detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["chain", "linear"])
def test_own_rows_are_the_targets_to_the_bit(dtype: torch.dtype, form: str, rows: dict[str, Tensor]) -> None:
    """Scores and keys of nodes with a LoRA, and with none, which is B = 0, in passes of one shape; masks differ."""
    found = []
    for factor in (0.0, 1.0, 40.0):
        adapter = copy.deepcopy(gated_adapter())
        for up in adapter.network.up:
            up.data *= factor
        drafter = GatedLora(GatedLoraOptions(model=adapter, form=form))
        target = drafter.wrap(TransformersTarget(copy.deepcopy(llama()).to(dtype)))
        started = target.start(rows, 8, 4)
        draft = Draft.chain(torch.tensor([[1, 2, 3]]).expand(3, -1)).rooted(
            torch.tensor([4, 5, 6]), torch.full((3,), 9)
        )
        output = target.verify(started.cache, draft)
        assert output.logits is not None and output.auxiliary is not None
        target.commit(started.cache, torch.tensor([[1, 2, 3]] * 3), torch.tensor([4, 4, 4]))
        again = target.verify(started.cache, Draft.alone(torch.tensor([1, 1, 1])))
        assert again.logits is not None
        found.append((output.logits, again.logits, output.auxiliary))
    for other in found[1:]:
        assert torch.equal(other[0], found[0][0]) and torch.equal(other[1], found[0][1])
        assert not torch.equal(other[2], found[0][2])


def test_linear_drafts_of_successive_rounds(rows: dict[str, Tensor]) -> None:
    """A draft is the likeliest chain behind one that was accepted whole, and there is none behind another."""
    recorded, _ = played(decoder(form="linear"), rows, GREEDY)
    drafted, before = 0, None
    for known, done, draft in recorded[1:]:
        for row in (row for row in range(len(known)) if not done[row]):
            units = draft.units[row][draft.valid[row]].tolist() if draft.units.shape[1] else []
            grown = None if before is None else len(known[row]) - before[row][0]
            assert bool(units) == (grown is None or grown == before[row][1] + 1), (grown, before, units)
            if units:
                best, path = [], list[int]()
                for depth in range(len(units)):
                    best.append(int(expected(known[row], path)[depth].argmax()))
                    path = best
                assert units == best
                drafted += 1
        before = [(len(k), int(draft.valid[row].sum())) for row, k in enumerate(known)]
    assert drafted > 3


@pytest.mark.filterwarnings("error:drafter GatedLora failed")
@pytest.mark.compiled
@pytest.mark.parametrize("form", ["chain", "linear", "rerank"])
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_no_form_changes_a_text(form: str, warp: Any, rows: dict[str, Tensor]) -> None:
    plain = Decoder(TransformersTarget(llama()), None, Match(), k=0).generate(rows, 30, seed=5, warp=warp)
    ours = decoder(Match(), form=form, nodes=6).generate(rows, 30, seed=5, warp=warp)
    assert all(torch.equal(a, b) for a, b in zip(ours.units, plain.units, strict=True))
    assert ours.report.accepted > 0, "nothing was accepted, so nothing was tested"


def test_masks_that_are_used(rows: dict[str, Tensor]) -> None:
    assert decoder(masks=2, k=8).generate(rows, 12).report.drafted > 0
    assert decoder(masks=2).drafter.own_length == 2 and decoder().drafter.own_length == 3
    passes = [decoder(form=form, masks=masks).target for form, masks in (("chain", 3), ("linear", 3), ("chain", 1))]
    assert [target.pass_nodes(4) for target in passes] == [16, 7, 8]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="has 3 masks; masks=4 is more"):
        decoder(masks=4)


def test_files_and_refusals(tmp_path: Path) -> None:
    write_gated(gated_adapter().network, "some", tmp_path / "a")
    read = read_gated(str(tmp_path / "a"))
    theirs = {key: value.half() for key, value in gated_adapter().network.state_dict().items()}
    assert read.network.scale == 2 and read.network.state_dict().keys() == theirs.keys()
    assert {*read.network.names} == {*gated_adapter().network.names}
    order = [gated_adapter().network.names.index(name) for name in read.network.names]
    for key, value in read.network.state_dict().items():
        part, _, place = key.partition(".")
        own = theirs[f"{part}.{order[int(place)]}" if part in ("down", "up") else key]
        assert torch.equal(value, own), key
    tensors, config = load_file(tmp_path / "a" / "adapter_model.safetensors"), tmp_path / "a" / "adapter_config.json"
    given = json.loads(config.read_text())

    def saved(name: str, weights: dict[str, Tensor], **changed: Any) -> str:
        folder = tmp_path / name
        folder.mkdir()
        save_file(weights, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps({**given, **changed}))
        return str(folder)

    with pytest.raises(ValueError, match="has no matrix mask_embeddings, or no pairs lora_A and lora_B"):
        read_gated(saved("b", {"mask_embeddings": tensors["mask_embeddings"]}))
    with pytest.raises(ValueError, match=r"not all of it is read: .*other"):
        read_gated(saved("c", {**tensors, "other": torch.zeros(1)}))
    with pytest.raises(ValueError, match=r"the weights of the gated LoRA .* do not fit"):
        read_gated(saved("d", tensors, r=5))
    with pytest.raises(ValueError, match=r"the weights of the gated LoRA .* do not fit: .*sampler"):
        read_gated(saved("e", {k: v for k, v in tensors.items() if k != "sampler.1.norm.bias"}))
    other = copy.deepcopy(llama())
    mlp = other.model.layers[1].mlp
    mlp.up_proj, mlp.gate_proj, mlp.down_proj = (
        nn.Linear(*size, bias=False) for size in ((16, 25), (16, 25), (25, 16))
    )
    with pytest.raises(
        ValueError, match=r"is another target's: model.layers.1.mlp.(gate|up|down)_proj is no linear layer of as"
    ):
        Decoder(TransformersTarget(other), GatedLora(GatedLoraOptions(model=str(tmp_path / "a"))))
    with pytest.raises(ValueError, match="gated-lora needs masks of a gated LoRA"):
        mmspec.enable(llama(), "gated-lora")
