"""The three ways to run a call, on a tiny model in this process."""

import copy
import dataclasses
import gc
import io
import sys
import weakref
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from mmspec.compare.recording import RecordedCall, save
from mmspec.compare.runner import after_import
from mmspec.compare.ways import Judging, Speculating, named

GENERATE = LlamaForCausalLM.generate
PROMPT = torch.tensor([[3, 4, 5], [6, 7, 8]])


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """Tokens n and n + 6 always tie."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=12, eos_token_id=None, pad_token_id=0)).eval()
    model.lm_head.weight.data[6:] = model.lm_head.weight.data[:6]
    return model


def call(number: int = 1) -> RecordedCall:
    return RecordedCall(number, "LlamaForCausalLM", True, 3, "")


@pytest.mark.parametrize("sample", [False, True])
def test_judging_tells_near_ties_from_wrong_tokens(model, tmp_path: Path, sample: bool) -> None:
    def judged(ids: torch.Tensor) -> RecordedCall:
        save(tmp_path, [], {1: ids})
        torch.manual_seed(5)
        one = call()
        answer = Judging(tmp_path, [1]).run(GENERATE, model, given, one)
        assert torch.equal(answer, right)
        return one

    given = {"inputs": PROMPT, "max_new_tokens": 40, "do_sample": sample}
    torch.manual_seed(5)
    right = GENERATE(model, **given)
    alike = judged(right)
    assert alike.judged and not alike.wrong and not alike.near_ties
    wrong = right.clone()
    wrong[1, -1] = (right[1, -1] + 1) % 6
    assert "row 1, new token 39" in judged(wrong).wrong
    if not sample:
        tie = right.clone()
        tie[0, -1] = (right[0, -1] + 6) % 12
        assert judged(tie).near_ties == [(0, 39, 0.0)]


def test_judging_hands_the_script_what_it_asked_for(model, tmp_path: Path) -> None:
    given = {"inputs": PROMPT, "max_new_tokens": 2, "do_sample": False, "return_dict_in_generate": True}
    save(tmp_path, [], {1: GENERATE(model, **given).sequences})
    for more in ({}, {"output_scores": True}):
        expected = GENERATE(model, **given, **more)
        answer = Judging(tmp_path, [1]).run(GENERATE, model, {**given, **more}, call())
        assert type(answer) is type(expected) and answer.keys() == expected.keys()
    unjudged = call(2)
    assert Judging(tmp_path, [1]).run(GENERATE, model, given, unjudged).scores is None and not unjudged.judged


def test_speculating_leaves_the_model_and_what_it_refuses_alone(model) -> None:
    way = Speculating({"method": "prompt-lookup", "k": 2}, [])
    way.prepare(model)
    assert "generate" not in model.__dict__
    one, two = call(), call(2)
    given = {"inputs": PROMPT, "max_new_tokens": 9, "do_sample": False}
    assert torch.equal(way.run(GENERATE, model, given, one), GENERATE(model, **given))
    assert one.method == "prompt-lookup" and not one.left_alone and one.emitted == 16 and 0 < one.passes <= 16
    torch.manual_seed(1)
    expected = GENERATE(model, **given, num_beams=2)
    torch.manual_seed(1)
    assert torch.equal(way.run(GENERATE, model, {**given, "num_beams": 2}, two), expected)
    assert two.left_alone.startswith("num_beams=2") and two.documented and not two.method
    right = call(3)
    way.run(GENERATE, model, {**given, "attention_mask": torch.tensor([[1, 1, 0]] * 2)}, right)
    assert "padding on the right" in right.left_alone and not right.documented


def test_a_model_that_cannot_be_enabled_is_left_alone_with_the_reason(model) -> None:
    class Own(LlamaForCausalLM):
        def generate(self, **kwargs):
            return super().generate(**kwargs)

    sizes = dict(d_model=8, d_ff=8, d_kv=4, num_heads=2, num_layers=1, decoder_start_token_id=0, vocab_size=12)
    for live, how, reason, documented in (
        (Own(model.config), {"method": "plain"}, "Own has a generate of its own", True),
        (model, {"method": "prompt-lookup", "ngrams": 3}, "no option is called 'ngrams'", False),
        (T5ForConditionalGeneration(T5Config(**sizes)), {"method": "plain"}, "is an encoder–decoder", True),
    ):
        way, one = Speculating(how, []), call()
        way.prepare(live)
        way.run(GENERATE, live, {"inputs": PROMPT, "max_new_tokens": 2, "do_sample": False}, one)
        assert reason in one.left_alone and one.documented == documented


def test_arguments_by_name(model) -> None:
    assert named((PROMPT,), {"max_new_tokens": 2}) == {"inputs": PROMPT, "max_new_tokens": 2}


def test_the_hook_waits_for_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (tmp_path / "hooked_later.py").write_text("VALUE = 1")
    seen = []
    after_import({"hooked_later": lambda m: seen.append(m.VALUE), "dataclasses": lambda m: seen.append(m.__name__)})
    assert seen == [dataclasses.__name__]
    import hooked_later

    assert seen[1:] == [1] and hooked_later.__spec__.loader.get_source("hooked_later") == "VALUE = 1"
    del sys.modules["hooked_later"]


def test_a_model_that_the_script_lets_go_goes(model) -> None:
    """And what is kept with it is in no copy and in no file of it."""
    way, own = Speculating({"method": "prompt-lookup"}, []), copy.deepcopy(model)
    way.prepare(own)
    assert own in way._handles and model not in way._handles
    other, file = copy.deepcopy(own), io.BytesIO()
    torch.save(own, file)
    assert other not in way._handles
    left = weakref.ref(own)
    del own
    gc.collect()
    assert left() is None


def test_plainly_is_plain_decoding_of_the_width_of_the_method(model) -> None:
    """In bfloat16, where passes of other widths would write another text."""
    half, given = copy.deepcopy(model).to(torch.bfloat16), {"inputs": PROMPT, "max_new_tokens": 24, "do_sample": True}
    how = {"method": "prompt-lookup", "k": 4, "shape": "one"}
    found = []
    for plainly in (True, False):
        way, one = Speculating(how, [], plainly), call()
        way.prepare(half)
        torch.manual_seed(3)
        found.append((way.run(GENERATE, half, dict(given), one), one.method, one.width))
        assert not one.left_alone
    assert [rest for _, *rest in found] == [["plain", 5], ["prompt-lookup", 5]]
    assert torch.equal(found[0][0], found[1][0])
    way = Speculating({**how, "rule": "rejection", "drafter": None}, [], plainly=True)
    way.prepare(half)
    refused = call()
    way.run(GENERATE, half, dict(given), refused)
    assert "the output depends on the drafts" in refused.left_alone or "needs" in refused.left_alone
    assert way._handles._name != Speculating(how, [])._handles._name, "a model keeps the handles of each"
