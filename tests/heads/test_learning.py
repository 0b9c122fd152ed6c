"""Drafters that learn between calls: what is noted, what a lesson changes, and that no text changes under `match`."""

import copy
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.learning import Learner, Notes, Row
from mmspec.core.state import State
from mmspec.testing.statistics import LEVEL
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.draft_model import DraftModelOptions, TextDraftModel
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from tests.heads.conftest import SAMPLED, checkpoint

CALL: dict[str, Any] = {"max_new_tokens": 16, "do_sample": True, "top_k": 0}
TREE = {"form": "rerank", "width": 3, "nodes": 10}


def head(name: str = "eagle-3", **options: Any) -> Eagle:
    return Eagle(EagleOptions(model=checkpoint(name), probe=False, **{"form": "chain", **options}))


def small() -> TextDraftModel:
    """The target, a little wrong."""
    model, g = copy.deepcopy(llama()), torch.Generator().manual_seed(0)
    for weights in model.parameters():
        weights.data += 0.5 * weights.std() * torch.randn(weights.shape, generator=g) if weights.dim() > 1 else 0
    return TextDraftModel(DraftModelOptions(model=model))


def weights_of(model: Any) -> list[Tensor]:
    return [weight.detach().clone() for weight in model.parameters()]


def generated(model: Any, inputs: dict[str, Tensor], seed: int, **call: Any) -> Tensor:
    torch.manual_seed(seed)
    out: Tensor = model.generate(**inputs, **{**CALL, **call})
    return out


def corrections(state: State, last: list[int]) -> list[int]:
    """By hand: the places of this round's corrections, -1 in rows without one; every row followed through its draft."""
    step, places = state.step, []
    assert step is not None
    draft = step.draft
    for row in range(state.rows):
        parents = draft.index.parent.expand(state.rows, -1)[row].tolist()
        node, place = 0, -1
        for at in range(last[row], state.host.emitted[row]):
            unit = int(state.history[row, state.prompt_length + at])
            children = [n for n, above in enumerate(parents) if above == node and bool(draft.valid[row, n])]
            taken = [n for n in children if int(draft.units[row, n]) == unit]
            if taken:
                node = taken[0]
            elif children:
                place = state.prompt_length + at
        places.append(place)
    return places


@pytest.mark.parametrize("form", [{}, TREE], ids=["chain", "tree"])
def test_notes_equal_a_recomputation(form: dict[str, Any], decoder: Callable, rows: dict[str, Tensor]) -> None:
    """Batch 3 of several lengths; only the latest units are kept."""
    notes, found, last = Notes(mmspec.Learning(length=15)), [set[int]() for _ in range(3)], [0] * 3
    for state in decoder("eagle-3", **{"form": "chain", **form}).rounds(rows, 20, seed=3, warp=SAMPLED):
        notes.step(state)
        for row, place in enumerate(corrections(state, last)):
            found[row] |= {place} - {-1}
        last = list(state.host.emitted)
    assert all(found), "nothing was corrected, so nothing was tested"
    end = state.prompt_length + 20
    expected = [
        Row(tuple(state.history[row, end - 15 : end].tolist()), tuple(at in found[row] for at in range(end - 15, end)))
        for row in range(3)
    ]
    assert notes.rows(state) == expected


@pytest.mark.parametrize("make", [head, small])
def test_a_lesson_brings_the_drafter_nearer(make: Callable, rows: dict[str, Tensor]) -> None:
    """Also where the call runs under inference mode; the target and its flags stay as they are."""
    model, drafter = llama(), make()
    before, flags = weights_of(model), [weight.requires_grad for weight in model.parameters()]
    learn = mmspec.Learning(rate=1e-3, steps=12, batch=3, depth=2, positions="emitted")
    with mmspec.enable(model, drafter=drafter, k=3, learn=learn) as spec:
        learner = spec.learner
        assert learner is not None
        mine = [weight.detach().clone() for weight in learner.lesson.weights()]
        with torch.inference_mode():
            generated(model, rows, 0)
        assert learner.steps == 12 and len(learner.kept) == 3 and not learner.stopped
        first = [torch.tensor([row.units]) for row in learner.kept]
        counted = [torch.tensor([row.counted]) for row in learner.kept]
        after = float(sum(learner.lesson.loss(*each).detach() for each in zip(first, counted, strict=True)))
        for weight, old in zip(learner.lesson.weights(), mine, strict=True):
            weight.data.copy_(old)
        assert after < 0.9 * float(sum(learner.lesson.loss(*e).detach() for e in zip(first, counted, strict=True)))
    assert all(torch.equal(a, b) for a, b in zip(weights_of(model), before, strict=True))
    assert [weight.requires_grad for weight in model.parameters()] == flags
    assert all(weight.grad is None for weight in model.parameters())


