"""transformers' own use of multi-token layers, `generate(use_mtp=True)`: one row, a chain, one unit per layer.

Where both run, greedy drafts of every round are the same. Ours go on beyond the last layer, and in trees and batches.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.generation.candidate_generator import MTPCandidateGenerator

import mmspec
from mmspec_text.drafters.mtp import Mtp, MtpOptions
from tests.support.mtp_layouts import LAYOUTS


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
