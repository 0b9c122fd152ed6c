"""The work of a pass, the least time for it, and where speculation stops paying, by formulas.

* A pass over n nodes of B rows takes at least t(B, n) = max(bytes read / bandwidth, operations / arithmetic).
* v(n) = t(B, n) / t(B, 1); a drafted unit costs c plain passes.
* A chain of γ drafts emits E(γ) = 1 + a_1 + … + a_γ units a round, where a_d is the probability that the path of a row
  reaches depth d: α^d, if each draft is accepted with probability α (Leviathan et al., arXiv 2211.17192, theorem 3.8).
* Its speed-up is S(γ) = E(γ) / (γ c + v(γ + 1)).

All times are floors: kernels reach a share of them (`efficiency`), and launches and the loop come on top.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

from mmspec.hosts.model_info import EXPERTS
from mmspec.hosts.outline import outline
from mmspec.registry.suggest import unknown


@dataclass(frozen=True)
class Machine:
    """Limits of a device."""

    bandwidth: float  # bytes per second of a copy, bytes read and written both counted
    arithmetic: float  # floating-point operations per second of a large matrix product in the weights' dtype


@dataclass(frozen=True)
class Work:
    """The work of a model's passes."""

    shared: float  # bytes of weights that every pass reads
    routed: float  # bytes of all experts; 0 without experts
    chosen: float  # share of the experts that one unit chooses
    operations: float  # floating-point operations per unit, attention to the context left out
    slot: float  # bytes of the cache per unit of context and row

    @classmethod
    def of(cls, model: nn.Module, slot: float) -> "Work":
        """The work of a model, from its weights: two operations per weight and unit; a lookup is free."""
        config: Any = getattr(model, "config", None)
        config = config.get_text_config(decoder=True) if isinstance(config, PreTrainedConfig) else config
        experts = next((count for name in EXPERTS if (count := getattr(config, name, None))), 1)
        chosen = getattr(config, "num_experts_per_tok", 1) / experts
        routed = [weight for name, weight in model.named_parameters() if ".experts." in name]
        shared = list(_read(model, {id(weight) for weight in routed}))
        return cls(
            shared=sum(w.numel() * w.element_size() for w in shared),
            routed=sum(w.numel() * w.element_size() for w in routed),
            chosen=chosen,
            operations=2 * (sum(w.numel() for w in shared) + chosen * sum(w.numel() for w in routed)),
            slot=slot,
        )

    def read(self, rows: int, nodes: int, context: int) -> float:
        """Bytes that a pass reads; of the experts, the share that so many units are expected to choose."""
        missed = (1 - self.chosen) ** (rows * nodes)
        return self.shared + self.routed * (1 - missed) + rows * context * self.slot

    def computed(self, rows: int, nodes: int) -> float:
        return self.operations * rows * nodes

    def floor(self, machine: Machine, rows: int, nodes: int, context: int) -> float:
        return max(self.read(rows, nodes, context) / machine.bandwidth, self.computed(rows, nodes) / machine.arithmetic)

    def memory(self, rows: int, context: int) -> float:
        return rows * context * self.slot


def _read(model: nn.Module, but: set[int]) -> Iterator[Tensor]:
    """Weights that every pass reads: no experts, and no table of embeddings that is not the output layer's, too."""
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    products = {id(part.weight) for part in model.modules() if isinstance(part, nn.Linear)}
    for weight in model.parameters():
        if id(weight) not in but and (id(weight) not in tables or id(weight) in products):
            yield weight


@dataclass(frozen=True)
class Gpu:
    """A GPU by its data sheet."""

    memory: float  # bytes
    bandwidth: float  # bytes per second
    arithmetic: float  # dense operations per second in 16 bits

    def machine(self, efficiency: float = 1.0) -> Machine:
        """Its limits, of which kernels reach a share."""
        return Machine(efficiency * self.bandwidth, efficiency * self.arithmetic)


GPUS = {
    "l4": Gpu(24e9, 0.300e12, 121e12),
    "l40s": Gpu(48e9, 0.864e12, 362e12),
    "a100": Gpu(80e9, 2.039e12, 312e12),
    "h100": Gpu(80e9, 3.35e12, 989e12),
    "h200": Gpu(141e9, 4.8e12, 989e12),
    "b200": Gpu(180e9, 7.7e12, 2250e12),
}
"""The makers' data sheets: SXM modules where there are several."""


