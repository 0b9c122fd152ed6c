"""Random restarts of codebook entries that are not used (Dhariwal et al., arXiv 2005.00341, § 3.1).

Frames of a simulator are similar: without restarts, most entries are never the nearest to any latent.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.kits.pictures.models.vq import LlamaGenVQ


class Restarts:
    """Replace entries that no latent of some batches was nearest to by latents of the next batch.

    Args:
        vq: The VQ whose codebook is watched.
        every: Batches to watch before entries are replaced; a resumed run watches as many first.
        until: The last step at which entries are replaced.
        seed: Seed of the choice of latents.
    """

    def __init__(self, vq: LlamaGenVQ, every: int, until: int, seed: int) -> None:
        self.vq, self.every, self.until = vq, every, until
        self._generator = torch.Generator().manual_seed(seed)
        self._watched = 0
        self._used = torch.zeros(len(vq.quantize.entries), dtype=torch.bool)

    @torch.no_grad()
    def before(self, step: int, pictures: Tensor) -> None:
        """Replace unused entries, if enough batches were watched; `pictures` are those of the step."""
        if step > self.until or self._watched < self.every:
            return
        cells = self.vq.quant_conv(self.vq.encoder(pictures)).float().permute(0, 2, 3, 1).flatten(0, 2)
        idle = (~self._used).nonzero()[:, 0].to(cells.device)
        chosen = torch.randint(len(cells), (len(idle),), generator=self._generator).to(cells.device)
        self.vq.quantize.embedding.weight[idle] = F.normalize(cells[chosen], dim=-1)
        self._used.zero_()
        self._watched = 0

    def after(self, codes: Tensor) -> None:
        """Record the codes of a batch as used."""
        self._used[codes.unique().cpu()] = True
        self._watched += 1
