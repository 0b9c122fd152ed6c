"""`judge`: two rounds by hand, its law and its bias by brute force, its two ends, its training, what it refuses."""

import copy
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.hidden import FINAL
from mmspec.core.types import Draft, TargetOutput
from mmspec.core.warp import Warp
from mmspec.hosts.fingerprint import identity
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.testing.statistics import joint_p_value
from mmspec.testing.toys.markov import MarkovCache, MarkovTarget
from mmspec.testing.toys.markov_drafters import MarkovChain
from mmspec_zoo.relaxed.judge import Judge, JudgeHead, JudgeOptions
from mmspec_zoo.relaxed.judge_command import NUMBER, train_judge
from mmspec_zoo.relaxed.judge_training import Judged, fitted, mined, rates, read_questions, read_triples, states_of
from tests.support import byte_llama
from tests.support.zoo import build, noisy

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("falcon-new", "mistral", "gemma2", "qwen3_moe")]


class Stated(MarkovTarget):
    """A Markov text whose state at a unit is the unit's one-hot vector: a judge is a list of units."""

    offers = MarkovTarget.offers | {"hidden", "text"}
    boundaries: tuple[int, ...] = ()

    @property
    def hidden_size(self) -> int:
        return len(self.table)

    def layers(self) -> int:
        return 1

    def with_hidden(self, boundaries: Sequence[int]) -> "Stated":
        other = copy.copy(self)
        other.boundaries = tuple(boundaries)
        return other

    def verify(self, cache: MarkovCache, draft: Draft, first: int = 0) -> TargetOutput:
        output = super().verify(cache, draft, first)
        hidden = torch.nn.functional.one_hot(draft.units[:, first:], len(self.table)).float()
        return TargetOutput(logits=output.logits, hidden=hidden if self.boundaries else None)


def accepting(units: set[int], vocab: int, threshold: float = 0.5) -> Judge:
    """A judge that finds these units right, with the probability σ(1), and others with σ(-1)."""
    weight = torch.tensor([1.0 if unit in units else -1.0 for unit in range(vocab)])
    return Judge(JudgeOptions(head=JudgeHead(weight, torch.zeros(1)), threshold=threshold))


def counting(step: int) -> Tensor:
    """Scores of seven units of which one goes on by `step`, with a probability of 0.9."""
    table = torch.full((7, 7, 7), 0.1 / 6)
    for unit in range(7):
        table[:, unit, (unit + step) % 7] = 0.9
    return table.log()


def test_three_rounds_by_hand() -> None:
    """The target counts by ones, and the small model by twos; the judge finds even units right. All is greedy.

    Prompt 6, 0: the target writes 1.
    Round 1, behind 1: 3, 5, 0 are drafted. 3 is odd, and the target's own is 2: nothing is accepted, 2 is written.
    Round 2, behind 2: 4, 6, 1. 4 and 6 are even (the target's own are 3 and 5: two altered units); 1 is odd, and the
    target's own behind 6 is 0, which is written.
    Round 3, behind 0: 2, 4, 6, all even, and all altered; behind 6 the target adds 0.
    """
    decoder = Decoder(Stated(counting(1)), DraftModel(MarkovTarget(counting(2))), accepting({0, 2, 4, 6}, 7), k=3)
    state = decoder.start(torch.tensor([[6, 0]]), 20, warp=Warp.sampling(temperature=0))
    drafts, lengths, altered = [], [], []
    for _ in range(3):
        decoder.advance(state)
        assert state.step is not None and state.step.verdict.tv is not None
        drafts.append(state.step.draft.units[0].tolist())
        lengths.append(int(state.step.verdict.length))
        altered.append(state.step.verdict.tv[0].tolist())
    assert drafts == [[1, 3, 5, 0], [2, 4, 6, 1], [0, 2, 4, 6]] and lengths == [0, 2, 3]
    assert altered == [[0, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]], "round 1 does not reach its last draft, an even one"
    assert state.output()[0].tolist() == [1, 2, 4, 6, 0, 2, 4, 6, 0]
    bias = state.report.bias
    assert bias is not None and bias.altered == 5


