"""The numbers of stock sampling: the same units, and the generator ends where stock decoding leaves it."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.noise import Substream, default_generator
from mmspec.core.torch_noise import TorchSource
from mmspec.testing.toys.history import HistoryTarget

LARGE = HistoryTarget.random(5, seed=0)


def stock(prompts: list[list[int]], limit: int, generator: torch.Generator, end: int | None = None) -> list[list[int]]:
    """`model.generate(do_sample=True)` as transformers does it: every row draws at every step until all have ended."""
    rows, ended = [list(p) for p in prompts], [False] * len(prompts)
    for _ in range(limit):
        probs = torch.stack([LARGE.next_distribution(row)(()) for row in rows])
        for b, unit in enumerate(torch.multinomial(probs, 1, generator=generator)[:, 0].tolist()):
            if not ended[b]:
                rows[b].append(unit)
                ended[b] = unit == end
        if all(ended):
            break
    return [row[len(p) :] for row, p in zip(rows, prompts, strict=True)]


def blocks(source: TorchSource, host_emitted: list[int], deepest: int, size: int) -> torch.Tensor:
    """`[batch, deepest + 1, size]`: every row's numbers of the positions `host_emitted + 0 … deepest`."""
    return source.by_position(torch.tensor(host_emitted), host_emitted, deepest).exponential(size)


@pytest.mark.parametrize("end", [None, 2])
@pytest.mark.parametrize("drafter", [None, DraftModel(LARGE.near(1, 0.2)), DraftModel(HistoryTarget.random(5, 9))])
def test_decoding_is_stock_sampling(drafter, end):
    prompts = [[0, 1], [3, 3], [4, 2]]
    mine, theirs = torch.Generator().manual_seed(8), torch.Generator().manual_seed(8)
    source = TorchSource(mine, 3, torch.device("cpu"))
    output = Decoder(LARGE, drafter, k=4).generate(torch.tensor(prompts), 23, source=source, ends=end)
    assert [units.tolist() for units in output.units] == stock(prompts, 23, theirs, end)
    assert torch.equal(mine.get_state(), theirs.get_state())
    if drafter is not None and end is None:
        assert output.report.acceptance_length > 1


