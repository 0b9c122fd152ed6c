"""The differences between the families of models whose checkpoints hold layers for multi-token prediction, as data.

A layer of depth i is

    s = block(projection(cat(norm(E(next unit)), norm(state))));  logits = output layer(final norm(s))

where the block is one of the target's own decoder layers (several in `nemotron-h`, parts of one in `longcat`), the
state of known units is the target's behind its final norm, and embedding and output layer are the target's. The final
norm's result is also the state that is fed back.

| family | models | keys |
|---|---|---|
| `deepseek` | DeepSeek-V3, R1; GLM-4.5 to 4.7 | `model.layers.{L + i}.eh_proj`, `enorm`, `hnorm`, `shared_head.norm` |
| `bailing` | Ling, Ring | as above, and `final_layernorm` |
| `qwen` | Qwen3-Next, 3.5, 3.6; Mellum | `mtp.fc`, `mtp.pre_fc_norm_*`, `mtp.norm`, `mtp.layers.{i}` |
| `exaone` | Exaone-MoE | as `qwen`; attention in a window where the target's first layer has one |
| `mimo` | MiMo-7B | `model.mtp_layers.{i}.input_proj`, state before embedding |
| `mimo-v2` | MiMo-V2 | `model.mtp.layers.{i}.eh_proj`; attention in a window; only the first depth is used |
| `ernie` | ERNIE-4.5 | `model.mtp_linear_proj.{i}`, `model.mtp_block.{i}`; no final norm |
| `nemotron-h` | Nemotron-H, Nemotron 3 | `mtp.layers.0.eh_proj`, and a layer for each of the block's kinds |
| `longcat` | LongCat-Flash | `model.mtp.layers.0.eh_proj`; one attention and one MLP; an embedding of its own |

Norms are of the target's own class, which says whether a weight w means w or 1 + w.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from mmspec.registry.printable import shown


@dataclass(frozen=True)
class Family:
    """A layout, and the switches of the forward that goes with it.

    Names of keys are given without `.weight`. `{i}` stands for the depth, `{n}` for the depth behind the target's
    layers, `{b}` for `block`; a name with none of them is shared by all depths.
    """

    name: str
    block: str  # beginning of the keys of a block
    projection: str = "{b}eh_proj"  # the linear layer that joins embedding and state
    embedding_norm: str = "{b}enorm"
    hidden_norm: str = "{b}hnorm"  # the norm of states
    final_norm: str | None = "{b}final_layernorm"  # the norm behind the block; None: there is none
    kinds: tuple[str, ...] = ()  # model types of the targets whose checkpoints are meant; (): any
    # Beginnings, behind `block`, of keys that repeat the target's weights, and of these; "": they say nothing
    copies: Mapping[str, str] = field(default_factory=dict)
    # Parts of a block that the target's layer calls otherwise: the checkpoint's name → the layer's
    renamed: Mapping[str, str] = field(default_factory=dict)
    hidden_first: bool = False  # the projection reads the state before the embedding
    zeroed: bool = False  # the embedding of the first row of a text is 0
    # What the blocks attend over: everything, a window, or what the target's first layer does
    attention: Literal["full_attention", "sliding_attention", "first"] = "full_attention"
    most: int | None = None  # the most depths that are used; None: all
    # What a block is: one of the target's layers, a `chain` of them, or `plain` attention and MLP
    made: Literal["layer", "chain", "plain"] = "layer"
    norm: str = "input_layernorm"  # the norm in a block whose class the norms beside it have
    eps: str = "rms_norm_eps"  # the setting that norms take their ε from
    rotary: bool = True  # whether blocks turn queries and keys
    embedding: str | None = None  # an embedding of the layers' own; None: the target's

    def among(self, keys: Collection[str]) -> "Family":
        """The family with `{z}`, the number of a chain's last layer, as the keys of a checkpoint have it."""
        if self.made != "chain" or self.final_norm is None:
            return self
        numbers = {rest.partition(".")[0] for key in keys if (rest := key.removeprefix(self.block)) != key}
        last = max((int(number) for number in numbers if number.isdecimal()), default=0)
        return replace(self, final_norm=self.final_norm.replace("{z}", str(last)))

    def at(self, name: str, depth: int, layers: int) -> str:
        """A name for a depth, of a target with so many layers."""
        return name.replace("{b}", self.block).format(i=depth, n=layers + depth)

    def depths(self, keys: Collection[str], layers: int) -> int:
        """The number of depths that a checkpoint has."""
        last = self.most or len(keys)
        count = 0
        while count < last and f"{self.at(self.counted, count, layers)}.weight" in keys:
            count += 1
        return count

    @property
    def counted(self) -> str:
        """A name that every depth has for itself."""
        return self.projection if "{" in self.projection else f"{self.block}input_layernorm"


