"""ASSD on a toy: two rounds by hand, the exact joint of every order, how many passes, ordinary rejection."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder, Output
from mmspec.core.distributions import Categorical
from mmspec.core.noise import DraftNoise
from mmspec.core.policies import Fixed
from mmspec.core.rules import Match, Rejection
from mmspec.core.state import State
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.testing.toys.markov import MarkovTarget
from mmspec.testing.toys.markov_drafters import MarkovChain
from mmspec_zoo.infill.any_order import FILLER, Filling, Infill
from mmspec_zoo.infill.assd import Assd, AssdOptions, bigrams
from tests.support.laws import assert_follows
from tests.support.toys.any_order import AnyOrderTarget

MASK = 3
TEXT = [0, None, None, 2, None, None]
ORDERS = [list(order) for order in itertools.permutations([1, 2, 4, 5])]
TARGET = AnyOrderTarget.random(len(TEXT), 4, seed=0, mask=MASK)
ROWS = 8_400
"""Rows of each order: 201,600 in all."""


def decoded(
    target: Any, inputs: Infill, rule: Any, k: int, seed: int = 0, warp: Warp | None = None, draft: Any = "model"
) -> Output:
    drafter = Assd(AssdOptions(draft)) if k else None
    how: dict[str, Any] = {"seed": seed, "warp": warp, "on_step": inputs.end}
    return Decoder(target, drafter, rule, k=max(k, 1)).generate(inputs, inputs.limit, **how)


def counting() -> AnyOrderTarget:
    """A token goes on counting, modulo 7, from its left neighbour if that is known; else it is most likely 0."""
    base, pull = torch.zeros(8, 7), torch.zeros(8, 8, 7, 7)
    base[:, 0] = 2.0
    for place, token in itertools.product(range(1, 8), range(7)):
        pull[place, place - 1, token, (token + 1) % 7] = 5.0
    return AnyOrderTarget(base, pull)


def rounds(inputs: Infill, k: int) -> tuple[list[list[int]], list[int], list[int], int]:
    """Greedy: the drafts, the units of every round, all units, and the passes."""
    decoder = Decoder(counting(), Assd(), Rejection(), k=k)
    state = decoder.start(inputs, inputs.limit, warp=Warp.sampling(temperature=0))
    drafts, counts = [], []
    while not state.finished:
        decoder.advance(state)
        drafts.append(state.step.draft.drafted[0].tolist())
        counts.append(int(state.step.count))
    return drafts, counts, state.output()[0].tolist(), 1 + state.report.equivalent_passes


def test_two_rounds_by_hand() -> None:
    """The text 1 _ _ _ _ _ _ _ from left to right; the target counts: 2 3 4 5 6 0 1.

    The prefill fills the first blank with 2.
    Round 1: the second blank sees 2 and drafts 3; the third sees nothing on its left and drafts 0. The verification
    sees 3 there and says 4: 3 is kept, and 4 comes instead of 0.
    Round 2: the same from 4: the drafts are 5 and 0, of which 5 is kept, and 6 comes.
    Round 3: two blanks are left, so one is drafted: 0, which sees 6. It is kept, and the bonus is 1.
    """
    drafts, counts, units, passes = rounds(Infill([[1, *[None] * 7]]), k=2)
    assert drafts == [[3, 0], [5, 0], [0]] and counts == [2, 2, 2]
    assert units == [2, 3, 4, 5, 6, 0, 1] and passes == 7


def test_another_order_by_hand() -> None:
    """The text 1 _ _ _ _ 3, the second blank first, then from left to right.

    The prefill fills the second blank, which sees no neighbour on its left, with 0.
    Round 1: the first blank sees 1 and drafts 2; the third sees 0 and drafts 1. Both are what the verification says,
    and so the last blank, which sees 1 then, is filled with 2 by the same pass.
    """
    inputs = Infill([[1, None, None, None, None, 3]], [[2, 1, 3, 4]])
    drafts, counts, units, passes = rounds(inputs, k=2)
    assert drafts == [[2, 1]] and counts == [3]
    assert units == [0, 2, 1, 2] and passes == 3
    assert inputs.filled([torch.tensor(units)]) == [[1, 2, 0, 1, 2, 3]]


def joint(target: Any) -> Tensor:
    """The product of the conditionals of every order, all orders alike: `[order, vocab, vocab, vocab, vocab]`."""
    probabilities = torch.zeros(len(ORDERS), *[4] * 4, dtype=torch.float64)
    for number, order in enumerate(ORDERS):
        for units in itertools.product(range(4), repeat=4):
            known, probability = {0: 0, 3: 2}, 1.0 / len(ORDERS)
            for place, unit in zip(order, units, strict=True):
                probability *= float(target.probabilities(place, known)[unit])
                known[place] = unit
                if not probability:
                    break
            probabilities[(number, *units)] = probability
    return probabilities


@pytest.mark.parametrize(
    ("rule", "k", "dtype", "draft"),
    [
        (Rejection(), 3, torch.float32, "model"),
        (Rejection(), 3, torch.float32, "bigram"),
        pytest.param(Rejection(), 1, torch.float32, "model", marks=pytest.mark.slow),
        pytest.param(Rejection(), 3, torch.bfloat16, "model", marks=pytest.mark.slow),
        pytest.param(Match(), 3, torch.float32, "model", marks=pytest.mark.slow),
    ],
)
def test_every_order_has_the_joint_of_its_conditionals(rule: Any, k: int, dtype: torch.dtype, draft: Any) -> None:
    """In bfloat16 the conditionals are those of the rounded scores."""
    base, pull = TARGET.base.to(dtype), TARGET.pull.to(dtype)

    def sample(seed: int, rows: int) -> Tensor:
        repeats = rows // len(ORDERS)
        target, number = AnyOrderTarget(base, pull, MASK, repeats=repeats), torch.arange(len(ORDERS)).repeat(repeats)
        decoder = Decoder(target, Assd(AssdOptions(draft)), rule, k=k)
        state = decoder.start(Infill([TEXT] * len(ORDERS), ORDERS), 4, seed=seed)
        while not state.finished:
            decoder.advance(state)
        if draft == "model":
            assert state.report.accepted_by_depth[0] == len(number), "the first token is always kept"
        assert k == 1 or (0.4 if draft == "model" else 0.1) < state.report.acceptance_rate < 0.95
        return torch.cat([number[:, None], state.history[:, state.prompt_length : state.prompt_length + 4]], 1)

    p = assert_follows(
        sample,
        joint(TARGET if dtype == torch.float32 else rounded(AnyOrderTarget(base, pull, MASK))),
        len(ORDERS) * ROWS,
    )
    print(f"p = {p:.3f}")


def rounded(target: AnyOrderTarget) -> Any:
    """The target's own conditionals in half precision, one text at a time."""
    target = AnyOrderTarget(target.base, target.pull, MASK)

    class Rounded:
        def probabilities(self, place: int, known: dict[int, int]) -> Tensor:
            text: list[int | None] = [known.get(each) for each in range(len(TEXT))]
            blanks = [each for each, token in enumerate(text) if token is None and each != place]
            logits = target.start(Infill([text], [[place, *blanks]]), 1, 1).output.logits
            assert logits is not None
            return logits[0, 0].double().softmax(-1)

    return Rounded()


