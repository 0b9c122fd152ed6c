"""A decoder as drafter of a larger one: exact joints under every rule, equality with plain under `match`."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, RepetitionPenaltyLogitsProcessor

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.cascade import CascadeDrafter, FromHistory
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.initialisations import RandomUnit
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.policies import Confidence
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection, Synthetic
from mmspec.core.torch_noise import TorchSource
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.testing.oracles import exact_joint
from mmspec.testing.toys.history import HistoryTarget
from mmspec.testing.toys.markov import MarkovTarget
from mmspec.testing.toys.markov_drafters import MarkovChain
from tests.support.laws import assert_follows

LARGE = HistoryTarget.random(3, seed=3)
MIDDLE = LARGE.near(4)
SMALL = MIDDLE.near(2)
RAGGED = (torch.tensor([[0, 0, 1, 2], [2, 1, 1, 0], [0, 0, 0, 2]]), torch.tensor([1, 0, 3]))
LENGTH = 6  # so long that the inner decoder drafts, too: its first unit comes without, its last needs none
JOINT = exact_joint(LARGE.next_distribution([0, 1]), LENGTH, 3)


def live(target):
    return FromHistory(target, lambda units, pads: (units, pads))


def cascade(middle=MIDDLE, drafter=None, rule=None, k=2, policy=None):
    drafter = drafter if drafter is not None else DraftModel(live(SMALL))
    return CascadeDrafter(Decoder(live(middle), drafter, rule, k=k, policy=policy))


def joint(drafter, rule, rows, seed):
    decoder = Decoder(LARGE, drafter, rule, k=4)
    state = decoder.start(torch.tensor([[0, 1]]).expand(rows, -1), LENGTH, seed=seed)
    while not state.finished:
        decoder.advance(state)
    return state.history[:, 2 : 2 + LENGTH]


@pytest.mark.parametrize(
    ("rule", "inner"),
    [
        # Under `match` the output is that of plain decoding (below); tests/mutants has the joints of the other rules.
        pytest.param(Match(), Match(), marks=pytest.mark.slow),
        pytest.param(Block(), Match(), marks=pytest.mark.slow),
        pytest.param(Rejection(), Rejection(), marks=pytest.mark.slow),
        pytest.param(Block(), Block(), marks=pytest.mark.slow),
    ],
)
def test_exact_distribution(rule, inner):
    assert_follows(lambda seed, rows: joint(cascade(rule=inner), rule, rows, seed), JOINT)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("small", [SMALL, MIDDLE, HistoryTarget.random(3, 99, sharpness=4.0)])
@pytest.mark.parametrize(("k", "inner_k"), [(4, 2), (1, 1), (3, 5), (5, 0)])
def test_equal_to_plain_under_match(small, k, inner_k):
    """Rows of different length; the middle that is the target itself is never refused."""
    plain = Decoder(LARGE).generate(RAGGED, 30, seed=1).units
    for middle in (MIDDLE, LARGE):
        drafter = cascade(middle, DraftModel(live(small)), k=inner_k)
        output = Decoder(LARGE, drafter, k=k).generate(RAGGED, 30, seed=1)
        assert all(torch.equal(a, b) for a, b in zip(plain, output.units, strict=True))
        assert middle is MIDDLE or output.report.acceptance_rate == 1


@pytest.mark.parametrize("end", range(3))
def test_rows_that_end_early_leave_the_others_alone(end):
    plain = Decoder(LARGE).generate(RAGGED, 40, seed=1, ends=end).units
    drafted = Decoder(LARGE, cascade(), k=4).generate(RAGGED, 40, seed=1, ends=end).units
    assert len({len(row) for row in plain}) > 1 or end == 2
    assert all(torch.equal(a, b) for a, b in zip(plain, drafted, strict=True))


def test_finished_rows_are_not_waited_for():
    """A row that is finished in the outer call must not decode in the inner one."""
    drafter = cascade()
    decoder = Decoder(LARGE, drafter, k=4)
    state = decoder.start(RAGGED, 30, seed=1)
    state.stop(1, 1)
    decoder.advance(state)
    assert state.memory.emitted.tolist() == [4, 1, 4]


@pytest.mark.parametrize("inner", [Match(), Rejection(), Block()])
def test_its_distribution_is_the_middle_targets_and_its_units_come_from_it(inner):
    decoder = Decoder(LARGE, cascade(rule=inner), Rejection(), k=4)
    warp = Warp.sampling(temperature=0.8, top_k=2)
    state = decoder.start(RAGGED, 40, seed=2, warp=warp)
    while not state.finished:
        lengths, root, active = state.known - state.pads - 1, state.root, ~state.done
        packed = state.history.gather(1, (state.pads[:, None] + torch.arange(64)).clamp(max=state.history.shape[1] - 1))
        pending = decoder.speculate(state)
        draft = pending.draft
        if draft.nodes > 1:
            path = Draft.chain(draft.drafted).rooted(root, torch.full((3,), 9))
            logits = MIDDLE.after(packed, lengths, path)[:, :-1] / 0.8
            expected = logits.masked_fill(logits == logits.amin(-1, keepdim=True), -torch.inf).softmax(-1)
            assert torch.allclose(draft.distribution.probs[active], expected[active], atol=1e-6)
            assert (draft.distribution.of(draft.drafted)[active] > 0).all()
        decoder.settle(state, pending)
        state.sync()


def test_a_distribution_is_worth_more_than_a_point_mass():
    """Under rejection a draft of the right distribution is never refused; a copy of its units would be, every other
    time.
    """
    prompt = torch.tensor([[0, 1]]).expand(500, -1)
    rates = [Decoder(LARGE, cascade(LARGE), rule, k=3).generate(prompt, 13).report.acceptance_rate for rule in RULES]
    assert rates == [1.0] * len(RULES)


RULES = (Match(), Rejection(), Block(), RecursiveRejection())


def test_greedy():
    warp = Warp.sampling(temperature=0)
    plain = Decoder(LARGE).generate(RAGGED, 40, warp=warp).units
    for rule in RULES:
        drafted = Decoder(LARGE, cascade(), rule, k=3).generate(RAGGED, 40, warp=warp)
        assert all(torch.equal(a, b) for a, b in zip(plain, drafted.units, strict=True))
        assert drafted.report.acceptance_length > 1.2


def test_the_generator_is_left_where_plain_decoding_leaves_it():
    """The inner decoder reads torch's blocks ahead and draws none of its own."""

    def run(drafter):
        generator = torch.Generator().manual_seed(5)
        source = TorchSource(generator, 3, torch.device("cpu"))
        units = Decoder(LARGE, drafter, k=4).generate(RAGGED, 30, source=source).units
        return torch.stack(units), generator.get_state()

    (plain, after_plain), (drafted, after_drafted) = run(None), run(cascade())
    assert torch.equal(plain, drafted) and torch.equal(after_plain, after_drafted)


