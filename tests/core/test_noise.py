"""Numbers with an address: known answers, disjoint streams, independence of the batch."""

import itertools

import pytest
import torch
from scipy.stats import expon, kstest, norm
from torch.fx.experimental.proxy_tensor import make_fx

from mmspec.core.noise import Counting, DraftNoise, Round, Substream
from mmspec.core.philox import PhiloxNoise, PhiloxSource, philox, uniform_of
from mmspec.core.torch_noise import TorchSource
from mmspec.core.tree import TreeIndex

# Random123's kat_vectors, philox4x32 10: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[torch.Tensor]:
    return [torch.tensor([int(word, 16)]) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_gives_the_known_answers(counter, key, result):
    assert [int(w) for w in philox(words(counter), words(key))] == [int(w) for w in words(result)]


def round_of(rows: int, emitted: int = 0, seed: int = 3) -> Round:
    return Round(PhiloxSource.seeded(seed, rows), torch.full((rows,), emitted), [emitted] * rows)


@pytest.mark.parametrize("drawn", ["exponential", "uniform"])
def test_no_compiler_takes_large_numbers_for_indices(drawn: str) -> None:
    """Inductor folds `arange * constant` into an index, which Triton's kernels hold in int32."""
    key, place = torch.ones(2, 2, dtype=torch.int64), torch.arange(3).expand(2, -1)

    def draw(key: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        noise = PhiloxNoise(key, place, place[:, :1])
        return noise.exponential(9) if drawn == "exponential" else noise.uniform()

    def indices(node: torch.fx.Node) -> bool:
        """True if a node's numbers are a function of places alone, by arithmetic that an index may have."""
        if node.op != "call_function" or "bitwise" in str(node.target):
            return False
        return "arange" in str(node.target) or any(map(indices, node.all_input_nodes))

    nodes = make_fx(draw)(key, place).graph.nodes
    constants = [(node, each) for node in nodes for each in node.args if isinstance(each, int) and each > 2**31]
    assert constants
    assert not [node for node, each in constants if indices(node)]


def test_a_row_that_waited_goes_on_with_its_own_numbers() -> None:
    """While it waits at a pause the host counts it with the slowest row, so that buffered noise can be dropped."""
    ahead, alone = PhiloxSource.seeded([1, 2], 2), PhiloxSource.seeded([1, 2], 2)
    ahead.by_position(torch.tensor([10, 20]), [10, 10], 0).exponential(5)
    there = torch.tensor([20, 20])
    numbers = ahead.by_position(there, [20, 20], 3).exponential(5)
    assert torch.equal(numbers, alone.by_tensors(there, 3).exponential(5))


def test_lanes_positions_and_rounds_share_no_number():
    rounds = [round_of(2, emitted) for emitted in range(4)]
    by_position = [
        rounds[0].source.by_position(rounds[0].emitted, [0, 0], 7).substream(substream).exponential(8)
        for substream in Substream
    ]
    fresh = [r.fresh(8).substream(substream).exponential(8) for r, substream in itertools.product(rounds, Substream)]
    numbers = torch.cat([block.flatten() for block in by_position + fresh])
    # 32-bit words of ~4,500 draws: two are equal by chance twice in 1,000 seeds.
    assert len(numbers.unique()) == len(numbers) == 2 * 8 * 8 * len(Substream) * 5


def test_sparse_ids_see_the_numbers_of_the_dense_vocabulary():
    noise = round_of(3).fresh(4)
    ids = torch.stack([torch.randperm(37, generator=torch.Generator().manual_seed(i))[:9] for i in range(12)]).view(
        3, 4, 9
    )
    assert torch.equal(noise.exponential_at(ids), noise.exponential(37).gather(-1, ids))


def test_a_row_does_not_see_its_batch():
    few, many = round_of(2).fresh(3), round_of(9).fresh(3)
    assert torch.equal(few.exponential(5), many.exponential(5)[:2])
    seeds = [11, 7, 5]
    there = PhiloxSource.seeded(seeds, 3).key
    assert torch.equal(there.flip(0), PhiloxSource.seeded(seeds[::-1], 3).key)
    assert len(PhiloxSource.seeded(0, 1000).key.unique(dim=0)) == 1000


def test_large_and_negative_seeds_are_seeds():
    keys = [tuple(PhiloxSource.seeded(seed, 1).key[0].tolist()) for seed in (0, 1, -1, 2**32, 2**33, 2**63 - 1)]
    assert len(set(keys)) == len(keys)


def test_as_many_seeds_as_rows():
    with pytest.raises(ValueError, match="2 seeds for 3 rows"):
        PhiloxSource.seeded([1, 2], 3)


def test_uniforms_stay_inside_and_keep_their_order():
    ends = uniform_of(torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1]))
    assert (ends > 0).all() and (ends < 1).all() and (ends.diff() >= 0).all() and ends[1] > ends[0]
    assert (-torch.log1p(-ends)).isfinite().all() and (-torch.log1p(-ends) > 0).all()


