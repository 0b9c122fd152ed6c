"""Passes of every size are timed on one prompt; a row says what a method takes."""

import torch

from mmspec.bench.race import Run, Track
from mmspec.bench.rows import Footprint, row_of
from mmspec.bench.timing import pass_seconds
from mmspec.core.report import Report
from mmspec.testing.toys.markov import MarkovTarget


def test_passes_of_every_size_are_timed_on_one_prompt():
    seen = []

    class Watched(MarkovTarget):
        def verify(self, cache, draft, first=0):
            seen.append(draft.nodes)
            return super().verify(cache, draft, first)

    target = Watched(MarkovTarget.random(5, 0).table)
    seconds = pass_seconds(target, torch.tensor([[0, 1]]), (1, 3), repeats=2)
    assert set(seconds) == {1, 3} and all(s > 0 for s in seconds.values())
    assert seen == [1, 3] * 5


def test_a_row_says_what_a_method_takes():
    track = Track([[Run(1.0, [torch.zeros(1)], Report(rows=1, emitted=1))]])
    row = row_of(track, track, method="m", setting="s", memory=Footprint(120, 57))
    assert (row.peak_memory, row.laid_out) == (120, 57)
    bare = row_of(track, track, method="m", setting="s")
    assert bare.peak_memory is None and bare.laid_out is None
