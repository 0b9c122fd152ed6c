"""Drafters with trained heads: tiny heads with random weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Gemma4TextConfig

from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.target import TransformersTarget
from mmspec.testing import Example
from mmspec.testing.tiny_models import SIZES, llama, prompt
from mmspec_text.drafters.dflash import DFlashOptions
from mmspec_text.drafters.eagle import EagleOptions
from mmspec_text.drafters.falcon import FalconOptions
from mmspec_text.drafters.gated_lora import GatedAdapter, GatedLoraOptions
from mmspec_text.drafters.gemma4_assistant import Assistant, AssistantOptions, Network, TextConfig
from mmspec_text.drafters.heads.dflash.checkpoint import DFlashCheckpoint
from mmspec_text.drafters.heads.dflash.family import DFLASH, DFlashArchitecture, Sight
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.eagle.checkpoint import Checkpoint
from mmspec_text.drafters.heads.eagle.family import EAGLE, Architecture
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.gated import GatedNetwork
from mmspec_text.drafters.heads.layers import BlockSizes
from mmspec_text.drafters.heads.mtp.checkpoint import MtpCheckpoint
from mmspec_text.drafters.heads.mtp.family import DEEPSEEK, MIMO, Family, own_keys
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions
from mmspec_text.drafters.heads.pathwise.head import PathCheckpoint, PathSizes
from mmspec_text.drafters.hydra import HydraSizes, hydra_network
from mmspec_text.drafters.medusa import MedusaNetwork, MedusaSizes
from mmspec_text.drafters.mlp_speculator import LstmNetwork, MlpNetwork, SpeculatorSizes
from mmspec_text.drafters.mtp import MtpOptions
from mmspec_text.drafters.p_eagle import PEagleOptions
from mmspec_text.drafters.ppd import PPDOptions, Prompts
from tests.support.random_models import random_model

THIRD = Architecture(
    hidden=16,
    intermediate=24,
    heads=2,
    key_heads=1,
    head_dim=8,
    layers=1,
    vocab=7,
    draft_vocab=7,
    features=3,
    target_hidden=16,
    fused=True,
    projected=True,
    own_embedding=False,
    own_output=True,
    final_norm=True,
    embedding_norm=False,
    first_norms=frozenset({"input_layernorm", "hidden_norm"}),
    rope={"rope_type": "default", "rope_theta": 10000.0},
)
"""A head of EAGLE-3 for the Llama of `mmspec.testing.tiny_models`."""


def random_weights(make: Callable[[], nn.Module], seed: int, gain: float = 2.0) -> dict[str, Tensor]:
    """Weights in float32, by the names of a network; norms are random, too."""
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in make().state_dict().items()}
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for key, shape in shapes.items():
        drawn = torch.randn(shape, generator=generator, device="cpu")
        weights[key] = drawn * gain / shape[-1] ** 0.5 if len(shape) > 1 else 1 + 0.3 * drawn
    return weights


def random_checkpoint(
    architecture: Architecture = THIRD,
    layer_ids: Sequence[int] = (0, 1, 2),
    seed: int = 0,
    maps: Mapping[str, Tensor] | None = None,
) -> Checkpoint:
    """A head of random weights, with the maps `d2t` and `t2d` of a pruned vocabulary if there are any."""
    weights = {**random_weights(lambda: EagleNetwork(architecture, architecture.vocab), seed), **(maps or {})}
    return Checkpoint("random", EAGLE, architecture, tuple(layer_ids), weights, ())


PRODUCT = DFlashArchitecture(
    hidden=16,
    intermediate=24,
    heads=2,
    key_heads=1,
    head_dim=8,
    sights=(Sight(), Sight()),
    vocab=7,
    draft_vocab=7,
    features=2,
    target_hidden=16,
    own_embedding=False,
    own_output=False,
    own_mask=False,
    block=5,
    mask_token=3,
    from_root=False,
    rope={"rope_type": "default", "rope_theta": 10000.0},
)
"""A head of DFlash for the Llama of `mmspec.testing.tiny_models`."""


def random_dflash(
    architecture: DFlashArchitecture = PRODUCT,
    layer_ids: Sequence[int] = (0, 1),
    seed: int = 0,
    maps: Mapping[str, Tensor] | None = None,
    gain: float = 2.0,
) -> DFlashCheckpoint:
    """A head of random weights in float32, with the maps `d2t` and `t2d` of a pruned vocabulary if there are any."""
    weights = {**(maps or {}), **random_weights(lambda: DFlashNetwork(architecture, 1), seed, gain)}
    return DFlashCheckpoint("random", DFLASH, architecture, tuple(layer_ids), weights, ())


def random_layers(
    model_info: ModelInfo, family: Family = MIMO, depths: int = 1, seed: int = 0, gain: float = 2.0
) -> MtpCheckpoint:
    """Layers for a target whose decoder layers are stored under the names that they have in memory."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator)
        return values * gain / shape[-1] ** 0.5 if len(shape) > 1 else 1 + 0.3 * values

    hidden, layer = model_info.config.hidden_size, model_info.language.layers[-1]
    shapes = {"projection.weight": (hidden, 2 * hidden)}
    own, blocks = {}, {}
    for depth in range(depths):
        for part in own_keys(family, depth, 0):
            own[f"layers.{depth}.{part}"] = drawn(*shapes.get(part, (hidden,)))
        for key, value in layer.state_dict().items():
            blocks[f"layers.{depth}.{key}"] = drawn(*value.shape)
    originals = tuple(family.at(family.block, depth, 0) for depth in range(depths))
    return MtpCheckpoint("random", family, depths, own, blocks, originals, tuple(sorted({*own, *blocks})))


