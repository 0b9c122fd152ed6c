"""A head's attention over the latest tokens and the first ones, for texts longer than those that it was trained on."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from tests.heads.conftest import GREEDY, checkpoint, written_out
from tests.support.cached_heads import teacher_forced


def test_window_and_sinks_are_those_of_the_forward_written_out(decoder: Callable) -> None:
    stored = checkpoint("eagle-3")
    network = decoder("eagle-3", form="chain", window=3, sinks=2).drafter.network
    network.join(llama().model.embed_tokens, llama().lm_head, torch.device("cpu"), torch.float32)
    reference = written_out(stored)
    reference.f = replace(reference.f, window=3, sinks=2)
    g = torch.Generator().manual_seed(3)
    features, units = torch.randn(1, 9, 48, generator=g), torch.randint(7, (1, 9), generator=g)
    with torch.no_grad():
        logits = teacher_forced(network, features, units)[0]
    states = reference.fed_back([reference.state(feature) for feature in features[0]], units[0].tolist())
    assert torch.allclose(logits.double(), torch.stack([reference.logits(u) for u in states]), atol=1e-4)
    network.sinks = 0
    with torch.no_grad():
        assert not torch.allclose(teacher_forced(network, features, units)[0], logits, atol=1e-2)


def test_a_window_changes_no_token(decoder: Callable, rows: dict[str, Tensor]) -> None:
    plain = Decoder(TransformersTarget(llama()), None, Match(), k=0).generate(rows, 40, seed=5, warp=GREEDY)
    ours = decoder("eagle-3", form="rerank", width=2, nodes=6, window=4, sinks=1)
    output = ours.generate(rows, 40, seed=5, warp=GREEDY)
    assert output.report.accepted > 0 and all(torch.equal(a, b) for a, b in zip(output.units, plain.units, strict=True))


def test_sinks_without_a_window_are_refused() -> None:
    with pytest.raises(ValueError, match="give window="):
        Eagle(EagleOptions(model=checkpoint("eagle-3"), sinks=2))


def test_where_lengths_are_not_read_a_prompt_is_counted_once(decoder: Callable) -> None:
    """On CUDA attention covers what may be in the cache; a prompt that was counted twice would double it."""
    ours = decoder("eagle-1", form="chain")
    state = ours.start({"input_ids": torch.arange(100).remainder(5)[None] + 1}, 20, seed=0, warp=GREEDY)
    slots = state.memory.cache.slots
    slots.free_to_read = False
    seen = []
    while not state.finished:
        ours.advance(state)
        seen.append(slots.visible)
    assert set(seen) == {128}, "100 units of the prompt, 20 new ones, and a draft, in blocks of 64"
