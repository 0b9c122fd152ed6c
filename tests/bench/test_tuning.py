"""Peers get their best setting; the clock is the test's."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import CompileConfig, GenerationConfig

from mmspec.bench.generate import CompiledGenerate, GenerateCall, PeerGenerate
from mmspec.bench.race import REPEATS, Run, Track, race, tune, tuning_calls
from mmspec.bench.rows import peer_of
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
    assert len(ticks) == tuning_calls(3, 1) == 3 * (1 + REPEATS)


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


def test_a_peer_that_was_not_compiled_is_not_called_compiled() -> None:
    """transformers runs eagerly, with a warning alone, where it cannot compile."""
    model = SimpleNamespace()

    def call(inputs: Any, **more: Any) -> tuple[float, list[torch.Tensor]]:
        assert more["cache_implementation"] == "static" and more["compile_config"] is config
        return 1.0, [torch.zeros(2)]

    call.model = model  # type: ignore[attr-defined]
    config = CompileConfig()
    contestant = CompiledGenerate(call, config)  # type: ignore[arg-type]
    tracks = race({"compiled": contestant}, [{}], 1, optional={"compiled"})
    peer = peer_of(tracks["compiled"], "code, greedy")
    assert not peer.repeats_s and "transformers does not compile SimpleNamespace" in peer.note
    model._compiled_call = call
    assert contestant({}).emitted == 2


@pytest.mark.slow  # tracing every architecture takes a while
@pytest.mark.parametrize("kind", ["Mamba", "Mamba2", "Bamba"])
def test_transformers_compiles_recurrent_models_on_this_machine(kind: str) -> None:
    sizes = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2)
    own: dict[str, dict[str, Any]] = {
        "Mamba": dict(state_size=8),
        "Mamba2": dict(num_heads=4, head_dim=16, state_size=8, n_groups=1, chunk_size=16),
        "Bamba": dict(intermediate_size=32, attn_layer_indices=[1], num_attention_heads=2, num_key_value_heads=1)
        | dict(mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8),
    }
    config = getattr(transformers, f"{kind}Config")(**sizes, **own[kind])
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    traced = CompileConfig(backend="eager", mode=None)
    traced._compile_all_devices = True
    task = {"input_ids": torch.arange(1, 13)[None], "attention_mask": torch.ones(1, 12, dtype=torch.int64)}
    call = GenerateCall(model, 6, 0.0, 0)
    eager, compiled = PeerGenerate(call)(task), CompiledGenerate(call, traced)(task)
    assert torch.equal(eager.units[0], compiled.units[0])
