"""Reading an EAGLE head: maps of ids, latent attention, which states its ids of layers mean, long texts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec_text.drafters.eagle import Eagle, EagleOptions, eagle_features
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from mmspec_text.drafters.heads.latent import DOWN, Latent
from mmspec_text.drafters.heads.vocabulary import mapped_ids
from tests.heads.test_published import FOLDER, opened, stored
from tests.support.eagle_layouts import LAYOUTS, TARGET, VOCAB
from tests.text.conftest import llama

THIRD = LAYOUTS["eagle-3"]


def target(**config: Any) -> TransformersTarget:
    return TransformersTarget(llama(**{"num_hidden_layers": 6, **config}))


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


def test_beyond_the_position_table(tmp_path: Path) -> None:
    """A head's config may end at fewer positions than a text has; rotary positions are computed for any."""
    folder = THIRD.save(tmp_path, changed={"max_position_embeddings": 16})
    drafter = Eagle(EagleOptions(model=str(folder), form="chain", probe=False))
    prompt = torch.randint(3, VOCAB, (2, 30), generator=torch.Generator().manual_seed(2))
    output = Decoder(target(), drafter, k=2).generate(prompt, 20, warp=Warp.sampling(temperature=0))
    assert output.report.acceptance_length >= 1 and all(len(units) == 20 for units in output.units)
