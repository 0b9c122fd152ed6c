"""Heads that are drawn: each layout with its tensors and config, how mmspec opens it, and the reference's logits.

Logits are those behind the root and behind each unit of a drafted path, over the target's ids: `[step, vocab]`.
"""

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from mmspec.core.types import Draft
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.target import TransformersTarget
from mmspec_ssm.target import declared
from mmspec_text.drafters.dflash import Context, DFlash, DFlashOptions
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from mmspec_text.drafters.falcon import BlockCache, Falcon, FalconOptions
from mmspec_text.drafters.heads.cache import HeadCache
from mmspec_text.drafters.heads.mtp.checkpoint import COUNTS
from mmspec_text.drafters.heads.mtp.checkpoint import read_checkpoint as read_layers
from mmspec_text.drafters.heads.mtp.family import FAMILIES as MTP
from mmspec_text.drafters.heads.mtp.network import MtpNetwork
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions, PrefixCache, walked_from
from mmspec_text.drafters.heads.pathwise.head import PrefixHead
from mmspec_text.drafters.heads.rows import Rows
from mmspec_text.drafters.hydra import Hydra
from mmspec_text.drafters.p_eagle import MaskedCache, PEagle, PEagleOptions
from mmspec_text.drafters.ppd import PPD, PPDOptions
from tests.support import dflash_layouts, eagle_layouts, mtp_layouts, p_eagle_layouts, path_heads
from tests.support.eagle_layouts import BIASES, HEAD_NORMS, HEADS, PRUNED, TARGET, VOCAB, Stored, flags, layer, sizes
from tests.support.path_heads.layout import HIDDEN, Given, PathLayout
from tests.support.path_heads.layout import VOCAB as IDS
from tests.support.settled_forward import WINDOWS, SettledBlock, SettledEagle, SettledFalcon, Unlike