@pytest.mark.parametrize(("k", "draft"), [(1, "model"), (2, "model"), (5, "model"), (3, "bigram")])
def test_match_is_plain_decoding_in_the_same_order(k: int, draft: Any) -> None:
    inputs = Infill([TEXT] * len(ORDERS), ORDERS)
    for warp in (Warp.sampling(), Warp.sampling(0.7, top_k=2), Warp.sampling(temperature=0)):
        plain, ours = (decoded(TARGET, inputs, Match(), each, seed=5, warp=warp, draft=draft) for each in (0, k))
        assert torch.equal(torch.stack(plain.units), torch.stack(ours.units))
        assert ours.report.rounds < plain.report.rounds or draft == "bigram"
        assert ours.report.accepted > 0


class FromBase:
    """The drafts of the causal toy, in order: the root's successor, then tokens without a known neighbour."""

    offers, needs = MarkovChain.offers, MarkovChain.needs

    def __init__(self, base: Tensor, follow: Tensor) -> None:
        self.base, self.follow = base, follow

    def bind(self, target: Any) -> None:
        pass

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> None:
        return None

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        logits = self.base.expand(state.rows, k, -1).clone()
        logits[:, 0] += self.follow[state.root]
        distribution = Categorical.of_logits(logits)
        draws = [distribution.take(torch.tensor([[d - 1]])).draw(noise.chain(d, 1)) for d in range(1, k + 1)]
        return Draft.chain(torch.cat(draws, 1), distribution)

    def observe(self, state: State, step: Any) -> None:
        pass


