"""Multi-token layers that are drawn: how mmspec reads them, and the reference's logits."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from mmspec.hosts.model_info import ModelInfo
from mmspec_ssm.target import declared
from mmspec_text.drafters.heads.cache import HeadCache
from mmspec_text.drafters.heads.mtp.checkpoint import COUNTS
from mmspec_text.drafters.heads.mtp.checkpoint import read_checkpoint as read_layers
from mmspec_text.drafters.heads.mtp.family import FAMILIES as MTP
from mmspec_text.drafters.heads.mtp.network import MtpNetwork
from mmspec_text.drafters.heads.rows import Rows
from tests.draws.head_base import CHAIN, ROWS, Config, Kind, Weights, stepped
from tests.support import mtp_layouts
from tests.support.settled_layers import Unlike

FAMILIES = {family.name: family for family in MTP}
ENDS = ("lm_head.weight", "model.embed_tokens.weight")


@dataclass(frozen=True)
class Deep(Kind):
    """Multi-token layers in a target's checkpoint, of which only they and what they may repeat are written."""

    layout: mtp_layouts.Stored

    @cached_property
    def config(self) -> Config:  # type: ignore[override]
        own = json.loads(json.dumps(self.layout.target.configuration().to_dict()))
        return {**own, self.layout.count: self.layout.depths}

    @cached_property
    def copies(self) -> Mapping[str, str]:  # type: ignore[override]
        of = {key: ENDS[0] if "head" in key else ENDS[1] for key in self.layout.extra}
        return {self.layout.place(key, i): end for key, end in of.items() for i in range(self.layout.depths)}

    @property
    def chained(self) -> bool:
        """Whether a block is no layer of the target's."""
        return bool(self.layout.parts) or self.layout.half

    @cached_property
    def model(self) -> Any:
        """The target."""
        logging.disable_progress_bar()
        logging.set_verbosity(logging.CRITICAL)
        with TemporaryDirectory() as folder:
            return self.layout.loaded(self.layout.save(Path(folder)))

    @cached_property
    def info(self) -> ModelInfo:
        return ModelInfo.of(self.model, declared())

    @cached_property
    def _weights(self) -> Weights:
        named = {ENDS[0]: self.model.get_output_embeddings(), ENDS[1]: self.model.get_input_embeddings()}
        own = {key: value for key, value in self.layout.keys().items() if key not in self.copies}
        return {**own, **{key: end.weight.detach() for key, end in named.items()}}

    def weights(self, shape: Mapping[str, Any]) -> tuple[Weights, Config]:
        return dict(self._weights), {}

    def _drawn(self) -> tuple[Tensor, Tensor, Tensor]:
        g, ids = torch.Generator().manual_seed(3), len(self.model.get_input_embeddings().weight)
        features = torch.randn(1, ROWS, self.model.config.hidden_size, generator=g)
        return features, torch.randint(ids, (1, ROWS), generator=g), torch.randint(ids, (1, 8), generator=g)

    def ours(self, folder: Path) -> Tensor:
        features, units, path = self._drawn()
        network = MtpNetwork(read_layers(str(folder), self.info), self.info)
        network.join_model(self.info)
        cache = HeadCache(network, 1, 40, units.device)
        with torch.no_grad():
            cache.read(Rows(features, torch.tensor([ROWS])), units)
            return stepped(cache.opened(units[:, -1]), units[:, -1], path[:, : CHAIN - 1])

    def theirs(self, w: Weights, config: Config) -> Tensor:
        layout, features, units, path = self.layout, *self._drawn()
        said = [config[name] for name in COUNTS if config.get(name) is not None]
        most = FAMILIES[layout.family].most or max(said, default=1)  # of some files one layer is used, however many
        if any(min(count, most) != layout.depths for count in said[:1]):
            raise Unlike(f"{said} layers, and the file has {layout.depths}")
        reference, dtype = layout.written_out(self.model), dtype_of(w)
        reference.blocks = [block_of(block, dtype) for block in reference.blocks]
        parts = [(key, *key.split(".")[1:]) for key in reference.own]
        reference.own = {
            key: w[f"{layout.place(layout.own[part], int(depth))}.{end}"].float() for key, depth, part, end in parts
        }
        return torch.stack(reference.draft_logits(features[0], units[0].tolist(), path[0, : CHAIN - 1].tolist()))


def dtype_of(w: Weights) -> torch.dtype:
    """The dtype in which weights were stored, by their values."""
    kinds = (torch.bfloat16, torch.float16, torch.float32)
    return next(to for to in kinds if all(torch.equal(x.to(to).to(x.dtype), x) for x in w.values()))


def block_of(block: Any, dtype: torch.dtype) -> Any:
    """A block as a file of this dtype holds it."""
    made = copy.deepcopy(block)
    for part in made.parameters() if isinstance(made, nn.Module) else ():
        part.data = part.data.to(dtype).float()
    return made
