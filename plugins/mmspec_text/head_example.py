"""What the conformance kit tries drafters with trained heads on: tiny heads with random weights."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from mmspec.hosts.model_info import ModelInfo
from mmspec.testing.conformance.example import Example
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.apple_mtp import AppleMTPOptions
from mmspec_text.drafters.clover import CloverNetwork, CloverSizes
from mmspec_text.drafters.dflash import DFlashOptions
from mmspec_text.drafters.eagle import EagleOptions
from mmspec_text.drafters.falcon import FalconOptions
from mmspec_text.drafters.heads.apple.example import random_masks
from mmspec_text.drafters.heads.dflash.example import PRODUCT, random_dflash
from mmspec_text.drafters.heads.eagle.example import THIRD, random_checkpoint
from mmspec_text.drafters.heads.layers import BlockSizes
from mmspec_text.drafters.heads.mtp.example import random_checkpoint as random_layers
from mmspec_text.drafters.heads.mtp.family import DEEPSEEK
from mmspec_text.drafters.heads.pathwise.checkpoint import PathCheckpoint, PathSizes, random_weights
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions
from mmspec_text.drafters.hydra import HydraSizes, hydra_network
from mmspec_text.drafters.medusa import MedusaNetwork, MedusaSizes
from mmspec_text.drafters.mlp_speculator import LstmNetwork, MlpNetwork, SpeculatorSizes
from mmspec_text.drafters.mtp import MtpOptions
from mmspec_text.drafters.p_eagle import PEagleOptions
from mmspec_text.drafters.ppd import PPDOptions, Prompts


def eagle() -> list[Example]:
    """A head in every form of draft."""
    head = random_checkpoint()
    return [
        Example(options=EagleOptions(model=head, form="chain", probe=False)),
        Example(options=EagleOptions(model=head, form="rerank", width=3, nodes=8, probe=False)),
        Example(options=EagleOptions(model=head, form="branching", branching=(2, 2, 1), probe=False)),
        Example(options=EagleOptions(model=head, form="beam", width=3, probe=False)),
    ]


def dflash() -> list[Example]:
    """A product in every form of draft, and Markov heads."""
    head = random_dflash()
    gated, rnn = (random_dflash(replace(PRODUCT, sequel=kind, rank=4, from_root=True)) for kind in ("gated", "rnn"))
    return [
        Example(options=DFlashOptions(model=head, form="chain", probe=False)),
        Example(options=DFlashOptions(model=head, form="rerank", width=3, nodes=8, probe=False)),
        Example(options=DFlashOptions(model=gated, form="branching", branching=(2, 2, 1), probe=False)),
        Example(options=DFlashOptions(model=rnn, form="beam", width=3, probe=False)),
    ]


def p_eagle() -> list[Example]:
    """A head in every form of draft."""
    head = replace(random_checkpoint(replace(THIRD, layers=2, parallel=True)), mask_token=3)
    return [
        Example(options=PEagleOptions(model=head, form="chain", probe=False)),
        Example(options=PEagleOptions(model=head, form="rerank", width=3, nodes=8, probe=False)),
        Example(options=PEagleOptions(model=head, form="branching", branching=(2, 2, 1), probe=False)),
        Example(options=PEagleOptions(model=head, form="beam", width=3, probe=False)),
    ]


def falcon() -> list[Example]:
    """A head of blocks of two units in every form of draft."""
    none = frozenset[str]()
    first = replace(THIRD, fused=False, projected=False, features=1, final_norm=False, own_output=False)
    head = random_checkpoint(replace(first, first_norms=none, block=2))
    return [
        Example(options=FalconOptions(model=head, form="chain")),
        Example(options=FalconOptions(model=head, form="rerank", width=3, nodes=8)),
        Example(options=FalconOptions(model=head, form="branching", branching=(2, 2, 1))),
        Example(options=FalconOptions(model=head, form="beam", width=3)),
    ]


def ppd() -> list[Example]:
    """Random prompt tokens in every form of draft."""
    embeddings = torch.randn(3, 16, generator=torch.Generator().manual_seed(0), device="cpu")
    prompts = Prompts("random", embeddings * 0.02)
    return [
        Example(options=PPDOptions(model=prompts, form="chain")),
        Example(options=PPDOptions(model=prompts, form="rerank", width=3, nodes=8)),
        Example(options=PPDOptions(model=prompts, form="branching", branching=(2, 2, 1))),
        Example(options=PPDOptions(model=prompts, form="beam", width=3)),
    ]


def apple_mtp() -> list[Example]:
    """Random masks in every form of draft."""
    masks = random_masks()
    return [
        Example(options=AppleMTPOptions(model=masks, form="chain")),
        Example(options=AppleMTPOptions(model=masks, form="rerank", width=3, nodes=8)),
        Example(options=AppleMTPOptions(model=masks, form="branching", branching=(2, 2, 1))),
        Example(options=AppleMTPOptions(model=masks, form="beam", width=3)),
    ]


def path_head(make: Callable[[Any, int], Any], sizes: PathSizes, *forms: str) -> list[Example]:
    """A head of random weights that steps along paths, in forms of draft; one of them tries every form."""
    head = PathCheckpoint("random", "random", sizes, make, random_weights(make, sizes, 0))
    sizes_of: dict[str, Any] = {"width": 3, "nodes": 8, "branching": (2, 2, 1)}
    return [Example(options=PathOptions(model=head, form=form, probe=False, **sizes_of)) for form in forms]


def medusa() -> list[Example]:
    """Three heads of two blocks."""
    sizes = MedusaSizes(3, 16, 16, 7, 7, own_embedding=True, layers=2)
    return path_head(MedusaNetwork, sizes, "chain", "rerank")


def hydra() -> list[Example]:
    """Hydra's heads and Hydra++'s."""
    hydra = HydraSizes(3, 16, 16, 7, 7, own_embedding=False, places=(0, 1))
    prefix = HydraSizes(3, 16, 16, 7, 7, own_embedding=False, places=(1, 3), prefix=BlockSizes(16, 24, 2, 1, 8))
    return [*path_head(hydra_network, hydra, "chain"), *path_head(hydra_network, prefix, "rerank")]


def clover() -> list[Example]:
    """One cell for all depths."""
    block = BlockSizes(16, 24, 2, 1, 8)
    sizes = CloverSizes(3, 16, 16, 7, 7, own_embedding=False, block=block, cells=1)
    return path_head(CloverNetwork, sizes, "chain", "rerank")


def mlp_speculator() -> list[Example]:
    """A speculator whose depths have weights of their own."""
    sizes = SpeculatorSizes(3, 16, 12, 7, 7, own_embedding=True, inner=12, tied=False)
    return path_head(MlpNetwork, sizes, "chain", "rerank", "branching", "beam")


def arctic_lstm() -> list[Example]:
    """A speculator of three units."""
    sizes = SpeculatorSizes(3, 16, 12, 7, 7, own_embedding=True, inner=12)
    return path_head(LstmNetwork, sizes, "chain", "rerank")


def mtp() -> list[Example]:
    """One layer that is recycled, in every form of draft, and two layers."""
    model_info = ModelInfo.of(llama())
    one, two = random_layers(model_info), random_layers(model_info, DEEPSEEK, 2)
    return [
        Example(options=MtpOptions(model=one, form="chain", probe=False)),
        Example(options=MtpOptions(model=one, form="rerank", width=3, nodes=8, probe=False)),
        Example(options=MtpOptions(model=one, form="branching", branching=(2, 2, 1), probe=False)),
        Example(options=MtpOptions(model=two, form="beam", width=3, probe=False)),
    ]
