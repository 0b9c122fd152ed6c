"""RAPID: what is retrieved and two rounds by hand, the law of the mixed target, and the released rule's."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.rules import Match, Rejection
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.core.warp import Warp
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.testing.oracles import exact_joint
from mmspec.testing.statistics import joint_p_value
from mmspec.testing.toys.cache import UnitsCache
from mmspec.testing.toys.history import HistoryTarget
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_zoo.conditioned.rapid import AugmentedTarget, Rapid, RapidOptions, bm25, embedded, mixed, shortened
from tests.support import random_models

PART: dict[str, Any] = {"first": 1, "chunk": 3, "chunks": 1, "end": 5}


def test_chunks_by_hand() -> None:
    """A prompt of 14 tokens: 0; the chunks 5 6 7, 1 2 3, 5 5 9 and 8; and its end 7 5 5 4.

    The end asks for 4, 5 and 7. Of four chunks, 5 is in two, 7 in one, and 4 in none. 5 6 7 has a 5 and a 7; 5 5 9 has
    two 5s, which count less than twice one; the others share nothing with the end.
    One chunk: 5 6 7. Two chunks: both, in their order. Three: still two, since the others say nothing.
    """
    ids = torch.tensor([0, 5, 6, 7, 1, 2, 3, 5, 5, 9, 8, 7, 5, 5, 4])
    pieces = ids[1:11].split(3)
    scores = bm25(ids[11:], pieces)
    five, seven = torch.log1p(torch.tensor([2.5 / 2.5, 3.5 / 1.5]))
    expected = [float(five + seven), 0.0, float(five * 2 * 2.5 / 3.5), 0.0]
    assert scores.tolist() == pytest.approx(expected)
    assert shortened(ids, 1, 3, 1, 4, bm25).tolist() == [0, 5, 6, 7, 7, 5, 5, 4]
    assert shortened(ids, 1, 3, 2, 4, bm25).tolist() == [0, 5, 6, 7, 5, 5, 9, 7, 5, 5, 4]
    assert shortened(ids, 1, 3, 3, 4, bm25).tolist() == shortened(ids, 1, 3, 2, 4, bm25).tolist()
    assert shortened(ids, 1, 3, 4, 4, bm25).tolist() == ids.tolist(), "all of it fits"
    assert shortened(ids, 1, 3, 0, 4, bm25).tolist() == [0, 7, 5, 5, 4]


def test_chunks_by_vectors() -> None:
    """Texts are letters, and their vectors count a, b and c. The end is "ab": "aa" has a cosine of 1 / √2 with it, "ab"
    of 1, "cc" of 0, and "cccb" of 1 / √20, which is below the floor of 0.3.
    """
    tokenizer = SimpleNamespace(decode=lambda ids: "".join("abc"[i] for i in ids))
    counts = partial(embedded, lambda texts: [[text.count(letter) for letter in "abc"] for text in texts], tokenizer)
    pieces = tuple(torch.tensor(ids) for ids in ([0, 0], [0, 1], [2, 2], [2, 2, 2, 1]))
    assert counts(torch.tensor([0, 1]), pieces).tolist() == pytest.approx([0.5**0.5, 1.0, 0.0, 0.0])
    ids = torch.tensor([2, 0, 0, 2, 2, 0, 1, 0, 1])
    assert shortened(ids, 1, 2, 2, 2, counts).tolist() == [2, 0, 0, 0, 1, 0, 1]
    assert shortened(ids, 1, 2, 1, 2, counts).tolist() == [2, 0, 1, 0, 1]


def test_embeddings_say_what_the_model_on_the_short_prompt_reads() -> None:
    model, asked = load_model("mmspec/text-1m", "cpu"), list[str]()

    def vectors(texts: list[str]) -> Any:
        asked.extend(texts)
        return torch.eye(len(texts))[[0, 0, *range(2, len(texts))]]  # the first chunk says what the end does

    ids = torch.arange(5, 45)[None]
    how: dict[str, Any] = {"first": 2, "chunk": 8, "chunks": 1, "end": 8, "eta": 0.0, "embed": vectors}
    with mmspec.enable(model, "rapid", **how) as spec:
        model.generate(input_ids=ids, max_new_tokens=4, do_sample=False)
    tokenizer = load_tokenizer("mmspec/text-1m")
    assert asked[:2] == [tokenizer.decode(ids[0, -8:]), tokenizer.decode(ids[0, 2:10])] and len(asked) == 5
    assert spec.report is not None and not spec.report.faults


class Remembering(HistoryTarget):
    """The unit that followed the last unit's latest earlier occurrence in what it reads; else the next number of ten.

    Its prompts are mappings of ids and mask, as a model's.
    """

    offers = HistoryTarget.offers | {"text"}

    def __init__(self) -> None:
        super().__init__(torch.zeros(61, 10))

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        started = super().start((ids, (1 - mask).sum(1)), limit, width)
        cache: UnitsCache = started.cache
        texts = [row[:n].tolist() for row, n in zip(cache.units, cache.length, strict=True)]
        return Prefill(cache, TargetOutput(logits=follows(texts)[:, None]), started.prompt, started.pads)

    def after(self, units: Tensor, length: Tensor, draft: Draft) -> Tensor:
        known = [row[:n].tolist() for row, n in zip(units, length, strict=True)]
        nodes = range(draft.nodes)  # a chain
        texts = [
            [row + path[: node + 1].tolist() for node in nodes] for row, path in zip(known, draft.units, strict=True)
        ]
        return torch.stack([follows(row) for row in texts])


def follows(texts: list[list[int]]) -> Tensor:
    """The scores behind every text, `[text, 10]`."""
    scores = torch.zeros(len(texts), 10)
    for row, text in zip(scores, texts, strict=True):
        before = [place for place, unit in enumerate(text[:-1]) if unit == text[-1]]
        row[text[before[-1] + 1] if before else (text[-1] + 1) % 10] = 5.0
    return scores


def replaced(options: RapidOptions, model: Any) -> Rapid:
    """A drafter whose small model is a toy."""
    drafter = Rapid(options)
    drafter.model = model
    drafter.bind = lambda target: None  # type: ignore[method-assign]
    return drafter


@pytest.mark.parametrize(
    ("how", "drafts", "lengths", "text"),
    [
        ({}, [[9, 2, 8, 6], [1, 2, 1, 2]], [1, 0], [9, 2, 1, 8]),
        ({"chunks": 0}, [[9, 0, 8, 6], [2, 3, 4, 9]], [0, 0], [9, 2, 1]),
        ({"context": [4, 9, 2, 1, 8]}, [[9, 2, 1, 8], [6, 4, 9, 2]], [3, 3], [9, 2, 1, 8, 6, 4, 9, 2, 1]),
        ({"context": lambda ids: ids[1:7]}, [[9, 2, 1, 0], [8, 6, 4, 9]], [2, 3], [9, 2, 1, 8, 6, 4, 9, 2]),
    ],
    ids=["retrieved", "the end alone", "given ids", "a function"],
)
def test_two_rounds_by_hand(how: dict[str, Any], drafts: Any, lengths: list[int], text: list[int]) -> None:
    """The prompt is 0, the chunks 4 9 2, 2 1 0 and 0 3 1, and the end 8 6 6 6 4. A unit follows its latest follower.

    The target reads all of it: 4 was followed by 9, 9 by 2, 2 by 1 (in the second chunk), 1 by 8, 8 by 6, 6 by 4; so
    it writes 9 2 1 8 6 4 and again. It has written 9 when round 1 begins. Drafts are three units, each behind its root.
    Retrieved, 0 4 9 2 8 6 6 6 4: the first chunk shares the 4 with the end, the others nothing. Behind 9 the draft is 2
    (right), 8 (the target says 1), 6. Behind 1, which the draft model reads for the first time, it counts on: 2.
    The end alone, 0 8 6 6 6 4: 9 is new, so that it counts on to 0, then 8, 6. Behind 2, also new: 3, 4, then 9.
    Given 4 9 2 1 8 in front of the end: 2, 1, 8 are right, the target adds 6; then 4, 9, 2 are right, too.
    By a function, the first two chunks: 2, 1 are right, and 0 is not, as the target read 8 behind its latest 1; then
    6, 4, 9 are right.
    """
    prompt = torch.tensor([[0, 4, 9, 2, 2, 1, 0, 0, 3, 1, 8, 6, 6, 6, 4]])
    options = RapidOptions(**{**PART, "model": random_models.small(), **how})
    decoder = Decoder(Remembering(), replaced(options, Remembering()), k=3)
    inputs = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
    state = decoder.start(inputs, 20, warp=Warp.sampling(temperature=0))
    seen, accepted = [], []
    for _ in range(2):
        decoder.advance(state)
        assert state.step is not None
        seen.append(state.step.draft.units[0].tolist())
        accepted.append(int(state.step.verdict.length))
    assert seen == drafts and accepted == lengths and state.output()[0].tolist() == text
    assert not state.report.faults and "respect" not in str(state.report)


def test_mixed_scores_by_hand() -> None:
    """q's last unit has less than a tenth of its best one, so that its score stays."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.75, 0.05])
    found = mixed(p.log(), q.log(), eta=2.0, alpha=0.1)
    assert torch.allclose(found, p.log() - torch.tensor([2 * 0.3, 2 * -0.45, 0.0]), atol=1e-6)
    assert torch.equal(mixed(p.log(), q.log(), 0.0, 0.1), p.log()), "eta 0 is the target itself"
    assert torch.allclose(mixed(p.log(), p.log(), 9.0, 0.1), p.log(), atol=1e-6), "and so are equal models"