def test_what_reads_and_scores_units_stays(rows: dict[str, Tensor]) -> None:
    """A head's own output layer."""
    model, drafter = llama(), head("pruned")
    with mmspec.enable(model, drafter=drafter, k=3, learn=True) as spec:
        before = {name: weight.detach().clone() for name, weight in drafter.network.named_parameters()}
        generated(model, rows, 0)
        assert spec.learner is not None and spec.learner.steps == 1
    changed = {n for n, weight in drafter.network.named_parameters() if not torch.equal(weight, before[n])}
    assert changed and changed == {name for name in before if not name.startswith(("lm_head.", "embed_tokens."))}


def test_the_loss_is_that_of_the_distribution_in_front_of_a_correction() -> None:
    """Position - 1, and no other."""
    model, drafter = llama(), small()
    units = torch.tensor([[1, 4, 2, 6, 3, 5, 1, 2]])
    counted = torch.arange(8)[None] == 5
    lesson = mmspec.enable(model, drafter=drafter, learn=True).learner.lesson  # type: ignore[union-attr]
    mmspec.disable(model)
    with torch.no_grad():
        p = model(units).logits[0, 4].softmax(-1)
        q = drafter.model.model(units).logits[0, 4].softmax(-1)  # type: ignore[attr-defined]
        expected = (p * (p / q).log()).sum()
        assert torch.allclose(lesson.loss(units, counted), expected, atol=1e-5)


def calls_are_equal(make: Callable, rows: dict[str, Tensor], calls: int, form: dict[str, Any]) -> None:
    model = llama()
    plain = [generated(model, rows, seed) for seed in range(calls)]
    with mmspec.enable(model, drafter=make(**form), k=3, learn=mmspec.Learning(rate=0.01)) as spec:
        for seed in range(calls):
            assert torch.equal(generated(model, rows, seed), plain[seed])
        assert spec.learner is not None and spec.learner.steps >= calls and not spec.learner.stopped


@pytest.mark.parametrize("make", [head, small])
def test_under_match_no_token_changes(make: Callable, rows: dict[str, Tensor]) -> None:
    calls_are_equal(make, rows, 4, {})


@pytest.mark.slow
@pytest.mark.parametrize(("make", "form"), [(head, {}), (head, TREE), (small, {})])
def test_under_match_no_token_changes_in_thirty_calls(
    make: Callable, form: dict[str, Any], rows: dict[str, Tensor]
) -> None:
    calls_are_equal(make, rows, 30, form)


@pytest.mark.slow
@pytest.mark.parametrize("make", [head, small])
def test_the_law_of_rejection_after_lessons(make: Callable, rows: dict[str, Tensor], law: Callable) -> None:
    model = llama()
    with mmspec.enable(model, drafter=make(), rule="rejection", k=2, learn=mmspec.Learning(steps=4)) as spec:
        for seed in range(5):
            generated(model, rows, seed)
        assert spec.learner is not None and spec.learner.steps > 0
        decoder: Decoder = spec._decoder
        assert law(decoder) > LEVEL


def test_a_call_that_raises_leaves_nothing(rows: dict[str, Tensor]) -> None:
    class Broken:
        def put(self, value: Tensor) -> None:
            self.seen = getattr(self, "seen", 0) + 1
            if self.seen > 3:
                raise RuntimeError("full")

        def end(self) -> None:
            pass

    model = llama()
    one = {name: value[-1:] for name, value in rows.items()}
    with mmspec.enable(model, drafter=head(), k=3, learn=True) as spec:
        assert spec.learner is not None
        with pytest.raises(RuntimeError, match="full"):
            generated(model, one, 0, streamer=Broken())
        assert not spec.learner.kept and not spec.learner.steps
        embedded = model.get_input_embeddings()(one["input_ids"])
        generated(model, {"inputs_embeds": embedded}, 0)
        assert not spec.learner.kept, "a prompt of embeddings is no text"
        generated(model, one, 0)
        assert spec.learner.kept and spec.learner.steps