DEEPSEEK = Family(
    "deepseek",
    "model.layers.{n}.",
    final_norm="{b}shared_head.norm",
    copies={"shared_head.head.": "lm_head.", "embed_tokens.": "model.embed_tokens."}
    | dict.fromkeys(("rotary_emb.", "self_attn.rotary_emb."), ""),
)
BAILING = replace(DEEPSEEK, name="bailing", final_norm="{b}final_layernorm", kinds=("bailing_hybrid",))
QWEN = Family(
    "qwen",
    "mtp.layers.{i}.",
    projection="mtp.fc",
    embedding_norm="mtp.pre_fc_norm_embedding",
    hidden_norm="mtp.pre_fc_norm_hidden",
    final_norm="mtp.norm",
)
EXAONE = replace(QWEN, name="exaone", kinds=("exaone_moe",), attention="first")
MIMO = Family(
    "mimo",
    "model.mtp_layers.{i}.",
    projection="{b}input_proj",
    embedding_norm="{b}token_layernorm",
    hidden_norm="{b}hidden_layernorm",
    hidden_first=True,
    zeroed=True,
)
MIMO_V2 = Family(
    "mimo-v2",
    "model.mtp.layers.{i}.",
    renamed={"pre_mlp_layernorm.": "post_attention_layernorm."},
    attention="sliding_attention",
    most=1,
)
ERNIE = Family(
    "ernie",
    "model.mtp_block.{i}.",
    projection="model.mtp_linear_proj.{i}",
    embedding_norm="model.mtp_emb_norm.{i}",
    hidden_norm="model.mtp_hidden_norm.{i}",
    final_norm=None,
    zeroed=True,
)
NEMOTRON_H = Family(
    "nemotron-h",
    "mtp.layers.",
    projection="{b}{i}.eh_proj",
    embedding_norm="{b}{i}.enorm",
    hidden_norm="{b}{i}.hnorm",
    final_norm="{b}{z}.final_layernorm",
    kinds=("nemotron_h",),
    most=1,
    made="chain",
    norm="0.norm",
    eps="layer_norm_epsilon",
    rotary=False,
)
LONGCAT = Family(
    "longcat",
    "model.mtp.layers.{i}.",
    embedding_norm="{b}enorm.m",
    hidden_norm="{b}hnorm.m",
    final_norm="model.mtp.norm",
    kinds=("longcat_flash",),
    renamed={"transformer_layer.mlp.": "mlp."},
    most=1,
    made="plain",
    embedding="model.mtp.embed_tokens",
)
FAMILIES = (BAILING, NEMOTRON_H, LONGCAT, DEEPSEEK, EXAONE, QWEN, MIMO, MIMO_V2, ERNIE)
"""The families that are read; of two with the same keys the narrower one comes first."""

OTHERS = {
    "shared_head.output": "Step-3.5, whose depths have output layers of their own and read states before the norm",
    "mtp.0.e_proj": "DeepSeek-V4, whose layer reads several streams of states",
    "model.mtp.layers.0.transformer_block.": "Inkling, whose blocks mix windows and convolutions",
    "pre_projection": "Gemma 4's assistant, which attends over the target's own keys",
}
"""Parts of keys of families that are known and not read."""
TRACES = ("mtp", "eh_proj", "nextn")
"""Parts of keys that stand for layers of this kind."""


def plain_key(key: str) -> str:
    """A key as it would be without the parts for pictures and sound."""
    for outer in ("model.language_model.", "language_model.model."):
        key = key.replace(outer, "model.", 1) if key.startswith(outer) else key
    return key


def is_of_layers(key: str, layers: int) -> bool:
    """True if a key, by `plain_key`, is one of layers for multi-token prediction behind so many of the target's."""
    start, _, rest = key.partition("model.layers.")
    number = rest.partition(".")[0] if not start else ""
    return any(trace in key for trace in TRACES) or (number.isdecimal() and int(number) >= layers)


def recognised(keys: Collection[str], kind: str, layers: int, what: str) -> Family:
    """The family of a checkpoint."""
    for part, other in OTHERS.items():
        if any(part in key for key in keys):
            raise ValueError(f"{what} has layers of {other}; mtp does not read these. It reads {_listed()}")
    found = [family.among(keys) for family in FAMILIES if not family.kinds or kind in family.kinds]
    for family in found:
        final = None if family.final_norm is None else f"{family.at(family.final_norm, 0, layers)}.weight"
        if family.depths(keys, layers) and (final is None or final in keys):
            return family
    near = max(found, key=lambda family: len(set(_missing(family, keys, layers, present=True))))
    traces = sorted(key for key in keys if any(trace in key for trace in TRACES))
    if _missing(near, keys, layers, present=True):
        missing = ", ".join(shown(key) for key in _missing(near, keys, layers))
        raise ValueError(
            f"{what} has no complete multi-token layer: {near.name} is the nearest family, and {missing} is missing"
        )
    if traces:
        raise ValueError(
            f"{what} has multi-token layers in an unknown layout ({shown(traces[0])}); mtp reads {_listed()}"
        )
    raise ValueError(
        f"{what} has no multi-token layers behind the target's {layers}. Quantisers and save_pretrained leave them "
        "out; name the folder of the original checkpoint, as in drafter=<folder or hub name>"
    )


def _missing(family: Family, keys: Collection[str], layers: int, present: bool = False) -> list[str]:
    """Keys of a family's own parts at depth 0 that a checkpoint lacks, or has."""
    wanted = {**own_keys(family, 0, layers), "": f"{family.at(family.counted, 0, layers)}.weight"}
    return [key for key in dict.fromkeys(wanted.values()) if (key in keys) == present]


def own_keys(family: Family, depth: int, layers: int) -> dict[str, str]:
    """Keys of a depth's parts beside its block, by the names of the network."""
    return {f"{part}.weight": f"{family.at(name, depth, layers)}.weight" for part, name in _parts(family)}


def _parts(family: Family) -> Iterator[tuple[str, str]]:
    yield "projection", family.projection
    yield "embedding_norm", family.embedding_norm
    yield "hidden_norm", family.hidden_norm
    if family.final_norm is not None:
        yield "final_norm", family.final_norm
    if family.embedding is not None:
        yield "embedding", family.embedding


def _listed() -> str:
    return ", ".join(family.name for family in FAMILIES)