class Points(MarkovChain):
    """The likeliest unit of a table, as a point mass."""

    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        assert k == 1
        before = state.history.gather(1, (state.known - 2)[:, None])[:, 0]
        return Draft.chain(self.table[before, state.root].argmax(-1)[:, None])


def brute_force(p: Tensor, x: Tensor, right: set[int], length: int) -> tuple[Tensor, float]:
    """The joint of `length` units behind (0, 1), and how many of them are altered, by a walk over all texts.

    A drafted unit that the judge finds right stays. Otherwise the target's own is drawn. Behind an accepted draft comes
    one unit without a draft, and the next round begins behind it. The first unit is the prefill's, and for the last
    one nothing is drafted.

    Args:
        p: The target's table of probabilities.
        x: What is drafted, `[vocab, vocab]`.
        right: The units that the judge accepts.
        length: The number of units.
    """
    vocab, joint, altered = len(p), torch.zeros((len(p),) * length, dtype=torch.float64), 0.0
    texts = [((0, 1), 1.0, False)]
    for left in range(length, 0, -1):
        longer = []
        for text, mass, drafted in texts:
            follows, unit = p[text[-2], text[-1]].double(), int(x[text[-2], text[-1]])
            if drafted and left > 1 and unit in right:
                altered += mass * float(1 - follows[unit])
                longer.append(((*text, unit), mass, False))
            else:
                longer += [((*text, y), mass * float(follows[y]), not (drafted and y == unit)) for y in range(vocab)]
        texts = longer
    for text, mass, _ in texts:
        joint[text[2:]] += mass
    return joint, altered


def test_its_law_and_its_bias_are_those_of_brute_force() -> None:
    target, other, rows = Stated.random(3, seed=0), MarkovTarget.random(3, seed=1), 50_000
    decoder = Decoder(target, Points(other.table), accepting({0, 2}, 3), k=1)
    output = decoder.generate(torch.tensor([[0, 1]]).expand(rows, 2), 4, seed=5)
    p = target.table.softmax(-1)
    joint, altered = brute_force(p, other.table.argmax(-1), {0, 2}, 4)
    plain, none = brute_force(p, other.table.argmax(-1), set(), 4)
    units = torch.stack(output.units)
    assert none == 0 and altered > 0.3
    assert joint_p_value(units, joint) > 1e-4
    assert joint_p_value(units, plain) < 1e-4, "the bias must be seen, or this test is blind"
    bias = output.report.bias
    assert bias is not None and bias.altered == pytest.approx(altered, abs=5e-3)


def test_of_drawn_drafts_it_measures_no_less_than_the_bias() -> None:
    """The unit behind the first one, given the first one: how far it is from p, and what was measured there."""
    target, near, rows = Stated.random(3, seed=0), MarkovTarget.random(3, seed=1), 50_000
    decoder = Decoder(target, MarkovChain(near.table), accepting({0, 2}, 3), k=1)
    state = decoder.start(torch.tensor([[0, 1]]).expand(rows, 2), 3, seed=5)
    decoder.advance(state)
    assert state.step is not None and state.step.verdict.tv is not None
    units, p, seen = torch.stack([row[:2] for row in state.output()]), target.table.softmax(-1), 0
    for first in range(3):
        those = units[:, 0] == first
        law = torch.bincount(units[those, 1], minlength=3) / those.sum()
        distance = float((law - p[1, first]).abs().sum() / 2)
        assert distance <= float(state.step.verdict.tv[those, 0].mean()) + 0.01
        seen += distance > 0.05
    assert seen, "no unit is altered, so that nothing is shown"


def test_the_threshold_orders_acceptance(target: Any, good: Any, prompts: Callable) -> None:
    """The same drafts and scores, from δ = 1 to 0: never fewer units are accepted, and at 0 all of them."""
    decoder = Decoder(own(target), drafting(good), random_judge(target, 1.0), k=4)
    state = decoder.start(prompts(3), 60, seed=1)
    for _ in range(4):
        pending = decoder.speculate(state)
        lengths = [
            random_judge(target, delta).accept(pending.draft, pending.scores, state.round()).length
            for delta in (1.0, 0.9, 0.5, 0.1, 0.0)
        ]
        assert all(bool((more >= fewer).all()) for fewer, more in itertools.pairwise(lengths))
        assert bool((lengths[-1] == pending.draft.valid[:, 1:].sum(1)).all())
        decoder.settle(state, pending)
        state.sync()