ROWS, CHAIN = 10, 3
"""Known rows, and steps of a chain that are compared."""
Weights = dict[str, Tensor]
Config = dict[str, Any]
NESTED = ("transformer_layer_config", "eagle_config", "dflash_config", "dspark_config", "clover")
"""Parts of configs in which layouts put entries."""
FAMILIES = {family.name: family for family in MTP}
VARIANTS = {
    "num_special_tokens": 3,
    "virtual_tokens_per_special_token": 1,
    "num_exits": 1,
    "use_custom_lm_head": False,
    "use_prefix_tuning": False,
    "vt_attention_type": "decoder",
}
"""Entries of the authors' `PromptConfig` that change what prompt tokens score."""
PROMPTS: Config = {
    **VARIANTS,
    **{"peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 3, "token_dim": TARGET},
    **{"aggregation_type": "mean", "prompt_tuning_init": "RANDOM", "prefix_virtual_tokens": None, "use_cache": True},
    **{"base_model_name_or_path": "someone/llama", "inference_mode": True, "num_layers": 6, "revision": None},
}
"""Entries that change nothing where there is one embedding for a prompt token, and those."""
ENDS = ("lm_head.weight", "model.embed_tokens.weight")
LSTM = {
    **{f"lstm.weight_{part}_l{number}": (4 * TARGET, TARGET) for part in ("ih", "hh") for number in (0, 1)},
    **{f"lstm.bias_{part}_l{number}": (4 * TARGET,) for part in ("ih", "hh") for number in (0, 1)},
    "lstm.weight_ih_l0": (4 * TARGET, 2 * TARGET),
}
LATENT = {"kv_lora_rank": 6, "qk_nope_head_dim": 5, "qk_rope_head_dim": 8, "v_head_dim": 7, "q_lora_rank": 10}
ATTENTION = {
    "q_a_proj": (10, 2 * TARGET),
    "q_a_layernorm": (10,),
    "q_b_proj": (HEADS * 13, 10),
    "kv_a_proj_with_mqa": (14, 2 * TARGET),
    "kv_a_layernorm": (6,),
    "kv_b_proj": (HEADS * 12, 6),
    "o_proj": (TARGET, HEADS * 7),
}
FUSED = {key: size for key, size in eagle_layouts.third(TARGET).items() if "self_attn" not in key}
EAGLE = {
    **eagle_layouts.LAYOUTS,
    "torchspec": Stored(
        {key: value for key, value in sizes().items() if key not in ("head_dim", "num_key_value_heads")}
        | {**eagle_layouts.THIRD, **LATENT, "model_type": "kimi_k2"},
        eagle_layouts.under("midlayer."),
        flags(),
        {**FUSED, **{f"layers.0.self_attn.{key}.weight": size for key, size in ATTENTION.items()}},
    ),
    "deepspec": Stored(
        {**sizes(), "architectures": ["Qwen3Eagle3Model"], "ttt_length": 7, "target_layer_ids": [0, 1, 3]}
        | {"draft_vocab_size": PRUNED},
        lambda key: key,
        flags(),
        eagle_layouts.third(TARGET),
    ),
}
"""EAGLE's layouts, also with latent attention (TorchSpec), and DeepSpec's."""
GRU = {
    "prefix_gru.weight_ih_l0": (18, TARGET),
    "prefix_gru.weight_hh_l0": (18, 6),
    "embed_proj.0.weight": (5, TARGET + 6),
    "embed_proj.2.weight": (VOCAB, 5),
}
CONVOLUTIONS = {
    f"layers.{layer}.{part}_conv.{key}": size
    for layer in (0, 1)
    for part in ("attention", "mlp")
    for key, size in {"base_kernel": (2, 2, TARGET), "kernel_projection.weight": (16, TARGET)}.items()
}
SELECTOR = {
    **{f"candidate_selector.{part}_codebook": (VOCAB, 6) for part in ("predecessor", "successor")},
    "candidate_selector.hidden_projection.weight": (6, TARGET),
}
SECOND = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_top_k": 5, "selector_rank": 6}
DFLASH = {
    **dflash_layouts.LAYOUTS,
    "domino": dflash_layouts.stored(
        dflash_layouts.zlab(
            {"projector_type": "domino", "pure_draft_prefix_len": 1, "gru_hidden_dim": 6, "emb_dim": 5}
            | {"shift_label": True},
            architectures=["DominoDraftModel"],
        ),
        dflash_layouts.flags(from_root=True),
        {**dflash_layouts.shapes(), **GRU},
    ),
    "dflash2": dflash_layouts.stored(
        dflash_layouts.zlab(SECOND, architectures=["DFlash2DraftModel"]),
        dflash_layouts.flags(),
        {**dflash_layouts.shapes(), **CONVOLUTIONS, **SELECTOR},
    ),
    "jetspec": dflash_layouts.stored(
        dflash_layouts.zlab(causal_head=True), dflash_layouts.flags(), dflash_layouts.shapes()
    ),
}
"""DFlash's layouts, also Domino, DFlash2 and JetSpec's."""
DRAFTERS: dict[str, Callable[[str], Any]] = {
    "eagle": lambda name: Eagle(EagleOptions(model=name, probe=False, form="chain")),
    "p-eagle": lambda name: PEagle(PEagleOptions(model=name, probe=False, form="chain")),
    "falcon": lambda name: Falcon(FalconOptions(model=name, form="chain")),
    "dflash": lambda name: DFlash(DFlashOptions(model=name, probe=False, form="chain")),
}
FALCON = Stored(
    {**sizes(), "k_mask": 2},
    lambda key: key,
    flags(third=False),
    {**LSTM, **layer(0, TARGET, TARGET), "embed_tokens.weight": (VOCAB, TARGET)},
    pruned=False,
)


@cache
def target(width: int, ids: int) -> TransformersTarget:
    """What heads draft for; its layers are never run."""
    torch.manual_seed(1)
    sizes = {"hidden_size": width, "intermediate_size": 8, "num_hidden_layers": 6, "vocab_size": ids}
    model: Any = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, pad_token_id=0)).eval()
    model.model.embed_tokens.weight.data.normal_()
    model.lm_head.weight.data.normal_()
    return TransformersTarget(model.requires_grad_(False))


def ends(width: int, ids: int) -> tuple[Tensor, Tensor]:
    """The weights of the target's embedding and output layer."""
    lent = target(width, ids).lend()
    return lent.embedding.weight, lent.output.weight  # type: ignore[return-value]


