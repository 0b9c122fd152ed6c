"""Heads that say `norm_output` and were trained with the state fed back as it is: the better way is kept."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama as tiny
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from tests.heads.conftest import checkpoint, written_out
from tests.support.cached_heads import second_guesses
from tests.support.eagle_layouts import LAYOUTS, TARGET
from tests.text.conftest import llama


@pytest.mark.parametrize("name", ["eagle-3", "eagle-3.1"])
def test_second_guesses_are_those_of_the_forward_written_out(name: str) -> None:
    stored, rows = checkpoint(name), 4
    network = stored.network(7)
    network.join(tiny().model.embed_tokens, tiny().lm_head, torch.device("cpu"), torch.float32)
    g = torch.Generator().manual_seed(3)
    features, units = torch.randn(2, rows, 48, generator=g), torch.randint(7, (2, rows + 1), generator=g)
    with torch.no_grad():
        logits = second_guesses(network, features, units)
    for row in range(2):
        for t in range(rows):
            known, child = units[row, : t + 1].tolist(), [int(units[row, t + 1])]
            wanted = written_out(stored).draft_logits(features[row, : t + 1], known, child)[1]
            assert torch.allclose(logits[row, t].double(), wanted, atol=1e-4)


@pytest.mark.parametrize("mislabelled", [True, False])
def test_the_better_way_is_kept_and_said(mislabelled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head without attention and MLP that hands its state on; its norm undoes itself, or shuffles what it reads.

    In a text of one token every guess of the state as it is is right. Normalised twice it is, too, with even weights.
    """
    said: list[str] = []
    monkeypatch.setattr("mmspec_text.drafters.heads.trial.warn", said.append)
    model = llama(num_hidden_layers=6)
    if mislabelled:
        model.model.norm.weight.data = 3 * torch.randn(TARGET, generator=torch.Generator().manual_seed(1))
    weights = LAYOUTS["modelopt"].weights()
    changed: dict[str, Any] = {
        key: torch.zeros_like(value)
        for key, value in weights.items()
        if key.endswith(("o_proj.weight", "down_proj.weight"))
    }
    changed["fc.weight"] = torch.cat([torch.zeros(TARGET, 2 * TARGET), torch.eye(TARGET)], 1)
    changed |= {"norm.weight": model.model.norm.weight.data, "lm_head.weight": model.lm_head.weight.data}
    config = {"norm_output": True, "eagle_aux_hidden_state_layer_ids": [1, 2, 5]}
    folder = LAYOUTS["modelopt"].save(tmp_path, changed=config, **changed)
    drafter = Eagle(EagleOptions(model=str(folder), form="chain"))
    decoder = Decoder(TransformersTarget(model), drafter, k=3)
    decoder.generate(torch.full((1, 40), 9), 4, warp=Warp.sampling(temperature=0))
    trial = drafter.loaded.trial
    assert trial is not None and trial.second[False] == 1 and (trial.second[True] < 0.5) == mislabelled
    assert drafter.network.feeds_normed != mislabelled
    assert f"second guesses: {trial.second[True]:.0%} if the state fed back is normalised" in str(drafter.loaded)
    assert len(said) == mislabelled and all("fed back as it is" in text for text in said)
    again = Decoder(decoder.target, drafter, k=3)  # a decoder that is put together anew keeps the way
    assert again.drafter is drafter and drafter.network.feeds_normed != mislabelled