def counting(step: int, sure: float) -> MarkovTarget:
    table = torch.full((7, 7, 7), (1 - sure) / 6)
    for unit in range(7):
        table[:, unit, (unit + step) % 7] = sure
    return MarkovTarget(table.log())


@pytest.mark.parametrize(
    ("eta", "drafts", "lengths", "text"),
    [
        (3.0, [[2, 4, 6, 1], [3, 5, 0, 2]], [3, 3], [2, 4, 6, 1, 3, 5, 0, 2, 4]),
        (1.0, [[1, 3, 5, 0], [2, 4, 6, 1]], [0, 0], [1, 2, 3]),
    ],
)
def test_two_rounds_of_a_mixed_target_by_hand(eta: float, drafts: Any, lengths: list[int], text: list[int]) -> None:
    """The target counts by ones with probability 0.5, and has 0.083 for others; the second by twos with 0.9. Greedy.

    g is 0.083 - 0.9 = -0.817 for the second's unit; all others have less than 0.09 there, and g = 0. So p̂ counts by
    twos where log 0.083 + 0.817 eta > log 0.5, that is eta > 2.19. The second model drafts, by twos.
    """
    second = counting(2, 0.9)
    target = AugmentedTarget(counting(1, 0.5), second, lambda units, pads: units, eta, 0.1)
    decoder = Decoder(target, DraftModel(second), k=3)
    state = decoder.start(torch.tensor([[6, 0]]), 20, warp=Warp.sampling(temperature=0))
    seen, accepted = [], []
    for _ in range(2):
        decoder.advance(state)
        assert state.step is not None
        seen.append(state.step.draft.units[0].tolist())
        accepted.append(int(state.step.verdict.length))
    assert seen == drafts and accepted == lengths and state.output()[0].tolist() == text