def test_distributions():
    noise = PhiloxNoise(PhiloxSource.seeded(1, 1).key, torch.arange(20_000)[None], torch.zeros(1, 1, dtype=torch.int64))
    assert kstest(noise.uniform()[0].double(), "uniform").pvalue > 1e-4
    assert kstest(noise.exponential(2)[0, :, 1].double(), expon.cdf).pvalue > 1e-4
    normal = noise.normal(3)[0].double()
    for x in (*normal.T, normal.sum(1) / 3**0.5):
        assert kstest(x, norm.cdf).pvalue > 1e-4
    assert torch.equal(noise.normal(3).reshape(1, -1, 3), noise.normal(3, 1)[..., 0])
    assert noise.normal().shape == (1, 20_000)


def test_match_and_its_drafter_meet_at_the_same_numbers():
    """The draw at a node is about position emitted + depth; a drafted node about the position of its parent's draw."""
    tree = TreeIndex.static([-1, 0, 0, 1, 2, 3])
    at = round_of(2, emitted=5)
    drawn = at.by_position(tree).exponential(4)
    shared = DraftNoise(at, shared=True)
    for node, (parent, depth) in enumerate(zip([0, 0, 1, 2, 3], [1, 1, 2, 2, 3], strict=True), start=1):
        assert torch.equal(shared.level(depth, node, 1).exponential(4)[:, 0], drawn[:, parent])
    assert torch.equal(drawn[:, 1], drawn[:, 2]) and not torch.equal(drawn[:, 0], drawn[:, 1])
    chain = round_of(2, emitted=5).by_position(TreeIndex.chain(4)).exponential(4)
    assert torch.equal(shared.chain(1, 3).exponential(4), chain[:, :3])
    later = round_of(2, emitted=7).by_position(TreeIndex.chain(2)).exponential(4)
    assert torch.equal(chain[:, 2:], later)


def test_every_other_drafter_has_numbers_of_its_own():
    at = round_of(2, emitted=5)
    own = DraftNoise(at, shared=False)
    level, chain = own.level(1, 1, 3).exponential(4), own.chain(1, 3).exponential(4)
    assert torch.equal(level, chain) and len(level.unique()) == level.numel()
    theirs = [
        at.fresh(4).substream(substream).exponential(4)
        for substream in (Substream.UNIT, Substream.COIN, Substream.RESIDUAL)
    ]
    theirs.append(at.by_position(TreeIndex.chain(4)).exponential(4))
    assert not any(torch.isin(level, other).any() for other in theirs)


def test_nodes_that_share_an_address_share_sparse_noise_too():
    tree = TreeIndex.static([-1, 0, 0, 1, 2])
    noise = round_of(2, emitted=3).by_position(tree)
    ids = torch.tensor([4, 0, 9]).expand(2, tree.nodes, -1)
    sparse = noise.exponential_at(ids)
    assert torch.equal(sparse, noise.exponential(12).gather(-1, ids))
    assert torch.equal(sparse[:, 1], sparse[:, 2]) and not torch.equal(sparse[:, 0], sparse[:, 1])


def test_what_is_made_ahead_is_what_would_be_made_now():
    """Rows at their own places, further on and back again, drafts of any length, several vocabularies in turn."""
    source, generator = PhiloxSource.seeded([5, 6, 7], 3), torch.Generator().manual_seed(0)
    place = torch.zeros(3, dtype=torch.int64)
    for turn in range(120):
        place = (place + torch.randint(-1, 5, (3,), generator=generator)).clamp(min=0)
        if turn > 60:
            place = place.max().expand(3)
        deepest = int(torch.randint(0, 70, (), generator=generator)) if turn % 9 == 0 else turn % 4
        size = (17, 33)[turn % 2]
        noise = source.by_position(place, place.tolist(), deepest)
        address = place[:, None] + torch.arange(deepest + 1)
        direct = PhiloxNoise(source.key, address, torch.zeros(3, 1, dtype=torch.int64))
        assert torch.equal(noise.exponential(size), direct.exponential(size))
        assert torch.equal(noise.substream(Substream.COIN).uniform(), direct.substream(Substream.COIN).uniform())
        ids = torch.randint(size, (3, deepest + 1, 2), generator=generator)
        assert torch.equal(noise.exponential_at(ids), direct.exponential_at(ids))


def test_noise_is_made_once_for_many_positions(monkeypatch):
    made, exponential = [], PhiloxNoise.exponential
    monkeypatch.setattr(PhiloxNoise, "exponential", lambda noise, size: made.append(size) or exponential(noise, size))
    source = PhiloxSource.seeded(0, 2)
    for place in range(64):
        source.by_position(torch.full((2,), place), [place] * 2, 0).exponential(11)
    assert made == [11]
    source.by_position(torch.zeros(2, dtype=torch.int64), [0, 0], 0).exponential(2**20)
    assert source._buffers.keys() == {11}, "a large vocabulary is not kept"


@pytest.mark.parametrize(
    "source", [PhiloxSource.seeded(5, 3), TorchSource(torch.Generator().manual_seed(5), 3, torch.device("cpu"))]
)
def test_fresh_numbers_follow_from_the_key(source):
    """Captured rounds compute them from it."""
    emitted = torch.tensor([0, 4, 9])
    assert isinstance(source, Counting)
    one, other = (each.fresh(emitted, 1, 4) for each in (source, PhiloxSource(source.fresh_key)))
    assert torch.equal(one.exponential(5), other.exponential(5)) and torch.equal(one.uniform(), other.uniform())
