"""XLNet of transformers as a target: drafts, texts and rows equal plain calls of the unmodified model."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import XLNetConfig, XLNetLMHeadModel

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.philox import PhiloxSource
from mmspec.core.rules import Match, Rejection
from mmspec.core.warp import Warp
from mmspec.registry import installed
from mmspec.testing.oracles import exact_joint
from mmspec.testing.tiny_models import llama
from mmspec_zoo.infill.any_order import Infill
from mmspec_zoo.infill.assd import Assd
from mmspec_zoo.infill.xlnet import MASK, XLNetTarget
from tests.support.examples.zoo import VOCAB
from tests.support.examples.zoo import tiny_xlnet as model
from tests.support.laws import assert_follows

TEXT = [3, None, None, 1, None, None, None, None, 5, None]
ORDER = [6, 1, 9, 2, 5, 4, 7]


def published(net: Any, text: Sequence[int | None], order: Sequence[int], units: Sequence[int], asked: int) -> Tensor:
    """Draft distributions `[asked, vocab]` of the blanks behind `units`, as the released code has them.

    σ of a position is its rank: known tokens first, then the blanks in their order. Those that are not filled yet have
    the rank N. Position i does not see j if σ(i) <= σ(j), but known tokens all see one another.
    """
    known = [place for place, token in enumerate(text) if token is not None]
    filled, waiting = list(order[: len(units)]), list(order[len(units) :])
    sigma = {place: rank for rank, place in enumerate([*known, *filled])} | dict.fromkeys(waiting, len(text))
    return called(net, text, dict(zip(filled, units, strict=True)), sigma, len(known), waiting[:asked])


def conditional(net: Any, text: Sequence[int | None], order: Sequence[int], units: Sequence[int]) -> Tensor:
    """The distribution `[vocab]` of the blank behind `units`, with the ranks of the whole order."""
    known = [place for place, token in enumerate(text) if token is not None]
    sigma = {place: rank for rank, place in enumerate([*known, *order])}
    filled = dict(zip(order, units, strict=False))
    return called(net, text, filled, sigma, len(known), [order[len(units)]])[0]


def called(
    net: Any, text: Sequence[int | None], filled: dict[int, int], sigma: dict[int, int], known: int, asked: list[int]
) -> Tensor:
    """One call of the unmodified model: `[asked, vocab]`, the mask token's probability shared among the others."""
    length = len(text)
    ids = [filled.get(place, MASK) if token is None else token for place, token in enumerate(text)]
    mask, mapping = torch.zeros(1, length, length), torch.zeros(1, len(asked), length)
    for i in range(length):
        for j in range(length):
            both = sigma[i] < known and sigma[j] < known
            mask[0, i, j] = float(sigma[i] <= sigma[j] and not both)
    for number, place in enumerate(asked):
        mapping[0, number, place] = 1.0
    with torch.no_grad():
        probs = net(torch.tensor([ids]), perm_mask=mask, target_mapping=mapping).logits[0].softmax(-1)
    probs[:, MASK] = 0.0
    return probs / probs.sum(-1, keepdim=True)


def plainly(net: Any, text: Sequence[int | None], order: Sequence[int], seed: int | None) -> list[int]:
    """A plain loop, one blank a call: greedy, or drawn with the noise of `seed`."""
    units: list[int] = []
    source = None if seed is None else PhiloxSource.seeded(seed, 1)
    for rank in range(len(order)):
        probs = conditional(net, text, order, units)
        if source is not None:
            probs = probs / source.by_position(torch.tensor([rank]), [rank], 0).exponential(VOCAB)[0, 0]
        units.append(int(probs.argmax()))
    return units


def test_two_rounds_equal_calls_of_the_unmodified_model() -> None:
    """The distributions of both drafts, what verifies them, and the units that were drawn from them."""
    decoder = Decoder(XLNetTarget(model()), Assd(), Rejection(), k=3)
    state = decoder.start(Infill([TEXT], [ORDER]), 7, seed=5)
    for _ in range(2):
        known = state.output()[0].tolist()
        decoder.advance(state)
        draft, scores = state.step.draft, state.step.scores.distribution
        drafted = draft.drafted[0].tolist()
        assert draft.distribution is not None and drafted
        q = published(model(), TEXT, ORDER, known, len(drafted))
        assert torch.allclose(draft.distribution.on(None)[0], q, atol=1e-5)  # type: ignore[attr-defined]
        for number in range(len(drafted) + 1):
            p = conditional(model(), TEXT, ORDER, [*known, *drafted[:number]])
            assert torch.allclose(scores.on(None)[0, number], p, atol=1e-5)  # type: ignore[attr-defined]
        assert torch.equal(scores.on(None)[0, 0], draft.distribution.on(None)[0, 0]), "p_1 = q_1 to the bit"  # type: ignore[attr-defined]
        assert int(state.step.verdict.length) >= 1


