"""Our output against plain decoding's for the same seed: unit by unit, up to the first near-tie of a row.

Passes over different numbers of rows and nodes differ by rounding, so that a draw whose best two units are closer than
that may fall either way (`mmspec.compare.equality` says the same of transformers' output).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.compare.equality import NEAR_TIE, NearTie
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp


def assert_same_units(
    ours: Sequence[Tensor],
    plain: Sequence[Tensor],
    margin: Callable[[int, int, int], float],
) -> list[NearTie]:
    """Rows are equal, each up to its first near-tie.

    Args:
        ours: `[emitted]` for every row.
        plain: The units of plain decoding.
        margin: The margin by which a unit lost a draw, as a function of row, position and unit (`lost_by`).

    Returns:
        The near-ties, which are printed, too.

    Raises:
        AssertionError: A wrong unit; row, position and margin are named.
    """
    ties = []
    for row, (mine, right) in enumerate(zip(ours, plain, strict=True)):
        assert mine.shape == right.shape, f"row {row}: {len(mine)} units instead of {len(right)}"
        if torch.equal(mine, right):
            continue
        position = int((mine != right).int().argmax())
        by = margin(row, position, int(mine[position]))
        assert by < NEAR_TIE, (
            f"row {row}, unit {position}: got {int(mine[position])} instead of {int(right[position])}, margin {by:.3g}"
        )
        ties.append(NearTie(row, position, by))
        print(ties[-1])
    return ties


def lost_by(target: Any, inputs: Any, limit: int, seed: Sequence[int], warp: Warp) -> Callable[[int, int, int], float]:
    """`margin` for `assert_same_units`: decodes plainly up to the draw in question and compares log(p / E).

    Args:
        target: A discrete target.
        inputs: The prompts.
        limit: Units of each row.
        seed: One seed per row.
        warp: The warp of the call, which samples.
    """

    def margin(row: int, position: int, unit: int) -> float:
        decoder = Decoder(target)
        state = decoder.start(inputs, limit, seed=seed, warp=warp)
        assert position, "the first unit comes from the prefill, which is the same in both"
        while state.host.emitted[row] < position:
            decoder.advance(state)
        pending = decoder.speculate(state)
        distribution: Any = pending.scores.distribution
        chances = distribution.race(state.round().by_position(pending.draft.index))[row, 0].log()
        return float(chances.max() - chances[unit])

    return margin