FORMS: Sequence[Mapping[str, Any]] = (
    {"form": "chain"},
    {"form": "rerank", "width": 3, "nodes": 8},
    {"form": "branching", "branching": (2, 2, 1)},
    {"form": "beam", "width": 3},
)


def in_every_form(options: Callable[..., Any], *heads: Any, **settings: Any) -> list[Example]:
    """An example a form of draft; where there are fewer heads than forms, the first one has those that are left."""
    heads = (*[heads[0]] * (len(FORMS) - len(heads)), *heads)
    return [Example(options=options(model=head, **form, **settings)) for head, form in zip(heads, FORMS, strict=True)]


def eagle() -> list[Example]:
    """One head."""
    return in_every_form(EagleOptions, random_checkpoint(), probe=False)


def dflash() -> list[Example]:
    """A product, and Markov heads."""
    gated, rnn = (random_dflash(replace(PRODUCT, sequel=kind, rank=4, from_root=True)) for kind in ("gated", "rnn"))
    return in_every_form(DFlashOptions, random_dflash(), gated, rnn, probe=False)


def p_eagle() -> list[Example]:
    """One head."""
    head = replace(random_checkpoint(replace(THIRD, layers=2, parallel=True)), mask_token=3)
    return in_every_form(PEagleOptions, head, probe=False)


def falcon() -> list[Example]:
    """A head of blocks of two units."""
    first = replace(THIRD, fused=False, projected=False, features=1, final_norm=False, own_output=False)
    return in_every_form(FalconOptions, random_checkpoint(replace(first, first_norms=frozenset(), block=2)))


def ppd() -> list[Example]:
    """Random prompt tokens."""
    embeddings = torch.randn(3, 16, generator=torch.Generator().manual_seed(0), device="cpu")
    prompts = Prompts("random", embeddings * 0.02)
    rates = ((0.5, 0.2, 0.1), (0.6, 0.2), (0.6, 0.2))
    sparse = Example(options=PPDOptions(model=prompts, form="sparse", budget=18, rates=rates))
    return [*in_every_form(PPDOptions, prompts, rates=rates), sparse]


@cache
def gated_adapter() -> GatedAdapter:
    """Random masks, changes of all linear layers of the Llama, and a sampler; α is twice the rank."""
    named = llama().model.layers.named_modules(prefix="model.layers")
    sizes = {name: (part.in_features, part.out_features) for name, part in named if isinstance(part, nn.Linear)}

    def make() -> GatedNetwork:
        return GatedNetwork(sizes, 3, 16, 4, 2.0)

    with torch.device("cpu"):
        network = make()
    network.load_state_dict(random_weights(make, 0))
    return GatedAdapter("random", network.eval().requires_grad_(False), 3)


