"""Heads that step along paths: those of other targets, files that are no heads, and what a trial reports."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions
from tests.support.path_heads import KINDS, LAYOUTS


def refused(folder: Path, name: str, match: str, **options: Any) -> None:
    with pytest.raises(ValueError, match=match):
        drafter = LAYOUTS[name].drafter(PathOptions(model=str(folder), **options))
        Decoder(TransformersTarget(llama()), drafter)


@pytest.mark.parametrize("name", KINDS)
def test_a_head_of_another_target(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    refused(layout.save(tmp_path / "a", hidden=24), name, "states of 24 numbers, and those of the target have 16")
    refused(layout.save(tmp_path / "b", vocab=6), name, "made for 6 ids, and the target has 7")
    refused(layout.save(tmp_path / "c"), name, "wants 8 siblings, and the head scores 7", width=8)
    with pytest.raises(ValueError, match="nothing offers hidden"):
        drafter = layout.drafter(PathOptions(model=str(tmp_path / "c"), form="chain"))
        Decoder(MarkovTarget(torch.rand(7, 7, 7)), drafter)


@pytest.mark.parametrize("name", KINDS)
def test_files_that_are_no_heads(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    others = dict.fromkeys(layout.weights())
    unknown = layout.save(tmp_path / "a", **{**others, "some.weight": torch.zeros(4, 4)})
    refused(unknown, name, "has no layout of .* is the nearest, and .* is missing. Its keys are .*some.weight")
    key, value = next((key, value) for key, value in layout.weights().items() if value.dim() > 1)
    refused(layout.save(tmp_path / "b", **{key: value.to(torch.int8)}), name, "quantised")
    key, value = list(layout.weights().items())[-1]
    refused(layout.save(tmp_path / "c", **{key: torch.zeros(3)}), name, "of another shape|no matrix|token_map")
    with pytest.raises(ValueError, match="needs a head"):
        layout.drafter(PathOptions())
    with pytest.raises(TypeError, match="a folder or a hub name"):
        layout.drafter(PathOptions(model=3))


@pytest.mark.parametrize("name", ["medusa", "hydra++", "arctic-lstm"])
def test_a_trial_is_reported_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses are compared with the target's own; what guesses nothing is said."""
    said: list[str] = []
    monkeypatch.setattr("mmspec_text.drafters.heads.trial.warn", said.append)
    layout = LAYOUTS[name]
    drafter = layout.drafter(PathOptions(model=str(layout.save(tmp_path)), form="chain"))
    ours = Decoder(TransformersTarget(llama()), drafter, k=2)
    prompt = torch.randint(7, (1, 40), generator=torch.Generator().manual_seed(2))
    for _ in range(2):
        ours.generate(prompt, 4, warp=Warp.sampling(temperature=0))
    trial = drafter.loaded.trial
    assert trial is not None and trial.units == 38
    with torch.no_grad():
        out = llama()(input_ids=prompt, output_hidden_states=True, use_cache=False)
    given, units = layout.given(llama()), prompt[0].tolist()
    right = 0
    for t in range(38):
        guess = layout.forward(given, out.hidden_states[-1][0, : t + 1], units[1 : t + 2], [])[0].argmax()
        right += int(guess == out.logits[0, t + 1].argmax())
    assert abs(trial.right["boundary"] - right / 38) < 1e-6
    assert len(said) == (right / 38 < 0.1) and "guesses of 38 tokens" in str(drafter.loaded)
    monkeypatch.setattr("mmspec_text.drafters.heads.trial.LOW", 1.1)
    again = layout.drafter(PathOptions(model=str(tmp_path), form="chain"))
    Decoder(TransformersTarget(llama()), again, k=2).generate(prompt, 4)
    assert "may be a head of another target" in said[-1]


def test_lists_of_ids_of_medusa(tmp_path: Path) -> None:
    layout = LAYOUTS["medusa-vllm-pruned"]
    for number, (wrong, said) in enumerate(
        (([0, 0, 1, 2], "different ids"), ([0, 1, 2], "different ids"), ([0, 1, 2, 9], "names id 9"))
    ):
        folder = layout.save(tmp_path / str(number), token_map=torch.tensor(wrong))
        refused(folder, "medusa", said)
    refused(layout.save(tmp_path / "x", changed={"num_heads": 4}), "medusa", "no part 3 of 4")
    refused(layout.save(tmp_path / "y", changed={"logit_scale": "big"}), "medusa", "logit_scale")


def test_what_is_said_of_others(tmp_path: Path) -> None:
    """Entries of a config, and parts, that are not computed or do not fit one another."""
    cases: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
        ("hydra", {"hidden_state_offset": 1}, {}, "earlier state"),
        ("hydra", {}, {"hydra_mlp.0.0.linear.weight": torch.zeros(16, 16)}, "grounded_heads: false"),
        ("hydra++", {"num_attention_heads": 5}, {}, "not 5 equal heads"),
        (
            "hydra++",
            {},
            {"prefix_embeding_layer.layers.0.self_attn.q_proj.weight": torch.zeros(16, 8)},
            "another shape",
        ),
        (
            "hydra++",
            {},
            {"prefix_embeding_layer.layers.0.mlp.gate_proj.weight": torch.zeros(24, 8)},
            "decoder layer",
        ),
        ("clover-2", {"clover": {"num_layers": 1}}, {}, "clover.: its config has no number num_heads"),
        ("clover-2", {"clover": 5}, {}, "clover.: its config has no number num_heads"),
        ("clover-2", {"clover": {"num_heads": 65}}, {}, "drafts 65 units .*the most is 64"),
        ("clover-2", {"clover": {"num_heads": 3, "num_layers": 2}}, {}, "no part 1 of 2"),
        ("clover-2", {"num_attention_heads": 5}, {}, "not 5 equal heads"),
        ("clover-2", {}, {"layers.0.self_attn.q_proj.weight": torch.zeros(8, 16)}, "2 heads of 4 numbers do not make"),
        ("mlp-speculator", {"n_predict": 0}, {}, "no number n_predict"),
        ("mlp-speculator", {"n_predict": 10**9}, {}, "the most is 64"),
        ("arctic-lstm", {"method": "sum_rnn"}, {}, "only 'sum_lstm' is computed"),
        ("arctic-lstm", {}, {"projs.0.weight": torch.zeros(41, 16)}, "not four gates"),
    ]
    for number, (name, config, tensors, said) in enumerate(cases):
        refused(LAYOUTS[name].save(tmp_path / str(number), changed=config, **tensors), name, said)