def test_a_loss_that_is_not_finite_ends_learning(rows: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MMSPEC_STRICT", raising=False)
    model, drafter = llama(), head()
    with mmspec.enable(model, drafter=drafter, k=3, learn=True) as spec:
        assert spec.learner is not None
        generated(model, rows, 0)
        good, lesson = weights_of(drafter.network), spec.learner.lesson
        loss = lesson.loss
        monkeypatch.setattr(lesson, "loss", lambda *of: loss(*of) * float("nan"))
        with pytest.warns(UserWarning, match="learns no more.*not|learns no more.*nan"):
            generated(model, rows, 1)
        generated(model, rows, 2)  # without a second warning
        assert spec.learner.stopped
    assert all(torch.equal(a, b) for a, b in zip(weights_of(drafter.network), good, strict=True))


def test_a_head_is_saved_and_read_again(rows: dict[str, Tensor], tmp_path: Path) -> None:
    model, drafter = llama(), head()
    with mmspec.enable(model, drafter=drafter, k=3, learn=True) as spec:
        generated(model, rows, 0)
        for _ in range(2):
            spec.save_drafter(tmp_path / "better")
        (tmp_path / "target").mkdir()
        (tmp_path / "target" / "model.safetensors").write_text("the target's")
        with pytest.raises(FileExistsError, match=r"not replaced, since 'model\.safetensors' in it is somebody"):
            spec.save_drafter(tmp_path / "target")
    assert [path.read_text() for path in (tmp_path / "target").iterdir()] == ["the target's"]
    again = Eagle(EagleOptions(model=str(tmp_path / "better"), probe=False))
    with mmspec.enable(model, drafter=again, k=3):
        generated(model, rows, 0)
    pairs = zip(weights_of(drafter.network), weights_of(again.network), strict=True)
    assert all(torch.allclose(a, b, atol=2e-3) for a, b in pairs)


@pytest.mark.slow
def test_half_precision_learns_small_steps(rows: dict[str, Tensor]) -> None:
    """Steps that bfloat16 alone would round away add up."""
    model, drafter = copy.deepcopy(llama()).bfloat16(), head()
    with mmspec.enable(model, drafter=drafter, k=3, learn=mmspec.Learning(rate=1e-5, steps=60)) as spec:
        generated(model, rows, 0)
        before = weights_of(drafter.network)
        generated(model, rows, 1)
        assert spec.learner is not None and spec.learner.steps == 120
    assert any(not torch.equal(a, b) for a, b in zip(weights_of(drafter.network), before, strict=True))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"method": "plain"}, "plain cannot learn; those that can: .*draft-model.*eagle"),
        ({"method": "prompt-lookup"}, "prompt-lookup cannot learn"),
        ({"method": "medusa", "drafter": "no/such-head"}, "medusa cannot learn"),
        ({"drafter": "eagle", "compile": True}, "learn= and compile= do not go together"),
    ],
)
def test_who_cannot_learn_is_refused_before_weights_are_read(how: dict[str, Any], message: str) -> None:
    method = how.pop("method", "auto")
    with pytest.raises(ValueError, match=message):
        mmspec.enable(llama(), method, learn=True, **how)


