"""Peers get their best setting; the clock is the test's."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from mmspec.bench.generate import GenerateCall, PeerGenerate
from mmspec.bench.race import Run, Track
from mmspec.bench.rows import peer_of
from mmspec.bench.tuning import REPEATS, calls_of, tune
from mmspec.kits.text.bench.contestants import GRIDS, PEERS, peers


def timed(*seconds: float) -> Callable[[Any], Run]:
    """A contestant whose calls take so long, one after the other."""
    left = list(seconds)
    return lambda task: Run(left.pop(0), [torch.zeros(1)])


def test_the_fastest_setting_is_chosen_and_all_that_were_tried_are_kept() -> None:
    ticks: list[int] = []
    ways = {"10": timed(9.0, 1.36, 1.40), "7": timed(9.0, 1.21, 1.90), "5": timed(0.1, 1.30, 1.29)}
    found = tune(ways, ["a prompt"], lambda: ticks.append(1))
    assert (found.chosen, found.way) == ("7", ways["7"]), "the first call is a warm-up, and what disturbs only adds"
    assert found.tried == {"10": 1.36, "7": 1.21, "5": 1.29}
    assert len(ticks) == calls_of(3, 1) == 3 * (1 + REPEATS)


def test_settings_that_fail_are_out_and_where_all_do_the_race_says_why() -> None:
    def fails(task: Any) -> Run:
        raise ValueError("not supported with stateful models")

    assert tune({"a": fails, "b": timed(1, 1, 1)}, [0]).chosen == "b"
    none = tune({"a": fails, "b": fails}, [0])
    assert none.tried == {} and none.way is fails


def test_one_way_is_not_tried() -> None:
    only = timed()
    found = tune({"": only}, [0])
    assert (found.way, found.chosen, found.tried) == (only, "", {})


def test_the_choice_is_written() -> None:
    run = Run(1.0, [torch.zeros(3)])
    tuned = tune({"10": timed(1, 2, 2), "7": timed(1, 1, 1)}, [0])
    peer = peer_of(Track([[run]]), "code, greedy", "a note", tuned=tuned)
    assert (peer.chosen, peer.tried, peer.note, peer.units) == ("7", {"10": 2, "7": 1}, "a note", 3)
    assert not peer.ours and peer_of(Track([[run]]), "s", ours=True).ours


def test_prompt_lookup_and_the_assistant_have_grids_and_seven_tokens_are_in() -> None:
    made = peers(GenerateCall(None, 8, 0.0, 0), None)
    assert tuple(made) == PEERS
    assert {name: len(peer.ways) for name, peer in made.items() if len(peer.ways) > 1} == {
        name: len(grid) for name, grid in GRIDS.items()
    }
    assert {"prompt_lookup_num_tokens=7", "prompt_lookup_num_tokens=10"} <= set(GRIDS["generate, prompt lookup"])


def test_an_assistants_settings_last_for_the_call() -> None:
    own = GenerationConfig(num_assistant_tokens=20)
    assistant, seen = SimpleNamespace(generation_config=own), []

    def call(inputs: Any, **more: Any) -> tuple[float, list[torch.Tensor]]:
        seen.append(more["assistant_model"].generation_config.num_assistant_tokens)
        if len(seen) > 1:
            raise RuntimeError("stopped")
        return 1.0, []

    contestant = PeerGenerate(call, {"assistant_model": assistant}, {"num_assistant_tokens": 3})  # type: ignore[arg-type]
    contestant({})
    with pytest.raises(RuntimeError, match="stopped"):
        contestant({})
    assert seen == [3, 3] and assistant.generation_config is own and own.num_assistant_tokens == 20