def gated_lora() -> list[Example]:
    """A random gated LoRA, and its linear decoding."""
    linear = Example(options=GatedLoraOptions(model=gated_adapter(), form="linear"))
    return [*in_every_form(GatedLoraOptions, gated_adapter()), linear]


def mtp() -> list[Example]:
    """One layer that is recycled, and two layers."""
    model_info = ModelInfo.of(llama())
    return in_every_form(MtpOptions, random_layers(model_info), random_layers(model_info, DEEPSEEK, 2), probe=False)


def path_head(
    make: Callable[[Any, int], Any], sizes: PathSizes, *forms: str, options: Any = PathOptions, nodes: int = 8
) -> list[Example]:
    """A head of random weights that steps along paths, in forms of draft; one of them tries every form."""
    head = PathCheckpoint("random", "random", sizes, make, random_weights(lambda: make(sizes, sizes.vocab), 0))
    sizes_of: dict[str, Any] = {"width": 3, "nodes": nodes, "branching": (2, 2, 1)}
    return [Example(options=options(model=head, form=form, probe=False, **sizes_of)) for form in forms]


def medusa() -> list[Example]:
    """Three heads of two blocks."""
    sizes = MedusaSizes(3, 16, 16, 7, 7, own_embedding=True, layers=2)
    return path_head(MedusaNetwork, sizes, "chain", "rerank")


def hydra() -> list[Example]:
    """Hydra's heads and Hydra++'s."""
    hydra = HydraSizes(3, 16, 16, 7, 7, own_embedding=False, places=(0, 1))
    prefix = HydraSizes(3, 16, 16, 7, 7, own_embedding=False, places=(1, 3), prefix=BlockSizes(16, 24, 2, 1, 8))
    return [*path_head(hydra_network, hydra, "chain"), *path_head(hydra_network, prefix, "rerank")]


def mlp_speculator() -> list[Example]:
    """A speculator whose depths have weights of their own."""
    sizes = SpeculatorSizes(3, 16, 12, 7, 7, own_embedding=True, inner=12, tied=False)
    return path_head(MlpNetwork, sizes, "chain", "rerank", "branching", "beam")


def arctic_lstm() -> list[Example]:
    """A speculator of three units."""
    sizes = SpeculatorSizes(3, 16, 12, 7, 7, own_embedding=True, inner=12)
    return path_head(LstmNetwork, sizes, "chain", "rerank")


KINDS = ["sliding_attention", "full_attention"]


@cache
def gemma4(shared: int = 2) -> Any:
    """A Gemma 4 of seven tokens, whose last layers share the keys of others or have their own."""
    layers = {"layer_types": KINDS * 2, "num_hidden_layers": 4, "num_kv_shared_layers": shared, "sliding_window": 6}
    inputs = {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 7}
    config = Gemma4TextConfig(**{**SIZES, **layers, **inputs, "global_head_dim": 12})
    return random_model(config, seed=1, gain=5.0, head=8.0, embedding=0.25, factors={"q_norm": 0.25})


def assistant() -> Assistant:
    """An assistant of two layers for it."""
    layers = {"layer_types": KINDS, "num_kv_shared_layers": 2, "sliding_window": 6, "hidden_size": 12}
    inputs = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    text = TextConfig(**{**SIZES, **layers, **inputs, "global_head_dim": 12})
    made = Assistant("random", text, SIZES["hidden_size"], None, {})
    return replace(made, weights=random_weights(lambda: Network(made), 3))


def gemma4_assistant() -> list[Example]:
    """A chain and a tree."""
    forms: tuple[dict[str, Any], ...] = ({"form": "chain"}, {"form": "rerank", "width": 3, "nodes": 8})
    target, head = TransformersTarget(gemma4()), assistant()
    return [Example(options=AssistantOptions(model=head, **form), target=target, prompt=prompt) for form in forms]


EXAMPLES = {
    "text:gemma4-assistant": gemma4_assistant,
    "text:eagle": eagle,
    "text:dflash": dflash,
    "text:p-eagle": p_eagle,
    "text:falcon": falcon,
    "text:ppd": ppd,
    "text:gated-lora": gated_lora,
    "text:mtp": mtp,
    "text:medusa": medusa,
    "text:hydra": hydra,
    "text:mlp-speculator": mlp_speculator,
    "text:arctic-lstm": arctic_lstm,
}