def test_bad_options() -> None:
    with pytest.raises(TypeError, match="learn= is True, False or"):
        mmspec.enable(llama(), "plain", learn="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'kl'"):
        mmspec.enable(llama(), drafter=head(), learn=mmspec.Learning(loss="k1"))
    for wrong in ({"every": 0}, {"steps": -1}, {"rate": 1.5}, {"rate": "1"}, {"length": 5}, {"positions": "all"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            mmspec.Learning(**wrong)  # type: ignore[arg-type]
    with (
        mmspec.enable(llama(), "plain") as spec,
        pytest.raises(ValueError, match="nothing learns here"),
    ):
        spec.save_drafter("nowhere")
    with torch.inference_mode(), pytest.raises(ValueError, match="inference_mode"):
        mmspec.enable(llama(), drafter=head(), learn=True)


@pytest.mark.parametrize("make", [head, small])
def test_lessons_wait_for_idle_moments(make: Callable, rows: dict[str, Tensor]) -> None:
    """A call returns without them, none runs while one is decoded, and texts stay; all are taken in the end."""
    model, drafter = llama(), make()
    plain = generated(model, rows, 0)
    with mmspec.enable(model, drafter=drafter, k=3, learn=mmspec.Learning(steps=3, idle=True)) as spec:
        learner = spec.learner
        assert learner is not None
        with learner.call():  # another call is decoded
            assert torch.equal(generated(model, rows, 0), plain) and learner.kept
            assert not learner.steps and learner._thread is not None and learner._thread.is_alive()
        learner.rest()
        assert learner.steps == 3 and learner._thread is None and not learner.stopped
        for _ in range(3):
            assert torch.equal(generated(model, rows, 0), plain)
        learner.rest()
        assert learner.steps == 12
        with learner.call():
            generated(model, rows, 0)
            spec.disable()  # which waits for nothing that is due
        assert learner.steps == 12
    with pytest.raises(
        ValueError, match=r"a text depends on the drafter, and with Learning\(idle=True\) on when lessons"
    ):
        mmspec.enable(llama(), drafter=make(), rule="rejection", k=2, learn=mmspec.Learning(idle=True))


def test_a_call_waits_for_one_step(rows: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are due, none begins once a call has come; and a topic that comes leaves another one's steps."""
    began, goes_on, taken = threading.Event(), threading.Event(), list[int]()

    def step(self: Learner) -> None:
        taken.append(self._running)
        began.set()
        goes_on.wait(60)

    monkeypatch.setattr(Learner, "_step", step)
    model, learn = llama(), mmspec.Learning(steps=50, idle=True, route=lambda units: str(len(units)))
    with mmspec.enable(model, drafter=small(), k=3, learn=learn) as spec:
        learner = spec.learner
        assert learner is not None
        generated(model, rows, 0)
        assert began.wait(60)
        waiting = threading.Thread(target=lambda: (until(lambda: learner._running == 1), goes_on.set()))
        waiting.start()
        with learner.call():
            waiting.join()
            assert taken == [0] and learner._owed == 49
            learner.turn_to(torch.arange(3))
            assert not learner._owed and not learner.kept
        learner.rest()
        assert taken == [0]


def until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.001)


def test_every_topic_has_a_drafter_and_rows_of_its_own(rows: dict[str, Tensor]) -> None:
    """It begins as the drafter was, is there again when its topic comes back, and no text changes."""
    model, drafter = llama(), small()
    low, high = (torch.tensor([[1, 2, 1, 2, 3]]), torch.tensor([[5, 6, 5, 6, 4]]))
    route = mmspec.Topics({"low": [low[0]], "high": [high[0]]})
    assert [route(text[0, 1:]) for text in (low, high)] == ["low", "high"]
    plain = [generated(model, {"input_ids": text}, 0) for text in (low, high)]
    learn = mmspec.Learning(rate=1e-3, steps=2, depth=2, positions="emitted", route=route)
    with mmspec.enable(model, drafter=drafter, k=3, learn=learn) as spec:
        learner = spec.learner
        assert learner is not None
        weights = learner.lesson.weights()
        begun, seen = [weight.detach().clone() for weight in weights], []
        for text, right in zip((low, high, low), (*plain, plain[0]), strict=True):
            with learner.call():
                learner.turn_to(text[0])
                seen.append([weight.detach().clone() for weight in weights])
            assert torch.equal(generated(model, {"input_ids": text}, 0), right)
            seen.append([weight.detach().clone() for weight in weights])
        assert len(learner.kept) == 2, "those of the topic alone"
        with learner.call(), learner.call():
            learner.turn_to(high[0])
        assert all(torch.equal(a, b) for a, b in zip(weights, seen[-1], strict=True)), "another call is decoded"
    same = [
        all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        for one, other in ((seen[0], begun), (seen[2], begun), (seen[4], seen[1]), (seen[1], begun), (seen[5], seen[4]))
    ]
    assert same == [True, True, True, False, False]
    for wrong in ({"one": [low[0]]}, {"one": [low[0]], "two": []}):
        with pytest.raises(ValueError, match="a router chooses among two topics or more, each known by one text"):
            mmspec.Topics(wrong)