def p_hat(z: Tensor, q: Tensor, eta: float) -> Tensor:
    """The mixed distribution at one place, by a loop, float64."""
    p, best = z.double().softmax(-1), float(q.max())
    moved = [float(z[x]) - eta * (float(p[x] - q[x]) if float(q[x]) >= 0.1 * best else 0.0) for x in range(len(z))]
    return torch.tensor(moved, dtype=torch.float64).softmax(-1)


def released(p: Tensor, q: Tensor, hat: Tensor) -> Tensor:
    """The distribution that the released rule emits in the place of a draft from q: neither p nor p̂."""
    kept = torch.minimum(q, hat)
    residual = torch.maximum(p - q, p - hat).clamp(min=0)
    return kept + (1 - kept.sum()) * residual / residual.sum()


@pytest.mark.parametrize(
    "rule", [pytest.param(Match(), marks=pytest.mark.slow), Rejection()], ids=["match", "rejection"]
)
def test_the_joint_is_that_of_the_mixture(rule: Any) -> None:
    """Three units follow p̂; the target's own joint, and the released rule's law, are told apart."""
    first, second, eta, start = MarkovTarget.random(3, seed=0), MarkovTarget.random(3, seed=1), 2.0, (0, 1)
    target = AugmentedTarget(first, second, lambda units, pads: units, eta, 0.1)
    decoder = Decoder(target, DraftModel(second), rule, k=2)
    output = decoder.generate(torch.tensor([start]).expand(50_000, 2), 3, seed=3)
    units = torch.stack(output.units)
    p, q = (each.table.double().softmax(-1) for each in (first, second))

    def joint(law: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        def follows(text: tuple[int, ...]) -> Tensor:
            at = (*start, *text)[-2:]
            return law(p[at], q[at], p_hat(first.table[at], q[at], eta))

        return exact_joint(follows, 3, 3)

    assert joint_p_value(units, joint(lambda p, q, hat: hat)) > 1e-4
    assert joint_p_value(units, joint(lambda p, q, hat: p)) < 1e-4
    assert joint_p_value(units, joint(released)) < 1e-4
    apart = [float((joint(released) - joint(law)).abs().sum() / 2) for law in (lambda p, q, h: p, lambda p, q, h: h)]
    assert min(apart) > 0.02, "the released rule follows neither"
    assert output.report.acceptance_length > 1.2


def test_a_context_that_holds_all_is_always_right(target: Any, prompts: Callable) -> None:
    with mmspec.enable(target, "rapid", k=3) as spec:  # of short prompts all is read
        target.generate(**prompts(1), max_new_tokens=17, do_sample=True)
    assert spec.report is not None and spec.report.acceptance_length == 4


def test_the_mixed_text_of_a_model_is_that_of_its_forwards(target: Any, good: Any, prompts: Callable) -> None:
    """Greedy, without a cache: the model on the whole text, the second one on the short prompt and the same text."""
    inputs, texts = prompts(3), []
    for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
        whole = ids[mask.bool()]
        short, new = shortened(whole, **PART, scores_of=bm25), whole[:0]
        for _ in range(10):
            with torch.no_grad():
                z = target(input_ids=torch.cat([whole, new])[None]).logits[0, -1]
                q = good(input_ids=torch.cat([short, new])[None]).logits[0, -1].softmax(-1)
            new = torch.cat([new, p_hat(z, q, 4.0).argmax()[None]])
        texts.append(new.tolist())
    with mmspec.enable(target, "rapid", drafter=good, k=3, eta=4.0, **PART) as spec:
        ids = target.generate(**inputs, max_new_tokens=10, do_sample=False)
    assert ids[:, 14:].tolist() == texts
    assert spec.report is not None and "invariant with respect to p̂ = softmax(z - 4·g)" in str(spec.report)
    plain = target.generate(**inputs, max_new_tokens=10, do_sample=False)
    assert not torch.equal(plain, ids), "eta changes nothing"


def test_what_is_refused(target: Any, good: Any, make_llama: Callable, prompts: Callable) -> None:
    for wrong in ({"eta": -1.0}, {"chunk": 0}, {"end": 0}, {"alpha": 2.0}):
        with pytest.raises(ValueError, match="allowed is"):
            mmspec.enable(target, "rapid", **wrong)
    with pytest.raises(ValueError, match="MarkovTarget runs no model that could draft for itself"):
        Decoder(counting(1, 0.5), Rapid())
    with pytest.raises(ValueError, match="their distributions are mixed over one vocabulary"):
        mmspec.enable(target, "rapid", drafter=make_llama(vocab_size=99), eta=1.0)
    with (
        mmspec.enable(target, "rapid", context=[999]),
        pytest.raises(ValueError, match="token id 999 is outside the model's vocabulary"),
    ):
        target.generate(**prompts(1), max_new_tokens=4)