def test_a_causal_model_from_left_to_right_is_ordinary_rejection() -> None:
    """The same drafts, distributions and noise on a Markov chain: the same units, accepted alike."""
    generator, length, vocab = torch.Generator().manual_seed(1), 12, 5
    base, follow = torch.randn(vocab, generator=generator), 2 * torch.randn(vocab, vocab, generator=generator)
    pull = torch.zeros(length, length, vocab, vocab)
    pull[torch.arange(1, length), torch.arange(length - 1)] = follow
    toy = AnyOrderTarget(base.expand(length, -1), pull)
    text = [1, 2, *[None] * (length - 2)]
    ours = decoded(toy, Infill([text] * 200), Rejection(), 3, seed=4)
    chain = MarkovTarget((base + follow).expand(vocab, -1, -1))
    prompt = torch.tensor([[1, 2]]).expand(200, -1)
    other = Decoder(chain, FromBase(base, follow), Rejection(), k=3, policy=Fixed(3)).generate(prompt, 10, seed=4)
    assert torch.equal(torch.stack(ours.units), torch.stack(other.units))
    assert ours.report.accepted_by_depth == other.report.accepted_by_depth
    first, *_, last = ours.report.accepted_by_depth
    assert 0 < last < first / 2


@pytest.mark.parametrize("rule", [Rejection(), Match()])
def test_as_many_passes_as_blanks_at_most(rule: Any) -> None:
    """Prefill and drafts included; and the first token of a draft is always kept."""
    target = AnyOrderTarget.random(12, 5, seed=2)
    for blanks, k, seed in itertools.product((1, 2, 3, 6, 10), (1, 3, 9), range(2)):
        report = decoded(target, Infill([[1, *[None] * blanks, 2]]), rule, k, seed).report
        assert 1 + report.equivalent_passes <= blanks == report.emitted
        assert sum(report.accepted_by_depth[:1]) == report.inner_passes
        counted = decoded(target, Infill([[1, *[None] * blanks, 2]]), rule, k, seed, draft="bigram").report
        assert counted.inner_passes == 0 and 1 + counted.equivalent_passes <= blanks == counted.emitted


def test_bigrams_by_hand() -> None:
    """The text 1 2 1 2 1 3 2 _ _ _, in which 2 follows 1 twice, 3 once; 1 follows 2 twice, and nothing follows the
    last 2; 2 follows 3. The prefill fills the first blank with 1.

    Behind the root 1 the counts are then the same, and 2's are 3, all of them a 1. The first draft is 2, twice in
    three; behind it 1 is certain. Of another order, the last blank's left neighbour is empty: tokens alone count.
    """
    text = [1, 2, 1, 2, 1, 3, 2, None, None, None]
    root = torch.tensor([[1]])
    for order, at in (([7, 8, 9], "left"), ([7, 9, 8], "alone")):
        cache = Filling.begin(Infill([text], [order]), torch.device("cpu"))
        first = bigrams(cache, cache.text(root), root, 4).logits
        assert first is not None
        expected = [0.0, 0.0, 2 / 3, 1 / 3] if at == "left" else [0.0, 4 / 8, 3 / 8, 1 / 8]
        assert first.softmax(-1)[0, 0].tolist() == pytest.approx(expected)
    cache = Filling.begin(Infill([text]), torch.device("cpu"))
    second = bigrams(cache, cache.text(root), torch.tensor([[1, 2]]), 4).logits
    unseen = bigrams(cache, cache.text(root), torch.tensor([[1, 0]]), 4).logits
    assert second is not None and unseen is not None
    assert second.softmax(-1)[0, 0].tolist() == pytest.approx([0, 1, 0, 0])
    assert unseen.softmax(-1)[0, 0].tolist() == pytest.approx([0, 4 / 8, 3 / 8, 1 / 8]), "nothing follows it there"
    start = Filling.begin(Infill([[3, None, 3, 1]], [[1]]), torch.device("cpu"))
    assert start.behind(1, 1).tolist() == [[3]], "no blank is left; what is drafted there is not valid"


