"""Recipe `mar`: its classes, masks and loss, and a run that resumes."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mmspec_continuous.models.mar import MAR
from mmspec_continuous.models.mar_drafts import DraftedOptions
from tools.bench.trained.pictures import times_as_fast
from tools.train.pictures import mar
from tools.train.pictures.data import Pictures
from tools.train.pictures.mar import CLASSES, STEPS, MARRecipe, classes_of, masked_share, step_loss, train_mar

TINY = MARRecipe(dim=16, depth=1, num_heads=2, head_width=16, head_depth=1, steps=3, batch=4, repeats=2)


def test_classes_are_words_of_captions() -> None:
    captions = ["Smiling face", "hand of a man", "surface", "red train"]
    names = [*CLASSES, "none"]
    assert [names[number] for number in classes_of(captions)] == ["face", "hand", "none", "train"]


def test_at_least_so_many_tokens_are_masked_and_mostly_nearly_all() -> None:
    g = torch.Generator().manual_seed(0)
    shares = torch.tensor([masked_share(MARRecipe(), g) for _ in range(4000)])
    assert shares.min() >= 0.7 and shares.max() <= 1
    # Of a normal around 1 of deviation 0.25, cut off at 0.7, whose erf has distances over 0.25 √2
    expected = math.erf(0.15 / 0.25 / 2**0.5) / math.erf(0.3 / 0.25 / 2**0.5)
    assert abs(float((shares > 0.85).float().mean()) - expected) < 0.03


def test_who_knows_the_noise_and_the_variance_has_no_loss() -> None:
    """The true variance of a step, which the head names by a share of 0, that is -1."""
    clean, noise = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(0)).unbind()

    class Knows(nn.Module):
        share = -1.0

        def forward(self, x: Tensor, time: int, condition: Tensor) -> Tensor:
            return torch.cat([noise, torch.full_like(noise, self.share)], -1)

    model = MAR(4, 4, dim=16, depth=1, num_heads=2, hidden=16, head_width=16, head_depth=1)
    model.diffloss.net = Knows()
    for step in (0, 1, 500, 999):
        assert abs(float(step_loss(model, step, clean, noise, clean))) < 1e-5
    Knows.share = 1.0
    lost = float(step_loss(model, 3, clean, noise, clean))
    wide, least = STEPS.most[3], STEPS.least[3]
    assert abs(lost - (wide - least + math.exp(least - wide) - 1) / 2 / math.log(2)) < 1e-4


def test_a_run_resumes(tmp_path: Path) -> None:
    images = torch.randint(256, (21, 3, 64, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    pictures, said = Pictures(images, ["face", "red train", "sea"] * 7), list[str]()
    first = train_mar(pictures, TINY, tmp_path, said.append)
    again = train_mar(pictures, TINY, tmp_path, said.append)
    assert any("resuming at step 3" in line for line in said)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    fresh = mar.untrained(TINY, 8, 8)
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), fresh.parameters(), strict=True))


def test_what_could_be_had() -> None:
    """Passes of the released loop with 64 sets: 10 first ones, and 7 that judge 54 drafted sets."""
    assert times_as_fast(64, DraftedOptions(), 0.0) == pytest.approx(64 / 17)
    assert times_as_fast(64, DraftedOptions(), 0.2206) == pytest.approx(64 / (17 + 0.2206 * 54))
    assert times_as_fast(8, DraftedOptions(prefill=1.0), 0.5) == 1
