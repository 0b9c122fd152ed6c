"""Heads that do not fit, files that are no heads, and what a trial on the prompt reports."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_text.drafters.eagle import Eagle, EagleOptions, eagle_features
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from mmspec_text.drafters.heads.latent import DOWN, Latent
from mmspec_text.drafters.heads.vocabulary import mapped_ids
from tests.heads.conftest import checkpoint
from tests.heads.test_published import FOLDER, opened, stored
from tests.support.eagle_layouts import FIRST, LAYOUTS, TARGET, VOCAB
from tests.text.conftest import llama

THIRD = LAYOUTS["eagle-3"]


def target(**config: Any) -> TransformersTarget:
    return TransformersTarget(llama(**{"num_hidden_layers": 6, **config}))


def refused(folder: Path, match: str, **config: Any) -> None:
    with pytest.raises(ValueError, match=match):
        Decoder(target(**config), Eagle(EagleOptions(model=str(folder))))


def test_a_head_of_another_target(tmp_path: Path) -> None:
    folder = THIRD.save(tmp_path / "a")
    refused(folder, "states of 64 numbers, and those of the target have 128", hidden_size=128)
    refused(folder, "made for 131 ids, and the target has 140", vocab_size=140)
    refused(folder, "names id 96, and the target has 90", vocab_size=90)
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 5, 9]}
    refused(THIRD.save(tmp_path / "b", changed=ids), "layers 2, 5, 9 of its target, and this one has 6")
    four = LAYOUTS["sliding-four-features"]
    unsaid = {"eagle_aux_hidden_state_layer_ids": None}
    refused(four.save(tmp_path / "c", changed=unsaid), "does not say which of the target's 6 layers")
    wide = {"lm_head.weight": torch.zeros(140, TARGET), "d2t": None, "t2d": None}
    more = THIRD.save(tmp_path / "e", changed={"draft_vocab_size": 140}, **wide)
    refused(more, "scores 140 ids, and its target has 131")
    ids = {"d2t": torch.zeros(140, dtype=torch.int64), "t2d": None}
    more = THIRD.save(tmp_path / "f", changed={"draft_vocab_size": 140, "vocab_size": 140}, **{**wide, **ids})
    refused(more, "d2t names id 139, and the target has 131")
    refused(THIRD.save(tmp_path / "d", changed={"num_aux_hidden_states": 2}), "not 2 states of 64")


def test_a_target_that_gives_no_states() -> None:
    drafter = Eagle(EagleOptions(model=checkpoint("eagle-3"), form="chain"))
    with pytest.raises(ValueError, match="nothing offers hidden"):
        Decoder(MarkovTarget(torch.rand(7, 7, 7)), drafter)


def test_maps_of_a_vocabulary() -> None:
    ids = torch.tensor([1, 3, 4])
    d2t, t2d = ids - torch.arange(3), torch.zeros(6, dtype=torch.bool).index_fill(0, ids, True)
    found = mapped_ids(d2t, t2d, 3, 6, "it")
    assert found is not None and torch.equal(found, ids)
    assert torch.equal(mapped_ids(None, t2d, 3, 6, "it"), ids)  # type: ignore[arg-type]
    assert mapped_ids(None, None, 6, 6, "it") is None and mapped_ids(torch.zeros(6).long(), None, 6, 6, "it") is None
    for wrong, said in (
        ((None, None, 3, 6), "no map"),
        ((torch.zeros(3).long(), t2d, 3, 6), "all zero"),
        ((torch.tensor([1, 0, -1]), None, 3, 6), "ascending"),
        ((torch.tensor([3, 1, 1]), t2d, 3, 6), "ascending"),
        ((d2t[:2], t2d, 3, 6), "shape"),
        ((d2t + 2, None, 3, 6), "names id 6"),
        ((d2t + 1, t2d, 3, 6), "do not name the same ids"),
    ):
        with pytest.raises(ValueError, match=said):
            mapped_ids(*wrong, "it")  # type: ignore[arg-type]


def test_files_that_are_no_heads(tmp_path: Path) -> None:
    medusa = replace(THIRD, shapes={"0.0.linear.weight": (4, 4), "0.1.weight": (4, 4)}, pruned=False)
    with pytest.raises(ValueError, match=r"EAGLE-1 is the nearest, and fc.weight.* is missing"):
        read_checkpoint(str(medusa.save(tmp_path / "a")))
    cut = {key: shape for key, shape in FIRST.items() if "gate" not in key}
    with pytest.raises(ValueError, match=r"EAGLE-1 is the nearest, and layers.0.mlp.gate_proj.weight is missing"):
        read_checkpoint(str(replace(THIRD, shapes=cut, pruned=False).save(tmp_path / "b")))
    with pytest.raises(ValueError, match=r"eagel3.*eagle3"):
        read_checkpoint(str(THIRD.save(tmp_path / "c", changed={"speculators_model_type": "eagel3"})))
    with pytest.raises(ValueError, match="P-EAGLE"):
        read_checkpoint(str(THIRD.save(tmp_path / "d", mask_hidden=torch.zeros(1, 1, 3 * TARGET))))
    with pytest.raises(ValueError, match="quantised"):
        packed = torch.zeros(TARGET, TARGET, dtype=torch.int8)
        read_checkpoint(str(THIRD.save(tmp_path / "e", **{"fc.weight": packed})))
    with pytest.raises(ValueError, match=r"draft_vocab_size 47, and lm_head.weight has 48 rows"):
        read_checkpoint(str(THIRD.save(tmp_path / "f", changed={"draft_vocab_size": 47})))
    with pytest.raises(ValueError, match="has no part"):
        read_checkpoint(str(THIRD.save(tmp_path / "g", **{"layers.7.mlp.up_proj.weight": torch.zeros(4, 4)})))
    with pytest.raises(ValueError, match="of another shape"):
        wide = torch.zeros(TARGET, TARGET)
        read_checkpoint(str(THIRD.save(tmp_path / "h", **{"layers.0.mlp.up_proj.weight": wide}))).network(VOCAB)
    for wrong in ({"num_attention_heads": "many"}, {"rms_norm_eps": -1}, {"rope_scaling": 3}, {"vocab_size": None}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            read_checkpoint(str(THIRD.save(tmp_path / "i", changed=wrong)))


@pytest.mark.parametrize(
    ("config", "dropped", "said"),
    [
        ({"num_attention_heads": 3}, (), "40, 56 and 32 numbers of queries, .* are not 3 equal heads of which 4"),
        ({"is_neox_style": False}, (), "is_neox_style = False"),
        ({}, ("kv_b_proj",), r"has no layers.0.self_attn.kv_b_proj.weight"),
        ({}, ("kv_a_layernorm",), r"kv_a_layernorm"),
        ({}, ("q_a_layernorm",), r"q_a_layernorm"),
        ({}, ("q_a_proj",), r"q_b_proj|q_proj"),
    ],
)
def test_latent_attention(config: dict[str, Any], dropped: tuple[str, ...], said: str, tmp_path: Path) -> None:
    tensors, about = opened(FOLDER / "torchspec-eagle-3-latent.safetensors")
    kept = {key: value for key, value in tensors.items() if not any(f".{part}." in key for part in dropped)}
    folder = stored(kept, {**about, "config": json.dumps({**json.loads(about["config"]), **config})}, tmp_path)
    with pytest.raises(ValueError, match=said):
        read_checkpoint(folder).network(48)


@pytest.mark.parametrize("low", [True, False])
def test_numbers_of_latent_attention_that_turn_together(low: bool) -> None:
    """Numbers that turn are put in halves, head by head; a file says whether they are (`rope_interleave: false`)."""
    sizes = Latent(2, rank=6, still=5, turning=4, value=7, queries=5 if low else None, pairs=True)
    asked = "q_b_proj" if low else "q_proj"
    weights = {f"{DOWN}.weight": torch.randn(10, 8), f"self_attn.{asked}.weight": torch.randn(18, 5)}
    ordered, order = sizes.by_halves(weights), torch.tensor([0, 2, 1, 3])
    down, up = (weights[key] for key in weights)
    assert torch.equal(ordered[f"{DOWN}.weight"], torch.cat([down[:6], down[6:][order]]))
    rows = torch.cat([torch.arange(5), 5 + order])
    assert torch.equal(ordered[f"self_attn.{asked}.weight"], up[torch.cat([rows, 9 + rows])])
    assert replace(sizes, pairs=False).by_halves(weights) == weights


def test_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a head"):
        mmspec.enable(llama(num_hidden_layers=6), "eagle")


def test_both_meanings_of_a_layer_id(tmp_path: Path) -> None:
    """Explicit ids differ by one between layouts; without ids there is nothing to choose."""
    stored = read_checkpoint(str(LAYOUTS["specforge"].save(tmp_path)))
    assert eagle_features(stored, 6).choices == {"output": (1, 2, 4), "boundary": (0, 1, 3)}
    assert eagle_features(stored, 3).choices == {"boundary": (0, 1, 3)}
    assert eagle_features(replace(stored, layer_ids=()), 6).boundaries == (2, 3, 3)


def trained(folder: Path, model: LlamaForCausalLM, config: dict[str, Any]) -> Path:
    """A head that guesses from its third state as the target does from its last one: through the norm and lm_head."""
    stored = LAYOUTS["modelopt"]
    weights = stored.weights()
    nothing = [key for key in weights if key.endswith(("o_proj.weight", "down_proj.weight"))]
    weights |= {key: torch.zeros_like(weights[key]) for key in nothing}
    weights["fc.weight"] = torch.cat([torch.zeros(TARGET, 2 * TARGET), torch.eye(TARGET)], 1)
    weights |= {"norm.weight": model.model.norm.weight.data, "lm_head.weight": model.lm_head.weight.data}
    return stored.save(folder, changed=config, **weights)


@pytest.mark.parametrize("third", [True, False])
def test_layer_ids_off_by_one_are_found_and_said(third: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids are meant as outputs. ModelOpt's are; of the authors' layout one expects inputs, and is told.

    In a text of one token the target says the same everywhere, so that its last state is a guess of the next one's.
    """
    said: list[str] = []
    monkeypatch.setattr("mmspec_text.drafters.heads.trial.warn", said.append)
    model = llama(num_hidden_layers=6)
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 2, 5]}
    named = {"architectures": ["LlamaForCausalLM"], "eagle_config": None}
    folder = trained(tmp_path, model, ids if third else ids | named)
    drafter = Eagle(EagleOptions(model=str(folder), form="chain"))
    prompt = torch.full((1, 40), 9)
    Decoder(TransformersTarget(model), drafter, k=2).generate(prompt, 4, warp=Warp.sampling(temperature=0))
    trial = drafter.loaded.trial
    assert trial is not None and trial.units == 38 and trial.chosen == "output"
    assert trial.right["output"] == 1 and trial.right["boundary"] < 0.5
    assert "guesses of 38 tokens" in str(drafter.loaded) and f"layout {'modelopt' if third else 'eagle'}" in str(
        drafter.loaded
    )
    assert len(said) == (0 if third else 1) and all("name the outputs of layers" in text for text in said)


def test_a_head_that_guesses_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("mmspec_text.drafters.heads.trial.warn", said.append)
    drafter = Eagle(EagleOptions(model=str(THIRD.save(tmp_path)), form="chain"))
    ours = Decoder(target(), drafter, k=2)
    prompt = torch.randint(3, VOCAB, (1, 40), generator=torch.Generator().manual_seed(2))
    ours.generate(prompt, 4, warp=Warp.sampling(temperature=0))
    ours.generate(prompt, 4, warp=Warp.sampling(temperature=0))
    assert len(said) == 1 and "may be a head of another target" in said[0] and "chat template" in said[0]


def test_beyond_the_position_table(tmp_path: Path) -> None:
    """A head's config may end at fewer positions than a text has; rotary positions are computed for any."""
    folder = THIRD.save(tmp_path, changed={"max_position_embeddings": 16})
    drafter = Eagle(EagleOptions(model=str(folder), form="chain", probe=False))
    prompt = torch.randint(3, VOCAB, (2, 30), generator=torch.Generator().manual_seed(2))
    output = Decoder(target(), drafter, k=2).generate(prompt, 20, warp=Warp.sampling(temperature=0))
    assert output.report.acceptance_length >= 1 and all(len(units) == 20 for units in output.units)
