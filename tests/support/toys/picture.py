"""Toy picture: a grid of codes with a codebook, which image drafters and rules need, and its exact joints.

```python
target, warp = PictureTarget.random(3, 3, seed=3), Warp.sampling(top_k=2, guidance=2.0)
decoder = Decoder(target, drafter, rule, k=3)
assert_follows(lambda seed, rows: drawn(decoder, rows, 5, seed=seed, warp=warp), joint(target, 5, warp))
```
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.testing.oracles import exact_joint
from mmspec.testing.toys.grid import GridTarget

KIND = 1


class PictureTarget(GridTarget):
    """`GridTarget` with a codebook."""

    offers = GridTarget.offers | {"window", "codebook"}

    def __init__(self, width: int, table: Tensor) -> None:
        super().__init__(width, table)
        self.grid = width  # codes per row
        # `[vocab, 3]`: embeddings of the codes, the same in every picture of that vocabulary
        self.codebook = torch.randn(table.shape[-1], 3, generator=torch.Generator().manual_seed(5))


def drawn(decoder: Decoder, rows: int, length: int, *, seed: int, warp: Warp, end: int | None = None) -> Tensor:
    """Codes of pictures of the class `KIND`: `[rows, length]`; the id `vocab` stands behind an end."""
    state = decoder.start(torch.full((rows,), KIND), length, seed=seed, warp=warp, ends=end)
    while not state.finished:
        decoder.advance(state)
    assert not state.report.faults, "the drafter failed: this would be plain decoding"
    codes = state.history[:, :length]
    if end is None:
        return codes
    assert decoder.target.vocab is not None
    ends = codes == end
    return codes.masked_fill(ends.cumsum(1) > ends.long(), decoder.target.vocab)


def next_distribution(target: GridTarget, warp: Warp) -> Callable[[Sequence[int]], Tensor]:
    """Probabilities `[vocab]` of the code after those given, under guidance and element-wise processors."""

    def distribution(codes: Sequence[int]) -> Tensor:
        logits = target.next_logits(KIND, tuple(codes), 1.0 if warp.guidance is None else warp.guidance)[None]
        for processor in warp.processors:
            logits = processor(torch.zeros(1, 1, dtype=torch.int64), logits)
        return logits[0].softmax(-1)

    return distribution


def joint(target: GridTarget, length: int, warp: Warp, end: int | None = None) -> Tensor:
    """Joint of the first `length` codes; where one of them may end a row, the id `vocab` stands for nothing."""
    assert target.vocab is not None
    distribution, vocab = next_distribution(target, warp), target.vocab
    if end is None:
        return exact_joint(distribution, length, vocab)

    def ended(codes: tuple[int, ...]) -> Tensor:
        if end in codes or vocab in codes:
            return torch.eye(vocab + 1)[vocab]
        return torch.nn.functional.pad(distribution(codes), (0, 1))

    return exact_joint(ended, length, vocab + 1)
