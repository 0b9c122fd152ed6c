"""`enable`, `disable`, streamers, reports, plain-Python drafters, drafters that fail."""

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.api import Enabled, build
from mmspec.compare.equality import assert_same

SAMPLED = dict(do_sample=True, top_k=0, max_new_tokens=20)


def everything(model: Any) -> dict[str, Any]:
    """Copies of everything that `enable` could have changed."""
    return {
        "attributes": {name: id(value) for name, value in model.__dict__.items()},
        "generate": getattr(model.generate, "__func__", None),
        "class": type(model),
        "config": model.config.to_dict(),
        "attention": model.config._attn_implementation,
        "generation_config": model.generation_config.to_dict(),
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        "training": [module.training for module in model.modules()],
        "forward": [id(module.__dict__.get("forward")) for module in model.modules()],
        "members": [sorted(module.__dict__) for module in model.modules()],
        "memory": [value.data_ptr() for value in model.state_dict().values()],
    }


def weights(model: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def unchanged(model: Any, before: dict[str, Any], held: dict[str, Tensor]) -> None:
    assert everything(model) == before
    assert list(model.state_dict()) == list(held)
    assert all(torch.equal(value, held[name]) for name, value in model.state_dict().items())


def test_disable_leaves_the_object_as_it_was(target: Any, good: Any, prompts: Callable) -> None:
    before, held = everything(target), weights(target)
    drafter_before = everything(good)
    spec = mmspec.enable(target, "draft-model", drafter=good)
    assert everything(target) != before, "enable did nothing that this test could see"
    target.generate(**prompts(3), **SAMPLED, return_dict_in_generate=True, output_scores=True)
    target.generate(**prompts(3), **SAMPLED, stopping_criteria=[lambda ids, scores, **more: ids[:, -1] % 5 == 0])
    with pytest.raises(ValueError, match="beam"):
        target.generate(**prompts(3), num_beams=2)
    spec.disable()
    unchanged(target, before, held)
    unchanged(good, drafter_before, weights(good))
    spec.disable()  # a second call has no effect
    mmspec.disable(target)
    unchanged(target, before, held)


def test_the_function_disables_too(target: Any) -> None:
    before = everything(target)
    mmspec.enable(target, "plain")
    mmspec.disable(target)
    assert everything(target) == before


def test_an_exception_leaves_the_block_clean(target: Any, prompts: Callable) -> None:
    before, held = everything(target), weights(target)
    with pytest.raises(RuntimeError, match="mine"), mmspec.enable(target, "prompt-lookup"):
        target.generate(**prompts(1), **SAMPLED)
        raise RuntimeError("mine")
    unchanged(target, before, held)
    with pytest.raises(KeyboardInterrupt), mmspec.enable(target, "prompt-lookup"):
        target.generate(**prompts(1), **SAMPLED, streamer=Streamer(stop_after=3))
    unchanged(target, before, held)


def test_enabling_again_takes_the_place_of_a_handle_that_nobody_holds(target: Any, prompts: Callable) -> None:
    """A notebook's cell that is run again; the older handle is off, and its `disable` changes nothing."""
    before, held = everything(target), weights(target)
    first = mmspec.enable(target, "plain")
    second = mmspec.enable(target, "prompt-lookup")
    assert "disabled" in repr(first) and "disabled" not in repr(second)
    first.disable()
    target.generate(**prompts(1), **SAMPLED)
    assert first.report is None and second.report is not None and second.report.method == "prompt-lookup"
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None
    mmspec.disable(target)
    unchanged(target, before, held)


def test_a_handle_that_is_in_use_keeps_its_place(target: Any, prompts: Callable) -> None:
    """In a block, and while a call runs: here the streamer asks, as another thread would."""

    class Asking(Streamer):
        def put(self, value: Tensor) -> None:
            with pytest.raises(ValueError, match=r"enabled already, and a call of it is running; mmspec.disable\("):
                mmspec.enable(target, "prompt-lookup")

    with mmspec.enable(target, "plain") as spec:
        with pytest.raises(ValueError, match="and its `with` block is still open"):
            mmspec.enable(target, "prompt-lookup")
        target.generate(**prompts(1), **SAMPLED)
        assert spec.report is not None and spec.report.method == "plain"
    spec = mmspec.enable(target, "plain")
    target.generate(**prompts(1), **SAMPLED, streamer=Asking())
    with mmspec.enable(target, "prompt-lookup"):
        pass
    assert "generate" not in vars(target)


def test_a_generate_that_somebody_else_replaced_stays(target: Any) -> None:
    target.generate = replaced = lambda *args: None
    try:
        with pytest.raises(ValueError, match="replaced already, and not by mmspec"):
            mmspec.enable(target, "plain")
        assert target.generate is replaced
    finally:
        del target.generate


def test_the_handle_says_what_was_chosen_and_why(target: Any) -> None:
    decoder = build.decoder_for(target, "plain")
    decoder.why = "because the test says so"
    assert Enabled(target, decoder, None, None).why == "because the test says so"
    with mmspec.enable(target) as spec:
        assert spec.method == "suffix" and "no draft model" in spec.why
    with mmspec.enable(target, "prompt-lookup") as spec:
        assert spec.method == "prompt-lookup" and spec.why == ""


def test_a_refused_enable_leaves_nothing_behind(target: Any) -> None:
    before = everything(target)
    with pytest.raises(ValueError, match="no method"):
        mmspec.enable(target, "promt-lookup")
    assert everything(target) == before


def test_the_report_counts_what_the_call_did(target: Any, good: Any, prompts: Callable) -> None:
    with mmspec.enable(target, "draft-model", drafter=good, k=4) as spec:
        assert spec.report is None and spec.method == "draft-model"
        ids = target.generate(**prompts(3), **SAMPLED)
        report = spec.report
        target.generate(**prompts(1), **{**SAMPLED, "max_new_tokens": 1})
        assert spec.report is not report and spec.report.emitted == 1 and spec.report.rounds == 0
    assert (report.emitted, report.rows) == (ids[:, 14:].numel(), 3) == (60, 3)
    # The tokens of a row: the prefill's, one of the target per round, and the accepted ones.
    assert report.emitted == 3 + report.row_rounds + report.accepted
    assert report.rounds <= report.row_rounds <= 3 * report.rounds < 57
    assert 0 < report.accepted < report.drafted <= 4 * report.row_rounds
    assert report.acceptance_length == pytest.approx(57 / report.row_rounds)
    assert report.acceptance_rate == pytest.approx(report.accepted / report.drafted)
    assert report.seconds["prefill"] > 0 and report.seconds["draft"] > 0 and report.seconds["verify"] > 0
    assert "draft-model (invariant): 60 units" in str(report)


class Streamer:
    """A streamer that records what it is given."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.got: list[Tensor] = []
        self.ended = 0
        self.stop_after = stop_after

    def put(self, value: Tensor) -> None:
        assert not self.ended
        self.got.append(value)
        if self.stop_after is not None and len(self.got) > self.stop_after:
            raise KeyboardInterrupt

    def end(self) -> None:
        self.ended += 1


@pytest.mark.compiled
def test_a_streamer_gets_the_prompt_then_every_token_in_order(target: Any, prompts: Callable, spec: dict) -> None:
    inputs = prompts(1)
    for call in (SAMPLED, dict(do_sample=False, max_new_tokens=20, eos_token_id=list(range(3, 20)))):
        plain, fast, ours = Streamer(), Streamer(), Streamer()
        torch.manual_seed(1)
        expected = target.generate(**inputs, **call, streamer=plain)
        with mmspec.enable(target, **spec):
            torch.manual_seed(1)
            assert torch.equal(target.generate(**inputs, **call, streamer=fast), expected)
        torch.manual_seed(1)
        target.generate(**inputs, **call, custom_generate=mmspec.custom_generate(**spec, streamer=ours))
        for streamer in (fast, ours):
            assert [(v.shape, v.dtype) for v in streamer.got] == [(v.shape, v.dtype) for v in plain.got]
            assert all(map(torch.equal, streamer.got, plain.got)) and streamer.ended == plain.ended == 1


def test_a_streamer_of_a_batch_is_refused(target: Any, prompts: Callable) -> None:
    streamer = Streamer()
    with mmspec.enable(target, "plain"), pytest.raises(ValueError, match="batch of one, got 3 rows"):
        target.generate(**prompts(3), **SAMPLED, streamer=streamer)
    assert not streamer.got


class Author:
    """A plain-Python drafter that knows the answer, or nearly, and records its inputs."""

    def __init__(self, texts: list[list[int]] | None = None, error: BaseException | None = None) -> None:
        self.texts, self.error, self.shown = texts, error, []

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        self.shown.append(tokens)
        if self.error is not None:
            raise self.error
        if self.texts is None:
            return [[] for _ in tokens]
        # Rows have drafts of different lengths; every fifth id is wrong.
        drafts = [text[len(t) : len(t) + k - b] for b, (t, text) in enumerate(zip(tokens, self.texts, strict=True))]
        return [[(i + 1) % 131 if i % 5 == 0 else i for i in draft] for draft in drafts]


@pytest.mark.compiled
def test_a_plain_python_drafter(target: Any, prompts: Callable, theirs: Callable, ours: Callable) -> None:
    inputs = prompts(3)
    run = theirs(target, inputs, 0, **SAMPLED)
    bare = [row[row.nonzero()[0] :].tolist() for row in run.ids]
    author = Author(bare)
    mine = ours(target, inputs, 0, {"drafter": author, "k": 5}, **SAMPLED)
    assert_same(mine.ids, run, mine.state)
    assert mine.report.acceptance_length > 1.5 and mine.report.method == "Author"
    for tokens in author.shown:
        assert all(shown == text[: len(shown)] for shown, text in zip(tokens, bare, strict=True))
    silent = ours(target, inputs, 0, {"drafter": Author(), "k": 5}, **SAMPLED)
    assert_same(silent.ids, run, silent.state)
    assert silent.report.drafted == 0


@pytest.mark.parametrize(
    ("author", "says"),
    [
        (Author(error=RuntimeError("out of ideas")), "RuntimeError: out of ideas"),
        (Author(texts=[[131] * 99] * 3), "proposed id 131; ids are 0 … 130"),
        (Author(texts=[[-7] * 99] * 3), "proposed id -7"),
    ],
)
@pytest.mark.compiled
def test_a_drafter_that_fails_costs_one_warning_and_no_token(
    target: Any, prompts: Callable, theirs: Callable, ours: Callable, monkeypatch: Any, author: Author, says: str
) -> None:
    inputs = prompts(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mine = ours(target, inputs, 0, {"drafter": author}, **SAMPLED)
    assert_same(mine.ids, theirs(target, inputs, 0, **SAMPLED), mine.state)
    messages = [str(w.message) for w in caught if "drafter" in str(w.message)]
    assert len(messages) == 1 and says in messages[0]
    assert mine.report.faults == mine.report.rounds - 1 or mine.report.faults == mine.report.rounds
    monkeypatch.setenv("MMSPEC_STRICT", "1")
    with pytest.raises((RuntimeError, ValueError), match=says.split(": ")[-1]):
        ours(target, inputs, 0, {"drafter": author}, **SAMPLED)


def test_a_draft_model_that_fails_half_way_is_rolled_back(
    target: Any, good: Any, prompts: Callable, theirs: Callable, ours: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every seventh pass of the small model fails; later drafts are as good as before, so its cache is intact.

    In compiled rounds it drafts inside, where nothing fails alone.
    """
    from mmspec.core.drafters.draft_model import DraftModel

    feed, calls = DraftModel._feed, []

    def failing(self: Any, *args: Any) -> Any:
        calls.append(1)
        if len(calls) % 7 == 0:
            raise RuntimeError("for now")
        return feed(self, *args)

    monkeypatch.setattr(DraftModel, "_feed", failing)
    inputs, call = prompts(3), {**SAMPLED, "max_new_tokens": 60}
    with pytest.warns(UserWarning, match="for now"):
        mine = ours(target, inputs, 0, {"method": "draft-model", "drafter": good, "k": 4}, **call)
    assert_same(mine.ids, theirs(target, inputs, 0, **call), mine.state)
    monkeypatch.undo()
    whole = ours(target, inputs, 0, {"method": "draft-model", "drafter": good, "k": 4}, **call)
    assert mine.report.faults >= 3 and mine.report.acceptance_rate > 0.8 * whole.report.acceptance_rate


@pytest.mark.parametrize("name", ["good", "bad"])
@pytest.mark.compiled
def test_confidence_drafts_less_and_writes_the_same(
    request: Any, target: Any, prompts: Callable, theirs: Callable, ours: Callable, name: str
) -> None:
    inputs, how = prompts(3), {"method": "draft-model", "drafter": request.getfixturevalue(name), "k": 4}
    run = theirs(target, inputs, 0, **SAMPLED)
    drafted = [ours(target, inputs, 0, {**how, "policy": "fixed"}, **SAMPLED).report.drafted]
    for threshold in (0.05, 0.3, 0.9):
        mine = ours(target, inputs, 0, {**how, "policy": "confidence", "threshold": threshold}, **SAMPLED)
        assert_same(mine.ids, run, mine.state)
        drafted.append(mine.report.drafted)
    assert drafted == sorted(drafted, reverse=True) and drafted[0] > drafted[-1]


@pytest.mark.compiled
def test_auto_and_k_zero_and_k_one(target: Any, good: Any, prompts: Callable, theirs: Callable, ours: Callable) -> None:
    inputs = prompts(3)
    run = theirs(target, inputs, 0, **SAMPLED)
    for spec, method in (({}, "suffix"), ({"drafter": good}, "draft-model")):
        for k in (0, 1):
            mine = ours(target, inputs, 0, {**spec, "k": k}, **SAMPLED)
            assert_same(mine.ids, run, mine.state)
            assert mine.report.method == method and (mine.report.drafted == 0) == (k == 0)
    named = ours(target, inputs, 0, {"drafter": good, "num_speculative_tokens": 2}, **SAMPLED)
    assert len(named.report.accepted_by_depth) == 2


def test_half_precision_says_what_it_promises(make_llama: Callable, prompts: Callable) -> None:
    """Another width rounds differently there: `enable` says so, and every report what the output equals."""
    model, call = make_llama().bfloat16(), dict(**prompts(1), max_new_tokens=8, do_sample=False)
    with pytest.warns(UserWarning, match="half precision: .* in float32 only.*shape='one'"):
        spec = mmspec.enable(model, "prompt-lookup", k=3)
    model.generate(**call)
    assert spec.report.promise == "invariant up to near-ties" and "shape='one'" in str(spec.report)
    for quiet, method, shape in (
        (model, "prompt-lookup", "one"),
        (model, "plain", None),
        (make_llama(), "suffix", None),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            spec = mmspec.enable(quiet, method, k=3, shape=shape)
        quiet.generate(**call)
        assert spec.report.promise == "invariant"
        assert ("to the bit with plain of width 4" in str(spec.report)) == (shape == "one")


def test_a_custom_function_keeps_its_latest_report(target: Any, prompts: Callable) -> None:
    lookup = mmspec.custom_generate("prompt-lookup")
    assert lookup.report is None
    target.generate(**prompts(2), max_new_tokens=6, do_sample=False, eos_token_id=None, custom_generate=lookup)
    assert lookup.report is not None and lookup.report.emitted == 2 * 6
    assert repr(lookup.report) == str(lookup.report)