def own(model: Any) -> Any:
    from mmspec.hosts.target import TransformersTarget

    return TransformersTarget(model)


def drafting(model: Any) -> DraftModel:
    from mmspec.hosts.target import TransformersTarget

    return DraftModel(TransformersTarget(model, drafting=True))


def random_head(model: Any) -> JudgeHead:
    weight = torch.randn(model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    return JudgeHead(weight, torch.zeros(1), "it", identity(model))


def random_judge(model: Any, threshold: float) -> Judge:
    return Judge(JudgeOptions(head=random_head(model), threshold=threshold))


@pytest.mark.parametrize("name", ["llama", "gpt2", *SLOW])
def test_at_one_it_is_plain_decoding(name: str, prompts: Any) -> None:
    """Greedy, unmodified `generate`; sampled, plain decoding with the same seed."""
    model, call = build(name), dict(max_new_tokens=16, do_sample=False)
    sampled = dict(max_new_tokens=16, do_sample=True, temperature=0.8)
    how: dict[str, Any] = {"drafter": noisy(model, 0.05), "head": random_head(model), "k": 4}
    runs = {batch: stock(model, prompts(batch), 0, **call) for batch in (3, 1)}
    with mmspec.enable(model, "plain", seed=3):
        plain = {batch: model.generate(**prompts(batch), **sampled) for batch in (3, 1)}
    with mmspec.enable(model, "judge", threshold=1.0, seed=3, **how) as spec:
        for batch, expected in runs.items():
            torch.manual_seed(0)
            assert_same(model.generate(**prompts(batch), **call), expected, torch.get_rng_state())
            assert torch.equal(model.generate(**prompts(batch), **sampled), plain[batch])
            assert spec.report is not None and spec.report.bias is not None and spec.report.bias.tv == 0
            assert spec.report.acceptance_length > 1.3 and not spec.report.faults


def test_at_zero_it_accepts_everything(target: Any, bad: Any, prompts: Callable) -> None:
    with mmspec.enable(target, "judge", drafter=bad, head=random_head(target), threshold=0.0, k=3) as spec:
        target.generate(**prompts(1), max_new_tokens=13, do_sample=False)
    report = spec.report
    assert report is not None and report.exactness == "lossy" and report.bias is not None and report.bias.tv > 0.3
    assert report.acceptance_length == 4


def test_the_state_is_that_of_the_drafted_token(target: Any, good: Any, prompts: Callable) -> None:
    """What the judge reads of a node is what the model, without a cache, has at that token after its prefix."""
    decoder = Decoder(own(target), drafting(good), random_judge(target, 0.5), k=3)
    state = decoder.start(prompts(1), 30, seed=1)
    decoder.advance(state)
    pending = decoder.speculate(state)
    known = state.history[:, : int(state.known)]
    text = torch.cat([known, pending.draft.drafted], 1)
    with torch.no_grad():
        states = target.model(input_ids=text).last_hidden_state[:, -3:]
    assert pending.scores.hidden is not None
    assert torch.allclose(pending.scores.hidden[:, 1:], states, atol=1e-4)


def test_what_is_refused(target: Any, good: Any, make_llama: Callable, tmp_path: Path) -> None:
    file, other = tmp_path / "judge.safetensors", tmp_path / "other.safetensors"
    random_head(target).save(file)

    def enable(model: Any, **how: Any) -> None:
        mmspec.enable(model, "judge", drafter=good, **how)
        mmspec.disable(model)

    enable(target, head=str(file))
    with pytest.raises(ValueError, match="needs a judge: head=FILE, which `mmspec train judge`"):
        enable(target)
    with pytest.raises(ValueError, match="there is no judge gone"):
        enable(target, head="gone")
    with pytest.raises(ValueError, match="allowed is"):
        enable(target, head=str(file), threshold=1.5)
    with pytest.raises(ValueError, match=r"states of it \(identity .*has other weights .*train one for this target"):
        enable(noisy(target, 0.01), head=str(file))
    with pytest.raises(ValueError, match=r"have 64 numbers, and the target's have 32"):
        enable(make_llama(hidden_size=32), head=str(file))
    other.write_bytes(b"no judge")
    with pytest.raises(ValueError, match=r"other.safetensors cannot be read"):
        enable(target, head=str(other))
    save_file({"weight": torch.ones(2, 2), "bias": torch.ones(1)}, other)
    with pytest.raises(ValueError, match="not of the format mmspec-judge-1"):
        enable(target, head=str(other))
    with pytest.raises(ValueError, match="read different hidden states"):
        random_judge(target, 0.5).bind(own(target).with_hidden([0, FINAL]))
    with pytest.raises(ValueError, match="MarkovTarget gives none"):
        accepting({0}, 3).wrap(MarkovTarget.random(3, seed=0))


def test_the_judge_that_ships() -> None:
    """Found by its name; greedy calls accept more with it, and their reports have the bias."""
    model, tokenizer = load_model("mmspec/text-14m"), load_tokenizer("mmspec/text-14m")
    ids = tokenizer("import os\n\n\ndef main(args):\n    parser =", return_tensors="pt")["input_ids"]
    found = {}
    for threshold in (1.0, 0.2):
        how = {"head": "mmspec/text-14m-judge", "threshold": threshold}
        with mmspec.enable(model, "judge", drafter="mmspec/text-1m", k=4, **how) as spec:
            model.generate(ids, max_new_tokens=24, do_sample=False)
        found[threshold] = spec.report
    assert found[1.0].bias.tv == 0 < found[0.2].bias.tv
    assert found[1.0].acceptance_length < found[0.2].acceptance_length


def test_a_model_has_one_identity_in_every_precision(target: Any) -> None:
    assert identity(copy.deepcopy(target).bfloat16()) == identity(target) != identity(noisy(target, 0.01))


QUESTIONS = [{"prompt": f"{n} + 1 = ", "correct": f"{n + 1}.", "wrong": f"{n + 2}!"} for n in range(20)]


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_first_wrong_token_by_hand(tmp_path: Path) -> None:
    """Bytes are tokens. Of 13. and 14! the 1 is alike; 4 is the first wrong token, and ! behind it is left out."""
    tokenizer = load_tokenizer(str(byte_llama.save(tmp_path / "tiny")))
    (triple,) = read_triples([write(tmp_path / "a.jsonl", [QUESTIONS[12]])], tokenizer)
    texts = [tokenizer.decode(ids) for ids in (triple.prompt, triple.correct, triple.wrong)]
    assert texts == ["12 + 1 = ", "13.", "14"]
    for line in ({"prompt": "a"}, {"prompt": "a", "correct": "b", "wrong": "b"}, {**QUESTIONS[0], "wrong": ""}):
        with pytest.raises(ValueError, match="line 1 of "):
            read_triples([write(tmp_path / "b.jsonl", [line])], tokenizer)
    with pytest.raises(ValueError, match="nothing to learn from"):
        read_triples([write(tmp_path / "b.jsonl", [])], tokenizer)


def test_a_fit_separates_what_can_be_separated_and_heeds_weights() -> None:
    g = torch.Generator().manual_seed(0)
    states, direction = torch.randn(400, 6, generator=g), torch.tensor([2.0, -1, 0, 0, 0, 1])
    judged = Judged(states * 3 + 5, states @ direction > -1.5)
    assert min(rates(judged, *fitted(judged)).values()) > 0.9
    noisy_right = states @ direction + 2 * torch.randn(400, generator=g) > -1.5
    blurred = Judged(states, noisy_right)
    refused = [rates(blurred, *fitted(blurred, weight))["wrong refused"] for weight in (0.2, 1.0, 5.0, 25.0)]
    assert refused == sorted(refused) and refused[0] < refused[-1]


def test_a_judge_is_trained_written_and_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = byte_llama.save(tmp_path / "tiny")
    out, data = tmp_path / "judge.safetensors", write(tmp_path / "a.jsonl", QUESTIONS)
    train_judge(str(place), out, [data])
    said = capsys.readouterr().out
    assert "right tokens and 18 wrong ones" in said and "held out: right accepted" in said
    model, tokenizer = load_model(str(place)), load_tokenizer(str(place))
    head = JudgeHead.load(out)
    assert head.identity == identity(model) and head.target == str(place)
    judged = states_of(model, read_triples([data], tokenizer)[:3])
    assert judged.states.shape == (len(judged.right), 16) and int((~judged.right).sum()) == 3
    ids = torch.tensor(tokenizer("3 + 1 = ")["input_ids"])[None]
    with mmspec.enable(model, "judge", drafter=noisy(model, 0.5), head=str(out), k=3) as spec:
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=True)
    assert spec.report is not None and spec.report.bias is not None and not spec.report.faults