def test_histories_and_confidence_reach_the_inner_decoder():
    """Processors see the true prefix (agreement is then full), and the outer policy sees the inner confidence."""
    warp = Warp([RepetitionPenaltyLogitsProcessor(3.0)])
    prompt = torch.tensor([[0, 1], [2, 2]])
    output = Decoder(LARGE, cascade(LARGE), k=3).generate(prompt, 20, warp=warp, seed=3)
    assert output.report.acceptance_rate == 1
    report = Decoder(LARGE, cascade(), k=3, policy=Confidence(3, 0.5)).generate(prompt, 40, seed=3).report
    assert 0 < report.drafted < 2 * 3 * report.rounds


def test_three_levels():
    """A cascade in a cascade; the innermost drafter needs no model at all."""
    inner = cascade(SMALL, Jacobi(RandomUnit(3)), k=3)
    outer = CascadeDrafter(Decoder(live(MIDDLE), inner, k=2))
    plain = Decoder(LARGE).generate(RAGGED, 20, seed=1).units
    drafted = Decoder(LARGE, outer, k=4).generate(RAGGED, 20, seed=1).units
    assert all(torch.equal(a, b) for a, b in zip(plain, drafted, strict=True))
    assert_follows(lambda seed, rows: joint(outer, Block(), rows, seed), JOINT, rows=10_000)


