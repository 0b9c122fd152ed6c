"""Multi-token layers change no text of transformers; and its own use of them, `generate(use_mtp=True)`.

That is one row, a chain, one unit per layer. Where both run, greedy drafts of every round are the same. Ours go on
beyond the last layer, and in trees and batches.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.generation.candidate_generator import MTPCandidateGenerator

import mmspec
from mmspec_text.drafters.mtp import Mtp, MtpOptions
from tests.support.head_equality import assert_equal_to_transformers
from tests.support.mtp_layouts import LAYOUTS

ZOO = ("mimo", "deepseek", "deepseek-two", "glm", "qwen3-next", "exaone", "mimo-v2", "ernie", "nemotron-h", "longcat")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepseek", "deepseek-two", "glm"])
def test_drafts_are_those_of_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = LAYOUTS[name]
    model = stored.loaded(stored.save(tmp_path))
    model._keys_to_ignore_on_load_unexpected = [
        rf"model\.layers\.{stored.layers}",
        rf"model\.layers\.{stored.layers + 1}",
    ]
    prompt = torch.randint(3, 131, (1, 9), generator=torch.Generator().manual_seed(4))
    theirs: list[list[int]] = []
    draft = MTPCandidateGenerator.get_candidates

    def watched(self: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        candidates, logits = draft(self, input_ids, *args, **kwargs)
        if logits is not None:
            theirs.append(candidates[0, input_ids.shape[1] :].tolist())
        return candidates, logits

    monkeypatch.setattr(MTPCandidateGenerator, "get_candidates", watched)
    call: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False}
    expected = model.generate(prompt, use_mtp=True, **call)
    ours: list[list[int]] = []
    drafter: Any = Mtp(MtpOptions(form="chain", probe=False))
    propose = drafter.propose

    def recorded(state: Any, k: int, noise: Any) -> Any:
        drafted = propose(state, k, noise)
        ours.append(drafted.units[0].tolist())
        return drafted

    drafter.propose = recorded
    with mmspec.enable(model, drafter=drafter, k=stored.depths):
        assert torch.equal(model.generate(prompt, **call), expected)
    assert len(ours) > 4, "nothing was compared"
    assert ours[:-1] == theirs[: len(ours) - 1], "the last draft may be cut to the length that is left"


@pytest.mark.compiled("expert loop")  # LongCat-Flash
@pytest.mark.parametrize("form", [{"form": "chain"}, {"form": "rerank", "width": 3, "nodes": 10}], ids=str)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in ZOO])
def test_equal_to_transformers(name: str, form: dict[str, Any], prompts: Any, tmp_path: Path) -> None:
    """The folder holds both, the model and its layers."""
    model = LAYOUTS[name].loaded(LAYOUTS[name].save(tmp_path))
    assert_equal_to_transformers(model, prompts, {"method": "mtp", "probe": False, **form})