def test_ragged_rows_see_their_own_blocks():
    probs = torch.softmax(
        torch.randn(6, 2, 7, generator=torch.Generator().manual_seed(0)), -1
    )  # [position, row, vocab]
    theirs = torch.Generator().manual_seed(1)
    expected = torch.stack([torch.multinomial(p, 1, generator=theirs)[:, 0] for p in probs], 1)  # [row, position]
    mine = torch.Generator().manual_seed(1)
    source = TorchSource(mine, 2, torch.device("cpu"))

    def drawn(host_emitted: list[int], deepest: int) -> torch.Tensor:
        source.begin(host_emitted)
        distribution = torch.stack([probs[h : h + deepest + 1, b] for b, h in enumerate(host_emitted)])
        return Categorical(distribution).draw(source.by_position(torch.tensor(host_emitted), host_emitted, deepest))

    assert torch.equal(drawn([0, 0], 3), expected[:, :4])
    assert torch.equal(drawn([1, 3], 2), torch.stack([expected[0, 1:4], expected[1, 3:6]]))
    assert torch.equal(drawn([4, 3], 1), torch.stack([expected[0, 4:6], expected[1, 3:5]]))
    source.finish(6)
    assert torch.equal(mine.get_state(), theirs.get_state())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_torchs_default_dtype_is_not_that_of_the_blocks(dtype):
    """`multinomial` draws in the dtype of its probabilities: coarser numbers have another winner now and then."""
    probs, theirs = torch.full((500, 64), 1 / 64), torch.Generator().manual_seed(4)
    expected = torch.multinomial(probs, 1, generator=theirs)[:, 0]
    torch.set_default_dtype(dtype)
    try:
        source = TorchSource(torch.Generator().manual_seed(4), 500, torch.device("cpu"))
        noise = source.by_position(torch.zeros(500, dtype=torch.int64), [0] * 500, 0)
        assert noise.exponential(64).dtype == torch.float32
        assert torch.equal(Categorical(probs[:, None]).draw(noise)[:, 0], expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_finish_goes_back_over_what_was_drawn_ahead():
    mine, theirs = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    source = TorchSource(mine, 2, torch.device("cpu"))
    blocks(source, [0, 0], 9, 7)
    source.begin([2, 4])
    source.finish(5)
    for _ in range(5):
        torch.empty(2, 7).exponential_(1, generator=theirs)
    assert torch.equal(mine.get_state(), theirs.get_state())


def test_only_dense_races_can_use_it():
    noise = TorchSource(torch.Generator(), 2, torch.device("cpu")).by_position(torch.tensor([0, 0]), [0, 0], 1)
    assert noise.substream(Substream.UNIT) is noise
    for use in (
        lambda: noise.substream(Substream.COIN),
        lambda: noise.uniform(),
        lambda: noise.normal(2),
        lambda: noise.exponential_at(torch.zeros(2, 2, 1, dtype=torch.int64)),
    ):
        with pytest.raises(ValueError):
            use()


def test_the_default_generator_is_torchs():
    assert default_generator(torch.device("cpu")) is torch.default_generator


def test_memory_follows_the_depth_and_not_the_spread_of_the_rows():
    rows, size, depth = 3, 11, 4
    source = TorchSource(torch.Generator().manual_seed(6), rows, torch.device("cpu"))
    theirs = torch.Generator().manual_seed(6)
    expected = [torch.empty(rows, size).exponential_(1, generator=theirs) for _ in range(420)]
    at, most = [0] * rows, 0
    for round in range(100):
        source.begin(at)
        got = blocks(source, at, depth, size)
        most = max(most, source._ring.numel())
        for row, first in enumerate(at):
            assert torch.equal(got[row], torch.stack([expected[first + d][row] for d in range(depth + 1)]))
        at = [at[0] + 1, at[1] + 1 + round % 2, at[2] + 4]
    assert max(at) - min(at) == 300 and most <= 2 * rows * 2 * (depth + 1) * size
    source.begin(at)
    blocks(source, at, depth, size)
    source.finish(402)
    assert torch.equal(source._generator.get_state(), state_after(6, 402, rows, size))


def state_after(seed: int, blocks: int, rows: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(blocks):
        torch.empty(rows, size).exponential_(1, generator=generator)
    return generator.get_state()


def test_rows_that_keep_step_make_no_block_twice(monkeypatch):
    source, made = TorchSource(torch.Generator(), 2, torch.device("cpu")), []
    again = source._again
    monkeypatch.setattr(source, "_again", lambda position: made.append(position) or again(position))
    at = [0, 0]
    for step in range(20):
        source.begin(at)
        for depth in range(4):  # a draft model reads positions one by one
            blocks(source, [n + depth for n in at], 0, 7)
        blocks(source, at, 4, 7)
        at = [at[0] + 1 + step % 3, at[1] + 1 + (step + 1) % 3]
    assert made == []


def test_a_block_after_numbers_of_others_is_made_again_as_it_was():
    generator = torch.Generator().manual_seed(2)
    source = TorchSource(generator, 2, torch.device("cpu"))
    source.begin([0, 0])
    drawn = []
    for _ in range(40):
        drawn.append(blocks(source, [len(drawn)] * 2, 0, 5)[:, 0])
        torch.rand(3, generator=generator)  # a criterion draws
    before = generator.get_state()
    assert torch.equal(blocks(source, [0, 38], 1, 5)[0], torch.stack([drawn[0][0], drawn[1][0]]))
    assert torch.equal(blocks(source, [20, 20], 9, 5), torch.stack(drawn[20:30], 1))
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_may_be_ahead_of_what_the_host_knows(rows):
    """Told one round late, and at the end not at all, the source has the same numbers, and finishes the same."""
    size, depth, late = 7, 3, torch.Generator().manual_seed(6)
    source, theirs = TorchSource(late, rows, torch.device("cpu")), torch.Generator().manual_seed(6)
    expected = torch.stack([torch.empty(rows, size).exponential_(1, generator=theirs) for _ in range(120)], 1)
    at, told = [0] * rows, [0] * rows
    for round in range(25):
        source.begin(told)
        got = source.by_tensors(torch.tensor(at), depth, depth + 1 if round else 0).exponential(size)
        assert torch.equal(got, torch.stack([expected[row, now : now + depth + 1] for row, now in enumerate(at)]))
        told, at = at, [now + 1 + (round + row) % (depth + 1) for row, now in enumerate(at)]
    assert source._ring.numel() <= 2 * rows * (depth + 1) * size * (1 + (rows > 1))
    source.finish(max(told))
    assert torch.equal(late.get_state(), state_after(6, max(told), rows, size))


def test_nodes_that_share_an_address_have_one_stream():
    source = TorchSource(torch.Generator().manual_seed(0), 1, torch.device("cpu"))
    shared = source.by_position(torch.zeros(1, dtype=torch.int64), [0], 1).at(torch.tensor([[0, 0, 1]]))
    mask = torch.tensor([[True, False, True]])
    assert torch.equal(shared.where(mask, Substream.UNIT).exponential(5), shared.exponential(5))
    with pytest.raises(ValueError, match="one stream"):
        shared.where(mask, Substream.COIN)