def test_labels_are_mined_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target answers "it is 4."; the draft model would write "It is 9.", which the target goes on with.

    I for i: the target then says "It is 4.", so that I is right, and the search goes on there. 9 for 4: its answer is
    another one, so that 9 is wrong, and the text stays. The full stop is alike.
    """
    place = byte_llama.save(tmp_path / "tiny")
    model, tokenizer = load_model(str(place)), load_tokenizer(str(place))
    (question,) = read_questions([write(tmp_path / "a.jsonl", [{"prompt": "2+2="}])], tokenizer)
    asked, draft = len(question), load_model(str(place))

    def written(input_ids: torch.Tensor, max_new_tokens: int, **_: Any) -> torch.Tensor:
        said = tokenizer.decode(input_ids[0, asked:])
        whole = ("It" if said[:1] == "I" else "it") + (" is 9." if said[6:7] == "9" else " is 4.")
        assert whole.startswith(said) and max_new_tokens == 20 - len(said)
        return torch.tensor([[*question.tolist(), *tokenizer(whole)["input_ids"]]])

    def would_write(input_ids: torch.Tensor) -> Any:
        wanted = torch.zeros(1, input_ids.shape[1], 257)
        for at, unit in enumerate(tokenizer("It is 9.")["input_ids"]):
            wanted[0, asked - 1 + at, unit] = 1.0
        return SimpleNamespace(logits=wanted)

    monkeypatch.setattr(model, "generate", written)
    monkeypatch.setattr(draft, "forward", would_write)
    judged = mined(model, draft, [question], tokenizer, NUMBER, 20)
    assert judged.right.tolist() == [True, False]
    for state, text in zip(judged.states, ("2+2=I", "2+2=It is 9"), strict=True):
        ids = torch.tensor(tokenizer(text)["input_ids"])[None]
        hidden = own(model).with_hidden([FINAL]).start(ids, 1, 1).hidden
        assert hidden is not None and torch.allclose(state, hidden[0, -1], atol=1e-5)
    assert not len(mined(model, draft, [question], tokenizer, "never", 20).right), "a question without an answer"
    with pytest.raises(ValueError, match="the draft model has 40 ids, and the target 257"):
        mined(model, SimpleNamespace(config=SimpleNamespace(vocab_size=40)), [question], tokenizer, NUMBER, 20)


def test_a_judge_of_mined_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of random models any byte may be the answer; what one draft model would write never changes it is refused."""
    place = byte_llama.save(tmp_path / "tiny")
    small = noisy(load_model(str(place)), 0.3)
    small.save_pretrained(tmp_path / "small")
    data = write(tmp_path / "a.jsonl", [{"prompt": f"{n} + 1 = "} for n in range(12)])
    out = tmp_path / "judge.safetensors"
    how: dict[str, Any] = {"draft_model": str(tmp_path / "small"), "new_tokens": 8}
    train_judge(str(place), out, [data], answer=r"(?s).", **how)
    assert "wrong ones" in capsys.readouterr().out and JudgeHead.load(out).target == str(place)
    with pytest.raises(ValueError, match="0 tokens were tried, of which 0 leave the answer"):
        train_judge(str(place), out, [data], answer="never", **how)
    with pytest.raises(ValueError, match="is no regular expression"):
        train_judge(str(place), out, [data], answer="(", **how)
    with pytest.raises(ValueError, match=r"line 1 of .* has no question"):
        train_judge(str(place), out, [write(tmp_path / "b.jsonl", [{"text": "x"}])], **how)
