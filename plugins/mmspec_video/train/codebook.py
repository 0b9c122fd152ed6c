"""Entries of a codebook that nothing uses, brought back (Dhariwal et al., arXiv 2005.00341, § 3.1: random restarts).

Frames of a simulator are much the same: without this, most of the codebook is never nearest to anything.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.kits.pictures.models.vq import LlamaGenVQ


class Restarts:
    """Entries that were nearest to nothing for some batches become cells of the next one.

    Args:
        vq: Its codebook is watched.
        every: Batches that are watched before entries start again; a run that is resumed watches as many first.
        until: The last step before which they may.
        seed: Of which cells are taken.
    """

    def __init__(self, vq: LlamaGenVQ, every: int, until: int, seed: int) -> None:
        self.vq, self.every, self.until = vq, every, until
        self._generator = torch.Generator().manual_seed(seed)
        self._watched = 0
        self._used = torch.zeros(len(vq.quantize.entries), dtype=torch.bool)

    @torch.no_grad()
    def before(self, step: int, pictures: Tensor) -> None:
        """Restart what was not used, if it is time; `pictures` are those of the step."""
        if step > self.until or self._watched < self.every:
            return
        cells = self.vq.quant_conv(self.vq.encoder(pictures)).float().permute(0, 2, 3, 1).flatten(0, 2)
        idle = (~self._used).nonzero()[:, 0].to(cells.device)
        chosen = torch.randint(len(cells), (len(idle),), generator=self._generator).to(cells.device)
        self.vq.quantize.embedding.weight[idle] = F.normalize(cells[chosen], dim=-1)
        self._used.zero_()
        self._watched = 0

    def after(self, codes: Tensor) -> None:
        """Codes that a batch had were used."""
        self._used[codes.unique().cpu()] = True
        self._watched += 1
