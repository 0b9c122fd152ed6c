"""Conditions joined in a batch: every field, row by row, the guidance scale of continuous targets included."""

from dataclasses import replace

import pytest
import torch

from mmspec.kits.pictures.conditions import Condition, repeated
from mmspec_continuous.targets.continuous import ContinuousTarget, Guided
from tests.support.examples.continuous import captions, tiny
from tools.bench.pictures.tasks import joined_conditions as joined


def test_repeated_keeps_the_scale():
    two = repeated(captions([1, 2], 1.5), 3)
    assert type(two) is Guided and two.scale == 1.5 and len(two.given) == len(two.mask) == 6
    assert torch.equal(two.given[3], captions([2]).given[0])
    each = repeated(replace(captions([1, 2]), scale=torch.tensor([1.5, 2.0])), 2)
    assert each.scale.tolist() == [1.5, 1.5, 2.0, 2.0]


def test_joined_keeps_the_scale_and_makes_different_ones_one_a_row():
    one, other = captions([1], 1.5), captions([2, 3], 2.5)
    assert joined([one, one]).scale == 1.5
    both = joined([one, other])
    assert type(both) is Guided and both.scale.tolist() == [1.5, 2.5, 2.5] and len(both.given) == 3
    assert torch.equal(both.mask, torch.cat([one.mask, other.mask]))
    mixed = joined([replace(one, scale=torch.tensor([4.0])), other])
    assert mixed.scale.tolist() == [4.0, 2.5, 2.5]


def test_a_joined_batch_has_the_distributions_of_its_parts():
    target = ContinuousTarget(tiny())
    parts = [captions([1], 1.5), captions([2], 3.0)]
    together = target.start(joined(parts), 3, 1).output.distribution
    for row, part in enumerate(parts):
        alone = target.start(part, 3, 1).output.distribution
        x = torch.ones(1, 2)
        ours, theirs = (
            distribution.head.mean(x, 0, distribution.condition[at, 0][None])
            for distribution, at in ((together, row), (alone, 0))
        )
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_what_only_some_have_is_refused():
    plain = Condition(torch.zeros(1, 2, 3))
    for other, what in (
        (replace(plain, mask=torch.ones(1, 2).bool()), "mask"),
        (replace(plain, null=torch.zeros(1, 2, 3)), "null"),
        (replace(plain, guided=False), "guided"),
    ):
        with pytest.raises(ValueError, match=f"a batch has {what} for all of its rows or for none"):
            joined([plain, other])