def test_targets_that_cannot_be_truncated():
    large, middle = MarkovTarget.random(3, 0), MarkovTarget.random(3, 0)
    table = (middle.table + MarkovTarget.random(3, 1).table) / 2
    inner = Decoder(FromHistory(middle, lambda units, pads: units), MarkovChain(table), k=2)
    prompt = torch.tensor([[0, 1], [2, 2]])
    plain = Decoder(large).generate(prompt, 30).units
    output = Decoder(large, CascadeDrafter(inner), k=4).generate(prompt, 30)
    assert all(torch.equal(a, b) for a, b in zip(plain, output.units, strict=True))
    assert output.report.acceptance_rate == 1


def test_a_transformers_model_as_middle():
    from mmspec.hosts.target import TransformersTarget

    torch.manual_seed(0)
    sizes = dict(vocab_size=40, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    model = LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=64)).eval()
    for weights in model.parameters():
        weights.data.mul_(4 if weights.dim() > 1 else 1)
    target = TransformersTarget(model)

    def prompt(units, pads):
        return {"input_ids": units, "attention_mask": (torch.arange(units.shape[1]) >= pads[:, None]).long()}

    inputs = prompt(torch.tensor([[3, 5, 7, 9], [0, 0, 4, 2]]), torch.tensor([0, 2]))
    inner = Decoder(FromHistory(target, prompt), Jacobi(RandomUnit(40)), k=2)
    plain = Decoder(target).generate(inputs, 12).units
    output = Decoder(target, CascadeDrafter(inner), k=3).generate(inputs, 12)
    assert all(torch.equal(a, b) for a, b in zip(plain, output.units, strict=True))
    assert output.report.acceptance_rate == 1


class Counted(HistoryTarget):
    """Counts how often its table was read for drafts: passes, and prompts that a middle level reads anew."""

    reads = 0

    def start(self, inputs, limit, width):
        self.reads += 1
        return super().start(inputs, limit, width)

    def verify(self, cache, draft, first=0):
        self.reads += 1
        return super().verify(cache, draft, first)


def test_every_read_of_the_targets_weights_is_counted():
    """Acceptance length looks at the outer passes alone: 5.8 with as many reads as plain decoding has."""
    target = Counted(LARGE.table)
    prefill = Counted(LARGE.table)
    prefill.start(RAGGED, 30, 5)
    report = Decoder(target, cascade(target), k=4).generate(RAGGED, 30, seed=1).report
    assert report.equivalent_passes == target.reads - prefill.reads > 2 * report.rounds
    assert f"in {report.rounds} passes ({report.equivalent_passes} equivalent: " in str(report)


def test_of_other_weights_and_without_a_middle_level_equivalent_passes_are_the_passes():
    for drafter in (None, DraftModel(LARGE), cascade(MIDDLE)):
        report = Decoder(LARGE, drafter, k=3).generate(RAGGED, 30, seed=1).report
        assert report.equivalent_passes == report.rounds > 0 and "equivalent" not in str(report)


def test_every_forward_of_a_model_over_a_small_cache_is_counted():
    from mmspec.hosts.budget import BudgetedTarget
    from mmspec.hosts.target import TransformersTarget

    torch.manual_seed(0)
    sizes = dict(vocab_size=40, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    model = LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=64)).eval()
    passes: list[int] = []
    model.model.layers[0].register_forward_hook(lambda *_: passes.append(1))
    target = TransformersTarget(model)
    drafter = CascadeDrafter(Decoder(BudgetedTarget(target, 16, 2), Jacobi(RandomUnit(40)), k=2))
    decoder, prompt = Decoder(target, drafter, k=4), {"input_ids": torch.tensor([[3, 5, 7, 9]])}
    decoder.generate(prompt, 24)  # whose comparisons, since the model has a hook, are passes too
    passes.clear()
    report = decoder.generate(prompt, 24).report
    assert len(passes) == 1 + report.equivalent_passes and report.inner_passes > report.rounds


def test_refusals():
    with pytest.raises(ValueError, match="starts from a prompt; a cascade's middle is FromHistory"):
        CascadeDrafter(Decoder(MIDDLE, k=2))
    with pytest.raises(ValueError, match="inner rule must be exact, Synthetic is not"):
        CascadeDrafter(Decoder(live(MIDDLE), DraftModel(live(SMALL)), Synthetic(), k=2))
    with pytest.raises(ValueError, match="the middle target has 4 unit ids and the target 3"):
        Decoder(LARGE, cascade(HistoryTarget.random(4, 0), Jacobi(RandomUnit(4))))