@dataclass(frozen=True)
class Drafting:
    """The acceptance of drafts, and their cost."""

    by_depth: Sequence[float]  # the probability that a row's path reaches depth 1, 2, …; as many as there may be drafts
    cost: float = 0.0  # c: the time of one drafted unit, in plain passes

    def units(self, drafts: int) -> float:
        """E: the units that a round is expected to emit."""
        return 1.0 + sum(self.by_depth[:drafts])


@dataclass(frozen=True)
class Forecast:
    rows: int  # rows decoded together
    memory: float  # bytes of weights and caches
    pass_seconds: float  # the floor of a plain pass
    drafts: int  # the number of drafts that is fastest; 0: speculation does not pay
    v: float  # v(drafts + 1)
    speedup: float  # S of that number
    plain: float  # units per second of plain decoding, all rows together
    fast: float  # units per second with drafts


_LLAMA: Mapping[str, Any] = {
    "config": "LlamaConfig", "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 65536,
}  # fmt: skip
SIZES: Mapping[str, Mapping[str, Any]] = {
    "llama-1b": {
        **_LLAMA, "hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192, "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "llama-8b": {
        **_LLAMA, "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336, "head_dim": 128,
        "tie_word_embeddings": False,
    },
    "qwen3-moe-30b-a3b": {
        "config": "Qwen3MoeConfig", "hidden_size": 2048, "num_hidden_layers": 48, "intermediate_size": 6144,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": True, "moe_intermediate_size": 768, "vocab_size": 151936,
        "max_position_embeddings": 65536, "tie_word_embeddings": False,
    },
    "mamba2-2.7b": {
        "config": "Mamba2Config", "hidden_size": 2560, "num_hidden_layers": 64, "num_heads": 80, "head_dim": 64,
        "state_size": 128, "n_groups": 1, "vocab_size": 50288, "tie_word_embeddings": True,
        "initializer_range": 0.02,  # 0.1 makes rounding in bfloat16 an eighth of logits at this width
    },
}  # fmt: skip
"""Published sizes by name: the class of the configuration in transformers, and its arguments."""


def work_of(name: str) -> Work:
    """The work of a language model in its full size, in bfloat16; no weight is read.

    The name is one of `SIZES`, `mmspec/…`, a folder with a `config.json`, or a hub name.
    """
    if name in SIZES:
        model = random_model(torch.device("meta"), torch.bfloat16, **SIZES[name])
    elif "/" in name or Path(name).is_dir():
        model = outline(name).model.to(torch.bfloat16)
    else:
        raise ValueError(f"{unknown('size', name, SIZES)}; or give a folder with a config.json, or a hub name")
    return Work.of(model, numbers_of_cache(model.config) * torch.bfloat16.itemsize)


def random_model(device: torch.device, dtype: torch.dtype, *, config: str, **numbers: Any) -> Any:
    """A causal language model with random weights, made on the device.

    `config` names a configuration class of transformers, and `numbers` are its arguments.
    """
    settings = getattr(transformers, config)(**numbers, bos_token_id=1, eos_token_id=None, pad_token_id=0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(settings, dtype=dtype, trust_remote_code=False)
    return model.eval().requires_grad_(False)


def numbers_of_cache(config: PreTrainedConfig) -> int:
    """Keys and values of one unit over all layers; a recurrent state does not grow with the context."""
    text: Any = config.get_text_config(decoder=True)
    heads = getattr(text, "num_attention_heads", None)
    if not heads:
        return 0
    kinds = getattr(text, "layer_types", None) or ["attention"] * text.num_hidden_layers
    layers = sum("attention" in kind and "linear" not in kind for kind in kinds)
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    return int(2 * layers * (getattr(text, "num_key_value_heads", None) or heads) * width)


def forecast(work: Work, machine: Machine, rows: int, context: int, drafting: Drafting) -> Forecast:
    def floor(nodes: int) -> float:
        return work.floor(machine, rows, nodes, context)

    def speedup(drafts: int) -> float:
        return drafting.units(drafts) / (drafts * drafting.cost + floor(drafts + 1) / floor(1))

    best = max(range(len(drafting.by_depth) + 1), key=speedup)  # of equal ones the fewest drafts
    plain = rows / floor(1)
    return Forecast(
        rows=rows,
        memory=work.shared + work.routed + work.memory(rows, context),
        pass_seconds=floor(1),
        drafts=best,
        v=floor(best + 1) / floor(1),
        speedup=speedup(best),
        plain=plain,
        fast=plain * speedup(best),
    )
