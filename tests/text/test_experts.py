"""Products of expert layers: those of stock decoding on every device, and under one shape those that keep it."""

import warnings
from typing import Any

import pytest
import torch

import mmspec
from mmspec.hosts import experts
from mmspec.hosts.experts import BATCHED, GROUPED, Experts
from tests.support.zoo import build

IDS = torch.tensor([[5, 6, 7, 8, 5, 6, 7]])


@pytest.fixture
def mixtral() -> Any:
    return build("mixtral")


@pytest.mark.parametrize(
    ("device", "fixed", "units", "uses"),
    [
        ("cpu", False, 4, GROUPED),
        ("cpu", True, 4, BATCHED),
        ("cuda", False, 4, BATCHED),
        ("cuda", True, 4, BATCHED),
        ("cuda", True, 10**6, GROUPED),
    ],
)
def test_what_a_pass_uses(mixtral: Any, device: str, fixed: bool, units: int, uses: str) -> None:
    """On the CPU stock decodes with grouped products, elsewhere with batched ones; and copies have to fit."""
    with pytest.raises(KeyError), Experts.of(mixtral).decoding(units, device, fixed):
        assert mixtral.get_experts_implementation()[""] == uses
        raise KeyError
    assert mixtral.get_experts_implementation()[""] == GROUPED, "it is given back"


def test_a_users_choice_stays(mixtral: Any) -> None:
    mixtral.set_experts_implementation("eager")
    with Experts.of(mixtral).decoding(4, "cuda", True):
        assert mixtral.get_experts_implementation()[""] == "eager"


def test_the_weights_of_a_unit() -> None:
    """Two of four experts: gate, up and down projections of a hidden size of 64 and a width of 96, in float32."""
    config = build("mixtral").config
    size = 2 * 3 * config.hidden_size * config.intermediate_size * 4
    assert Experts.of(build("mixtral")).unit_bytes == size
    assert Experts.of(build("llama")) == Experts((), 0) and not Experts((), 0).batched(1)


@pytest.mark.parametrize("shape", ["any", "one"])
def test_only_passes_over_drafts_change(mixtral: Any, shape: Any) -> None:
    used: list[str] = []
    layer = mixtral.model.layers[0].mlp.experts
    layer.register_forward_pre_hook(lambda *_: used.append(layer.config._experts_implementation))
    with mmspec.enable(mixtral, "prompt-lookup", k=2, shape=shape):
        used.clear()
        mixtral.generate(IDS, max_new_tokens=4, do_sample=False)
    assert used[0] == GROUPED and set(used[1:]) == {BATCHED if shape == "one" else GROUPED}


@pytest.mark.parametrize("name", [pytest.param("mixtral", marks=pytest.mark.slow), "gpt_oss"])
def test_one_shape_holds_to_the_bit(name: str) -> None:
    """Bfloat16, and the same numbers whatever was drafted."""
    model = build(name).bfloat16()
    call = dict(max_new_tokens=24, do_sample=True, top_k=0, return_dict_in_generate=True, output_logits=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(3):
            outputs = []
            for method, k in (("plain", None), ("suffix", 4), ("prompt-lookup", 3)):
                with mmspec.enable(model, method, shape=5, k=k):
                    torch.manual_seed(seed)
                    outputs.append(model.generate(IDS, **call))
            for other in outputs[1:]:
                assert torch.equal(outputs[0].sequences, other.sequences)
                assert torch.equal(torch.stack(outputs[0].logits), torch.stack(other.logits))


@pytest.mark.parametrize("why", ["no choice of products", "no room for copies"])
def test_where_it_cannot_hold_a_call_says_so(why: str, mixtral: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("dbrx") if why == "no choice of products" else mixtral
    monkeypatch.setattr(experts, "MOST", 10 if model is mixtral else experts.MOST)
    with mmspec.enable(model, "prompt-lookup", k=2, shape="one"), pytest.warns(UserWarning, match="expert layers"):
        model.generate(IDS, max_new_tokens=4, do_sample=False)


def test_models_with_a_loop_over_experts_of_their_own() -> None:
    """Such a pass has no fixed shape; layers whose products can be chosen have none, whatever their own code does."""
    found = {name: experts.one_by_one(build(name)) for name in ("longcat_flash", "dbrx", "mixtral", "llama")}
    assert found == {"longcat_flash": "LongcatFlashExperts", "dbrx": "DbrxExperts", "mixtral": None, "llama": None}