def test_rows_of_a_batch_are_the_rows_alone() -> None:
    target = AnyOrderTarget.random(9, 5, seed=3)
    texts = [[1, None, None, 2, None, None, None, 4, None], [None, 3], [0, None, 1, None, None], [None, None, 2]]
    orders = [[8, 1, 5, 4, 6, 2], [0], [3, 1, 4], [1, 0]]
    for rule, draft in itertools.product((Rejection(), Match()), ("model", "bigram")):
        together = Decoder(target, Assd(AssdOptions(draft)), rule, k=3)
        inputs = Infill(texts, orders)
        output = together.generate(inputs, inputs.limit, seed=[7, 8, 9, 10], on_step=inputs.end)
        assert [len(units) for units in output.units] == [6, 1, 3, 2]
        for row, units in enumerate(output.units):
            alone = decoded(target, Infill([texts[row]], [orders[row]]), rule, 3, seed=7 + row, draft=draft)
            assert torch.equal(alone.units[0], units)
        assert output.report.emitted == 12 and output.report.accepted < 12
        filled = inputs.filled(output.units)
        assert all(
            f == t
            for new, old in zip(filled, texts, strict=True)
            for f, t in zip(new, old, strict=True)
            if t is not None
        )


def test_a_row_that_nobody_ends_goes_on_with_the_filler() -> None:
    units = Decoder(TARGET, Assd(), Rejection(), k=3).generate(Infill([TEXT, [1, None]]), 6, seed=1).units
    assert units[0][4:].tolist() == [FILLER] * 2 and units[1][1:].tolist() == [FILLER] * 5


def test_the_probability_of_the_mask_token_goes_to_all_others_in_proportion() -> None:
    """Here the mask token itself would be the likeliest."""
    base = TARGET.base.clone()
    base[:, MASK] = 4.0
    target = AnyOrderTarget(base, TARGET.pull, MASK)
    logits = target.start(Infill([TEXT]), 4, 4).output.logits
    free = AnyOrderTarget(base, TARGET.pull).start(Infill([TEXT]), 4, 4).output.logits
    assert logits is not None and free is not None
    expected = free.softmax(-1).index_fill(-1, torch.tensor([MASK]), 0.0)
    assert torch.allclose(logits.softmax(-1), expected / expected.sum(-1, keepdim=True))


@pytest.mark.parametrize(
    ("rows", "orders", "says"),
    [
        ([], None, "no text"),
        ([[1, 2]], None, "text 0 has no blank"),
        ([[1, None], []], None, "text 1 has no blank"),
        ([[None, None]], None, "no known token"),
        ([[1, None, None]], [[1, 1]], r"order 0: \[1\] come more than once"),
        ([[1, None, None]], [[2]], r"order 0: \[1\] are missing"),
        ([[1, None, None]], [[0, 1, 2]], r"order 0: \[0\] are no blanks; its blanks are \[1, 2\]"),
        ([[1, None, None]], [[1, 7]], r"\[7\] are no blanks"),
        ([[1, None], [None, 1]], [[1]], "2 texts and 1 orders"),
    ],
)
def test_bad_input(rows: Sequence[Any], orders: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Infill(rows, orders)


def test_other_targets_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing offers any-order"):
        Decoder(MarkovTarget.random(3, seed=0), Assd())
    lying = MarkovTarget.random(3, seed=0)
    lying.offers = lying.offers | {"any-order"}
    with pytest.raises(ValueError, match="cannot score several blanks at once"):
        Decoder(lying, Assd())


def test_processors_of_the_history_see_the_filled_tokens() -> None:
    """A processor that forbids the last token: no two tokens that were filled one after the other are the same."""
    from transformers import NoRepeatNGramLogitsProcessor

    warp = replace(Warp.sampling(), processors=[NoRepeatNGramLogitsProcessor(1)])
    inputs = Infill([[0, None, None, None, None]])
    target = AnyOrderTarget.random(5, 6, seed=5)
    for seed in range(5):
        plain, ours = (decoded(target, inputs, Match(), k, seed, warp).units[0] for k in (0, 3))
        assert torch.equal(plain, ours) and len({0, *ours.tolist()}) == 5
