"""Hosting: the modelling modules are left as they were, one way for any number of nodes, and what is refused."""

import copy
import logging
import sys
import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, MambaConfig, MambaForCausalLM

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.core.types import Draft
from mmspec.hosts.target import TransformersTarget
from mmspec.kits.text.language import without_kernel_notices
from mmspec.registry import hookimpl, installed
from mmspec_ssm.ops.ssd import Ssd
from mmspec_ssm.plugin import OPS
from mmspec_ssm.target import RecurrentTarget, declared
from tests.support.zoo import build


def functions(model: Any) -> dict[str, Any]:
    """The functions of a model's modelling module."""
    return {name: own for name, own in vars(sys.modules[type(model).__module__]).items() if callable(own)}


def prompts() -> dict[str, Tensor]:
    ids = torch.randint(3, 131, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(12) >= torch.tensor([0, 5])[:, None]
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


@pytest.fixture
def bamba() -> Any:
    return build("bamba")


def same(ours: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    return ours.keys() == before.keys() and all(ours[name] is own for name, own in before.items())


def test_the_modules_functions_are_the_original_objects(bamba: Any) -> None:
    """While a model is enabled, between passes; after disable; after a pass that failed."""
    before = functions(bamba)
    with mmspec.enable(bamba, "prompt-lookup"):
        assert same(functions(bamba), before), "between passes nothing stands there"
        bamba.generate(**prompts(), max_new_tokens=4, do_sample=False)
        assert same(functions(bamba), before)
    mmspec.disable(bamba)
    assert same(functions(bamba), before)
    target = RecurrentTarget(bamba)
    started = target.start(prompts(), 4, 1)
    with pytest.raises(RuntimeError):
        target.verify(started.cache, Draft.alone(torch.zeros(5, dtype=torch.int64)))  # five rows of two
    assert same(functions(bamba), before)


def test_another_thread_gets_transformers_own_functions(bamba: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a pass is under way, a stock model of the same module runs as ever beside it."""
    other, ids = copy.deepcopy(bamba), prompts()["input_ids"][:1]
    expected = other(input_ids=ids, use_cache=False).logits
    seen: list[Tensor] = []
    forward = Ssd.forward

    def beside(*args: Any, **kwargs: Any) -> Any:
        def run() -> None:
            with torch.no_grad():
                seen.append(other(input_ids=ids, use_cache=False).logits)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return forward(*args, **kwargs)

    target = RecurrentTarget(bamba)
    started = target.start(prompts(), 4, 1)
    monkeypatch.setattr(Ssd, "forward", beside)
    target.verify(started.cache, Draft.alone(torch.tensor([5, 6])))
    assert len(seen) == 3, "one for every recurrent layer"
    assert all(torch.equal(logits, expected) for logits in seen)


@pytest.mark.parametrize("name", ["bamba", "mamba", "qwen3_5_text"])
def test_the_ways_for_single_tokens_are_never_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round without a draft is a tree of one node: the same operations, no state of transformers' own."""
    model = build(name)
    target = RecurrentTarget(model)
    module = sys.modules[type(model).__module__]
    singles = [own for own in vars(module) if own.endswith("_update") or "recurrent_gated" in own]
    assert len(singles) >= 2
    started = target.start(prompts()["input_ids"][:1], 4, 1)  # which would notice that functions are gone
    for single in singles:
        monkeypatch.setattr(module, single, None)
    for unit in (5, 6, 7):
        target.verify(started.cache, Draft.alone(torch.tensor([unit])))
        target.commit(started.cache, torch.zeros(1, 0, dtype=torch.int64), torch.ones(1, dtype=torch.int64))


def test_states_are_float32_and_stay_where_they_are(bamba: Any) -> None:
    """Of a model in half precision, too; commits write in place."""
    with pytest.warns(UserWarning, match=r"kept in float32, also those of a model in torch\.bfloat16"):
        target = RecurrentTarget(copy.deepcopy(bamba).to(torch.bfloat16))
    started = target.start(prompts(), 4, 1)
    layers = started.cache.slots.recurrent
    places = {i: layer.states("recurrent")[0].data_ptr() for i, layer in layers.items()}
    assert len(places) == 3 and all(layer.states("recurrent")[0].dtype == torch.float32 for layer in layers.values())
    target.verify(started.cache, Draft.alone(torch.tensor([5, 6])))
    target.commit(started.cache, torch.zeros(2, 0, dtype=torch.int64), torch.ones(2, dtype=torch.int64))
    assert {i: layer.states("recurrent")[0].data_ptr() for i, layer in layers.items()} == places


def test_a_third_party_adds_an_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the operation the message names it and the hook; with a plugin that declares it the model is taken."""
    monkeypatch.delitem(OPS, "mamba2_chunk_scan")
    model = build("mamba2", seed=3)
    with pytest.raises(ValueError, match=r"not .*mamba2_chunk_scan"):
        RecurrentTarget(model)
    monkeypatch.delitem(OPS, "causal_conv1d_fn")
    with pytest.raises(ValueError, match=r"causal_conv1d_fn.*mamba2_chunk_scan.* hook mmspec_tree_ops"):
        RecurrentTarget(model)

    class Acme:
        @hookimpl
        def mmspec_components(self) -> list[Any]:
            return []

        @hookimpl
        def mmspec_tree_ops(self) -> Mapping[str, str]:
            return {
                "mamba2_chunk_scan": "mmspec_ssm.ops.ssd:Ssd",
                "causal_conv1d_fn": "mmspec_ssm.ops.conv:Convolution",
            }

    installed().register(Acme(), "acme")
    try:
        assert "tree" in RecurrentTarget(model).offers
        monkeypatch.setitem(OPS, "mamba2_chunk_scan", "mmspec_ssm.ops.ssd:Ssd")
        with pytest.raises(ValueError, match="'ssm' and 'acme' both declare 'mamba2_chunk_scan'"):
            declared()
    finally:
        installed().unregister("acme")


def test_the_self_check_sees_a_wrong_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation whose tree is right and whose commit forgets the last node."""

    class Forgetful(Ssd):
        def commit(self, state: Any, stash: Any, kept: Any, /) -> Tensor:
            return super().commit(state, stash, type(kept)(kept.nodes, (kept.count - 1).clamp(min=0)))

    model = build("mamba2", seed=4)
    ops = {**declared(), "mamba2_chunk_scan": Forgetful()}
    with pytest.raises(ValueError, match="cannot verify drafts exactly"):
        TransformersTarget(model, ops=ops)
    assert "tree" in TransformersTarget(model, ops=declared()).offers


def test_a_forward_that_a_kernels_hub_replaced_is_refused() -> None:
    model = build("mamba2")
    mixer = model.backbone.layers[1].mixer
    mixer.forward = lambda *args, **kwargs: None
    with pytest.raises(ValueError, match=r"forward of backbone\.layers\.1\.mixer was replaced, as use_kernels=True"):
        RecurrentTarget(model)


def test_a_whole_module_in_the_place_of_a_mixer_is_refused() -> None:
    class Fused(torch.nn.Module):
        def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            return hidden_states

    model = build("bamba", seed=5)
    model.model.layers[2].mamba = Fused()
    with pytest.raises(ValueError, match=r"recurrent layers \[2\] ran no operation that a plugin declares"):
        RecurrentTarget(model)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["in place", "its forward"])
def test_a_compiled_model(how: str) -> None:
    """Graphs hold the operations that stood in the module when they were made; other operations make other graphs."""
    plain = MambaForCausalLM(
        MambaConfig(vocab_size=31, hidden_size=16, state_size=4, num_hidden_layers=1, conv_kernel=3, eos_token_id=None)
    ).eval()
    model: Any = copy.deepcopy(plain)
    if how == "in place":
        model.compile(backend="eager")
    else:
        model.forward = torch.compile(model.forward, backend="eager")
    ids = torch.tensor([[5, 6, 7, 5, 6]])
    call = dict(max_new_tokens=6, do_sample=False, pad_token_id=0)
    expected = plain.generate(ids, **call)
    assert torch.equal(model.generate(ids, **call), expected)
    with mmspec.enable(model, "prompt-lookup", k=2):
        assert torch.equal(model.generate(ids, **call), expected)
    assert torch.equal(model.generate(ids, **call), expected)


def test_a_model_without_the_plugin_is_refused(bamba: Any) -> None:
    with pytest.raises(ValueError, match="no installed plugin can roll its state back"):
        TransformersTarget(bamba)


def test_a_cache_without_states_is_refused(bamba: Any) -> None:
    ids = prompts()["input_ids"][:1]
    for wrong in (DynamicCache(), DynamicCache(config=build("llama").config)):
        with (
            mmspec.enable(bamba, "prompt-lookup"),
            pytest.raises(ValueError, match=r"make it with DynamicCache\(config"),
        ):
            bamba.generate(ids, past_key_values=wrong, max_new_tokens=3)


def test_recurrent_targets_do_not_offer_to_forget(bamba: Any) -> None:
    target = RecurrentTarget(bamba)
    component = installed().target_for(bamba)
    assert component is not None and target.offers == component.offers == {"discrete", "tree", "text", "grow", "hidden"}
    started = target.start(prompts(), 4, 1)
    with pytest.raises(NotImplementedError, match="cannot go back"):
        target.truncate(started.cache, torch.tensor([3, 3]))


@pytest.mark.parametrize("name", ["bamba", "jamba", "mamba"])
@pytest.mark.compiled
def test_the_cache_that_a_call_leaves_goes_on(name: str) -> None:
    """Two turns over one cache, ours and then transformers' own: what one turn of transformers says."""
    model, ids = build(name), prompts()["input_ids"][:1]
    call = dict(do_sample=False, max_new_tokens=8)
    whole = stock(model, {"input_ids": ids}, 0, **dict(call, max_new_tokens=16))
    cache = DynamicCache(config=model.config)
    cached = "cache_params" if name == "mamba" else "past_key_values"
    with mmspec.enable(model, "prompt-lookup"):
        first = model.generate(ids, **call, **{cached: cache})
    assert torch.equal(first, whole.ids[:, : first.shape[1]])
    positions = {} if name == "mamba" else {"position_ids": torch.tensor([[first.shape[1] - 1]])}
    with torch.no_grad():
        after = model(input_ids=first[:, -1:], use_cache=True, **{cached: cache}, **positions).logits[0, -1]
        again = model(input_ids=first, use_cache=False).logits[0, -1]
    assert float((after - again).abs().max()) < 1e-3


@pytest.mark.parametrize("name", ["bamba", "jamba"])
@pytest.mark.compiled
def test_a_second_turn_over_an_earlier_cache(name: str) -> None:
    """The whole conversation and the first turn's cache: the text of a call that reads it all anew."""
    model, ids = build(name), prompts()["input_ids"][:1]
    call = dict(do_sample=False, max_new_tokens=8)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids[:, :7], past_key_values=cache, use_cache=True)
    with mmspec.enable(model, "prompt-lookup"):
        ours = model.generate(ids, past_key_values=cache, **call)
    assert_same(ours, stock(model, {"input_ids": ids}, 0, **call))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", ["bamba", "jamba"])
@pytest.mark.parametrize("cached, new", [(7, 1), (7, 5), (7, 7), (7, 12)])
def test_new_ids_behind_an_earlier_cache(name: str, cached: int, new: int) -> None:
    """The mask's length says that the ids are new ones: the text of a call that reads it all anew."""
    model = build(name)
    ids = torch.randint(3, 131, (2, cached + new), generator=torch.Generator().manual_seed(new))
    call = dict(do_sample=False, max_new_tokens=8)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids[:, :cached], past_key_values=cache, use_cache=True)
    whole = stock(model, {"input_ids": ids}, 0, **call)
    with mmspec.enable(model, "prompt-lookup"):
        ours = model.generate(ids[:, cached:], attention_mask=torch.ones_like(ids), past_key_values=cache, **call)
        assert torch.equal(ours[:, new:], whole.ids[:, cached + new :])
        with pytest.raises(ValueError, match="has nothing behind them"):
            model.generate(ids[:, :cached], past_key_values=cache, **call)