@pytest.mark.parametrize("k", [1, 3, 6])
def test_match_writes_what_a_plain_loop_writes(k: int) -> None:
    """Greedy and sampled, in the order given and from left to right."""
    left_to_right = sorted(ORDER)
    for order in (ORDER, left_to_right):
        inputs = Infill([TEXT], [order])
        decoder = Decoder(XLNetTarget(model()), Assd(), Match(), k=k)
        for seed in (None, 0, 1, 2):
            warp = Warp.sampling(temperature=0 if seed is None else 1)
            output = decoder.generate(inputs, 7, seed=seed or 0, warp=warp)
            assert output.units[0].tolist() == plainly(model(), TEXT, order, seed)
            assert 1 + output.report.equivalent_passes <= 7


def test_rows_of_other_lengths_and_blanks_are_the_rows_alone() -> None:
    texts = [TEXT, [None, 2], [1, None, None, 4, 0, 2, 3, 1, 1, 0, None, 2, 5], [None, None, 3, None]]
    orders = [ORDER, [0], [10, 1, 2], [3, 0, 1]]
    inputs = Infill(texts, orders)
    for rule in (Match(), Rejection()):
        decoder = Decoder(XLNetTarget(model()), Assd(), rule, k=3)
        together = decoder.generate(inputs, inputs.limit, seed=[4, 5, 6, 7], on_step=inputs.end)
        for row, units in enumerate(together.units):
            alone = decoder.generate(Infill([texts[row]], [orders[row]]), len(orders[row]), seed=4 + row).units[0]
            assert units.tolist() == alone.tolist()


@pytest.mark.slow
def test_the_joint_of_its_conditionals() -> None:
    """Four blanks, from right to left between two known tokens; 200,000 rows."""
    text, order = [3, None, None, None, None, 1], [4, 3, 2, 1]
    joint = exact_joint(lambda units: conditional(model(), text, order, units), 4, VOCAB)

    def sample(seed: int, rows: int) -> Tensor:
        target, inputs = XLNetTarget(model()), Infill([text] * rows, [order] * rows)
        output = Decoder(target, Assd(), Rejection(), k=3).generate(inputs, 4, seed=seed)
        assert output.report.accepted_by_depth[0] == rows and output.report.acceptance_rate < 0.99
        return torch.stack(output.units)

    print(f"p = {assert_follows(sample, joint):.3f}")


def test_bad_input() -> None:
    target = XLNetTarget(model())
    with pytest.raises(ValueError, match=r"its prompt is .*Infill, not dict"):
        target.start({"input_ids": torch.tensor([[1, 2]])}, 3, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\[8, 11\] are no ids of the model, which has 8"):
        target.start(Infill([[8, None, 11]]), 1, 1)
    with pytest.raises(ValueError, match="in train"):
        XLNetTarget(copy.deepcopy(model()).train()).start(Infill([[1, None]]), 1, 1)
    with pytest.raises(ValueError, match=r"float32 alone, and the model is in torch.bfloat16"):
        XLNetTarget(copy.deepcopy(model()).bfloat16()).start(Infill([[1, None]]), 1, 1)
    sizes = dict(vocab_size=VOCAB, d_model=8, n_layer=1, n_head=1, d_inner=8)
    for wrong in (dict(attn_type="uni"), dict(bi_data=True)):
        with pytest.raises(ValueError, match=r"attn_type='bi' and bi_data=False"):
            XLNetTarget(XLNetLMHeadModel(XLNetConfig(**sizes, **wrong)))


def test_it_is_found_and_its_generate_is_refused() -> None:
    """`generate` continues a text, which is another distribution: the message says where blanks are filled."""
    target = installed().target_for(model())
    assert target is not None and target.name == "xlnet"
    with pytest.raises(ValueError, match=r"'assd' does not fit target 'transformers': .* needs any-order"):
        mmspec.enable(llama(), "assd")
    for method in ("auto", "prompt-lookup"):
        with pytest.raises(ValueError, match="a XLNetLMHeadModel is run by a InfillPipeline"):
            mmspec.enable(copy.deepcopy(model()), method)
        with pytest.raises(ValueError, match="InfillPipeline takes text"):
            how = {"custom_generate": mmspec.custom_generate(method), "max_new_tokens": 3}
            copy.deepcopy(model()).generate(torch.tensor([[1, 2, 3]]), **how)