def bound(drafter: Any, width: int, ids: int) -> Any:
    """A drafter behind all that is checked before it drafts."""
    drafter.bind(drafter.wrap(target(width, ids)))
    lent = target(width, ids).lend()
    drafter.network.join(lent.embedding, lent.output, lent.device, lent.dtype)
    return drafter


def stepped(opened: tuple[Any, Any], root: Tensor, path: Tensor) -> Tensor:
    """Logits along a path, of a draft that grows unit by unit."""
    output, feed = opened
    found = [output.logits]
    for nodes in range(1, path.shape[1] + 1):
        draft = Draft.chain(path[:, :nodes]).rooted(root, torch.full_like(root, 9))
        found.append(feed(draft, nodes).logits)
    return torch.cat(found, 1)[0]


class Kind(ABC):
    """A layout."""

    config: Config  # its config, as it is published
    copies: Mapping[str, str] = {}  # keys that are copies of others
    extra: tuple[str, ...] = ()  # keys of no use
    stem: str = "model"  # of its file's name
    nested: tuple[str, ...] = ()  # parts of its config that hold entries of layers
    lent: ClassVar[Weights] = {}  # copies of the target's weights that its files carry
    may_repeat: ClassVar[Weights] = {}  # and those that they may carry

    @abstractmethod
    def weights(self, shape: Mapping[str, Any]) -> tuple[Weights, Config]:
        """Tensors by our names, and entries of the config that change with the shape."""

    def named(self, key: str) -> str:
        """A tensor's key in the file."""
        return key

    @abstractmethod
    def ours(self, folder: Path) -> Tensor:
        """What mmspec drafts with."""

    @abstractmethod
    def theirs(self, w: Weights, config: Config) -> Tensor:
        """What the reference drafts with; `w` are in float64."""

    def given(self, config: Config) -> Config:
        """The entries of a config as its authors' code sees them, flat."""
        found = dict(config)
        for part in NESTED:
            inner = config.get(part)
            if isinstance(inner, Mapping):
                found |= {key: value for key, value in inner.items() if value is not None}
        return found


def over(ids: Tensor | None, scored: Sequence[Tensor], vocab: int) -> Tensor:
    """Logits over the target's ids."""
    logits = torch.stack(list(scored))
    if ids is None:
        return logits
    return torch.full((len(logits), vocab), -torch.inf, dtype=logits.dtype).index_copy(1, ids, logits)