def test_new_ids_behind_states_alone() -> None:
    """A model without keys reads its ids behind the states, whose columns nobody counts."""
    model, ids = build("mamba"), prompts()["input_ids"][:1]
    call = dict(do_sample=False, max_new_tokens=8)
    whole = stock(model, {"input_ids": ids}, 0, **call)
    for cut in (3, 6, 11):
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(input_ids=ids[:, :cut], cache_params=cache, use_cache=True)
        with mmspec.enable(model, "prompt-lookup"):
            ours = model.generate(ids[:, cut:], cache_params=cache, **call)
        assert torch.equal(ours[:, ids.shape[1] - cut :], whole.ids[:, ids.shape[1] :])
        with mmspec.enable(model, "plain"), pytest.raises(ValueError, match="turn of 1 prompts, and this call has 2"):
            model.generate(ids.repeat(2, 1), cache_params=cache, **call)


def test_transformers_goes_on_from_zero_and_we_do_not() -> None:
    """The Mamba-1 family over several tokens at once: stock forgets its state, silently; ours reads the text."""
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=97, hidden_size=64, num_hidden_layers=3, state_size=8, conv_kernel=4)
    model = MambaForCausalLM(config).eval()
    ids = torch.randint(3, 97, (1, 12))
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits[0, 8:]
        cache = DynamicCache(config=config)
        model(ids[:, :8], cache_params=cache, use_cache=True)
        stocks = model(ids[:, 8:], cache_params=cache, use_cache=True).logits[0]
    fault = (stocks - whole).abs().amax(-1)
    assert float(fault[1:].max()) > 1e-3, "transformers was mended: say so, and drop the warning from the README"
    target = RecurrentTarget(model)
    started = target.start(ids[:, :8], 8, 4)
    draft = Draft.chain(ids[:, 9:]).rooted(ids[:, 8], torch.tensor([9]))
    ours = target.verify(started.cache, draft).logits
    assert ours is not None and float((ours[0] - whole).abs().max()) < 1e-5


def test_static_caches_change_nothing(bamba: Any) -> None:
    """`cache_implementation="static"` has no effect: drafts are verified on our own cache."""
    ids = prompts()["input_ids"][:1]
    call = dict(do_sample=False, max_new_tokens=8)
    expected = stock(bamba, {"input_ids": ids}, 0, **call)
    with mmspec.enable(bamba, "prompt-lookup"):
        assert_same(bamba.generate(ids, cache_implementation="static", **call), expected)


def test_no_advice_on_kernels_that_ours_stand_for(caplog, monkeypatch):
    """transformers says once what to install; in our passes it is not called, and other messages of it stay."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    caplog.set_level(logging.WARNING, "transformers.integrations.hub_kernels")
    logger = logging.getLogger("transformers.integrations.hub_kernels")
    advice = "`f` is falling back to its reference PyTorch implementation because `g` is not installed."
    with without_kernel_notices():
        logger.warning(advice)
        logger.warning("something else")
    logger.warning(advice)
    assert list(dict.fromkeys(record.getMessage() for record in caplog.records)) == ["something else", advice]