@dataclass(frozen=True)
class Rowed(Kind):
    """A head that reads rows of features: of EAGLE, P-EAGLE, Falcon, DFlash."""

    stored: Stored
    family: str

    @property
    def config(self) -> Config:  # type: ignore[override]
        return dict(self.stored.config)

    @property
    def extra(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.stored.extra

    @property
    def nested(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(part for part in NESTED[:1] if part in self.stored.config)

    def named(self, key: str) -> str:
        return self.stored.rename(key)

    @property
    def fused(self) -> bool:
        return bool(getattr(self.stored.flags, "third", False))

    def weights(self, shape: Mapping[str, Any]) -> tuple[Weights, Config]:
        shapes, more, stored = dict(self.stored.shapes), Config(), self.stored
        hidden = shapes["layers.0.self_attn.o_proj.weight"][0]
        layers = max(int(key.split(".")[1]) for key in shapes if key.startswith("layers.")) + 1
        wanted = int(shape.get("layers") or layers)
        norm = (f"layers.{layers - 1}.hidden_norm.weight",) if layers > 1 else ()
        for number in range(layers, wanted):
            name = "hidden_norm" if norm and norm[0] in shapes else "input_layernorm"
            shapes |= {**layer(number, hidden, hidden), f"layers.{number}.{name}.weight": (hidden,)}
            if self.family == "dflash" and "layers.0.self_attn.q_norm.weight" in shapes:
                shapes |= {key.replace("layers.0.", f"layers.{number}."): size for key, size in HEAD_NORMS.items()}
        for number in range(wanted, layers):
            shapes = {key: size for key, size in shapes.items() if not key.startswith(f"layers.{number}.")}
        if shape.get("layers"):
            more["num_hidden_layers"] = wanted
        if shape.get("biases"):
            for number in range(wanted):
                shapes |= {key.replace("layers.0.", f"layers.{number}."): size for key, size in BIASES.items()}
        if shape.get("embedding"):
            shapes["embed_tokens.weight"] = (VOCAB, hidden)
        if shape.get("whole"):
            stored = replace(stored, pruned=False)
            if "lm_head.weight" in shapes:
                shapes["lm_head.weight"] = (VOCAB, hidden)
            shapes |= {key: (VOCAB, size[1]) for key, size in shapes.items() if key == "markov_head.markov_w2.weight"}
            more["draft_vocab_size"] = VOCAB
        return replace(stored, shapes=shapes).weights(), more

    def _drawn(self, w: Weights | None = None) -> tuple[Tensor, Tensor, Tensor]:
        g, width = torch.Generator().manual_seed(3), TARGET
        if self.family != "falcon" and "fc.weight" in self.stored.shapes:
            hidden, inside = self.stored.shapes["fc.weight"]
            width = inside - (hidden if self.family == "eagle" and not self.fused else 0)
        features = torch.randn(1, ROWS, width, generator=g)
        return features, torch.randint(VOCAB, (1, ROWS), generator=g), torch.randint(VOCAB, (1, 8), generator=g)

    def ours(self, folder: Path) -> Tensor:
        features, units, path = self._drawn()
        dflash, count = self.family == "dflash", torch.tensor([ROWS])
        drafter = bound(DRAFTERS[self.family](str(folder)), TARGET, VOCAB)
        network, steps = drafter.network, CHAIN
        if dflash:
            cache: Any = Context(network, 1, 40, units.device)
            cache.read(Rows.at_left(features, count))
            steps = min(CHAIN, network.architecture.units)
        elif self.family == "falcon":
            cache = BlockCache(network, network.architecture.block, 1, 60, units.device)
            cache.read(Rows(features, count), units)
            return stepped((cache.at_root(), cache.grow), units[:, -1], path[:, : CHAIN - 1])
        else:
            cache = (MaskedCache if self.family == "p-eagle" else HeadCache)(network, 1, 40, units.device)
            if self.family == "p-eagle":
                cache.token, cache.masks = drafter.checkpoint.mask_token, CHAIN - 1
            cache.read(Rows(features, count), units)
        return stepped(cache.opened(units[:, -1]), units[:, -1], path[:, : steps - 1])

    def theirs(self, w: Weights, config: Config) -> Tensor:
        features, units, path = self._drawn()
        given, known, chain = self.given(config), units[0].tolist(), path[0, : CHAIN - 1].tolist()
        kept = {key: value for key, value in w.items() if key not in ("d2t", "t2d")}
        ids = w["t2d"].nonzero()[:, 0] if "t2d" in w else None
        ids = torch.arange(len(w["d2t"])) + w["d2t"].long() if "d2t" in w else ids
        settled: dict[str, Any] = {"eagle": SettledEagle, "p-eagle": SettledEagle, "falcon": SettledFalcon}
        make = settled.get(self.family, SettledBlock)
        reference = make(kept, self.stored.flags, *ends(TARGET, VOCAB), given)
        if self.family == "dflash":
            return over(ids, reference.draft_logits(list(features[0]), known[-1], chain)[:CHAIN], VOCAB)
        if self.family == "p-eagle":
            named = ("mask_token_id", "ptd_token_id", "pard_token")
            mask = next(given[name] for name in named if given.get(name) is not None)
            return over(ids, reference.parallel_logits(features[0], known, mask, CHAIN), VOCAB)
        if self.family == "falcon":
            reference.block = given["k_mask"]
        return over(ids, reference.draft_logits(features[0], known, chain), VOCAB)


@dataclass(frozen=True)
class Pathed(Kind):
    """A head that steps along paths."""

    layout: PathLayout

    @property
    def config(self) -> Config:  # type: ignore[override]
        return self.layout.config(HIDDEN, IDS)

    @property
    def copies(self) -> Mapping[str, str]:  # type: ignore[override]
        return self.layout.copies

    @property
    def extra(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(key for key in self.layout.extra if key not in self.lent)

    @property
    def lent(self) -> Weights:  # type: ignore[override]
        """Copies of the target's weights that the layout's files carry."""
        embedding, output = ends(HIDDEN, IDS)
        found = {"lm_head.weight": output, "model.embed_tokens.weight": embedding}
        return {key: end for key, end in found.items() if key in self.layout.extra}

    @property
    def may_repeat(self) -> Weights:  # type: ignore[override]
        """Copies of the target's weights that its files may carry."""
        hydra = {"input_embed_fn.weight": ends(HIDDEN, IDS)[0]} if self.layout.drafter is Hydra else {}
        return {**self.lent, **hydra}

    @property
    def stem(self) -> str:  # type: ignore[override]
        return self.layout.file.removesuffix(".safetensors")

    def weights(self, shape: Mapping[str, Any]) -> tuple[Weights, Config]:
        return self.layout.weights(), {}

    def _drawn(self) -> tuple[Tensor, Tensor, Tensor]:
        g = torch.Generator().manual_seed(3)
        features = torch.randn(1, ROWS, HIDDEN, generator=g)
        return features, torch.randint(IDS, (1, ROWS), generator=g), torch.randint(IDS, (1, 8), generator=g)

    def ours(self, folder: Path) -> Tensor:
        features, units, path = self._drawn()
        drafter = self.layout.drafter(PathOptions(model=str(folder), probe=False, form="chain"))
        network, root = bound(drafter, HIDDEN, IDS).network, units[:, -1]
        steps = min(CHAIN, network.units)
        if not isinstance(network, PrefixHead):
            with torch.no_grad():
                opened = walked_from(network, network.rooted(features[:, -1:], root[:, None]))
                return stepped(opened, root, path[:, : steps - 1])
        cache = PrefixCache(network, 1, 40, units.device)
        cache.read(Rows(features, torch.tensor([ROWS])), units)
        with torch.no_grad():
            return stepped(cache.opened(root), root, path[:, : steps - 1])

    def theirs(self, w: Weights, config: Config) -> Tensor:
        features, units, path = self._drawn()
        embedding, output = (end.double() for end in ends(HIDDEN, IDS))
        plain = {key: value for key, value in config.items() if key not in WINDOWS}  # which no such class has
        given = Given(w, plain, embedding, output)
        named = self.given(config) if "clover" in self.config or "n_predict" in self.config else {}
        steps = min(CHAIN, int(named.get("n_predict") or named.get("num_heads") or CHAIN))
        return torch.stack(self.layout.forward(given, features[0], units[0].tolist(), path[0, : steps - 1].tolist()))


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


@dataclass(frozen=True)
class Prompted(Kind):
    """Trained prompt tokens; their numbers stand for logits, which the target's own layers make of them."""

    config = PROMPTS
    stem = "adapter_model"

    def weights(self, shape: Mapping[str, Any]) -> tuple[Weights, Config]:
        return {"prompt_embeddings": torch.randn(3, TARGET, generator=torch.Generator().manual_seed(0))}, {}

    def ours(self, folder: Path) -> Tensor:
        drafter = PPD(PPDOptions(model=str(folder), form="chain"))
        drafter.bind(drafter.wrap(target(TARGET, VOCAB)))
        return drafter.prompts.embeddings.float()

    def theirs(self, w: Weights, config: Config) -> Tensor:
        if wrong := [key for key, value in PROMPTS.items() if key in VARIANTS and config.get(key, value) != value]:
            raise Unlike(f"other {wrong}")
        return w["prompt_embeddings"]


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


def kinds() -> Iterator[tuple[str, Kind]]:
    families = {"eagle": EAGLE, "p-eagle": p_eagle_layouts.LAYOUTS, "dflash": DFLASH}
    for family, layouts in families.items():
        yield from ((f"{family}:{name}", Rowed(stored, family)) for name, stored in layouts.items())
    yield "ppd:ppd", Prompted()
    yield "falcon:falcon", Rowed(FALCON, "falcon")
    yield from ((f"mtp:{name}", Deep(layout)) for name, layout in mtp_layouts.LAYOUTS.items())
    yield from ((f"path:{name}", Pathed(layout)) for name, layout in path_heads.LAYOUTS.items())


KINDS: dict[str, Kind] = dict(kinds())
"""Name → layout."""
