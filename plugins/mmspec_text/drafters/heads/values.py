"""Entries of a head's config: what they must be, and what is said where they are something else.

That is a `ValueError` with the head (`what`), the entry and what was found there.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from transformers import GenerationConfig, LlamaConfig, PreTrainedConfig
from transformers.activations import ACT2FN

from mmspec.registry.printable import shown
from mmspec.registry.suggest import unknown
from mmspec.registry.warn import warn

ACTIVATIONS = ("hidden_act", "hidden_activation")
"""Names that configs have for the activation of an MLP."""
PLAIN = {
    "is_neox_style": True,
    "rope_interleave": False,
    "partial_rotary_factor": 1,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "query_pre_attn_scalar": None,
    "attention_multiplier": None,
    "residual_multiplier": 1,
    "embedding_multiplier": 1,
    "input_embedding_scale": 1,
    "logit_scale": 1,
    "logits_scaling": 1,
    "output_multiplier": 1,
    "scale_emb": 1,
    "scale_depth": None,
    "attention_mode": "gqa",
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
"""Entries of configs that no tensor shows, and their values for the layers that are computed: a turn of halves and of
all numbers, attention scaled by the width of a head alone, no factors. A family may read some of them."""
HARMLESS = frozenset(
    {
        *PreTrainedConfig().to_dict(),
        *GenerationConfig().to_dict(),
        # What the file is, and what wrote it
        *("auto_map", "input_type", "speculators_config", "speculators_model_type", "speculators_version", "version"),
        *("tokenizer_class", "torch_dtype", "_attn_implementation", "_attn_implementation_autoset", "quantization"),
        *("base_model_name_or_path", "target_model_name_or_path", "target_model_type", "num_target_layers"),
        # Earlier entries of transformers' configs, which no layer reads
        *("add_cross_attention", "cross_attention_hidden_size", "finetuning_task", "is_decoder", "prefix"),
        *("pretraining_tp", "pruned_heads", "sep_token_id", "task_specific_params", "tf_legacy_loss"),
        *("tie_encoder_decoder", "tie_word_embeddings", "torchscript", "use_bfloat16"),
        # Of training alone
        *("attention_dropout", "confidence_head_alpha", "embed_requires_grad", "initializer_range", "num_anchors"),
        *("loss_decay_gamma", "num_depths", "step_loss_decay", "ttt_length", "ttt_step_loss_decay", "ttt_steps"),
        # Shapes of tensors, from which they are read
        *("attention_bias", "draft_num_hidden_layers", "emb_dim", "fusion_bias", "gru_hidden_dim", "bias", "mlp_bias"),
        *("head_dim", "layernorms", "markov_rank", "num_key_value_heads", "qkv_bias", "selector_rank", "vocab_size"),
        # Read where layers or parts that they are about are there
        *("enable_confidence_head", "max_window_layers", "sliding_window_non_causal", "use_sliding_window"),
    }
)
"""Entries that change no number of a head."""
OF_LAYERS = (*LlamaConfig().to_dict(), "rope_scaling", "rope_theta", "sliding_window")
"""Entries that change none of a head without decoder layers, whose config may be a whole language model's."""
FULL, SLIDING = "full_attention", "sliding_attention"
LENGTH, LENGTHS = "original_max_position_embeddings", "max_position_embeddings"
ROTARY = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", LENGTH, "low_freq_factor", "high_freq_factor"),
    "longrope": ("factor", LENGTH, "attention_factor", "short_factor", "long_factor"),
    "yarn": (
        *("factor", LENGTH, "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
}
"""Kinds of rotary positions of which transformers has tables, and what these read beside the base."""
ALIASES = {"su": "longrope", "mrope": "default"}
"""What some configs call them. Positions of text are the same in all three parts of `mrope`."""


class Entries(Mapping[str, Any]):
    """The entries of a head's config, flat, and which of them were asked for.

    Going through all of them asks for all of them: take other ones in their place with `replaced`.
    """

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self._entries, self._asked = dict(entries), set[str]()

    def __getitem__(self, name: str) -> Any:
        self._asked.add(name)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def replaced(self, **entries: Any) -> "Entries":
        """The same with other entries, which shares what was asked for."""
        new = Entries(self._entries | entries)
        new._asked = self._asked
        return new

    def settle(self, what: str, *known: str) -> None:
        """Name the entries that nobody asked for; `known` ones of the family change nothing, or are parts of these.

        Raises:
            ValueError: One of them says that layers are computed in another way.
        """
        left = {key: value for key, value in self._entries.items() if key not in self._asked and value is not None}
        refuse_layers(left, what)
        if {"layer_types", "use_sliding_window"} & self._asked & self._entries.keys():
            known = *known, "sliding_window"  # all layers may be without one
        if unread := sorted(left.keys() - HARMLESS - PLAIN.keys() - {*known}):
            warn(f"{what}: entries of its config that are not read: {shown(', '.join(unread))}; drafts may be worse")


def positive(given: Mapping[str, Any], name: str, what: str) -> int:
    """A whole number above 0 that the config must have."""
    value = given.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{what}: its config has no number {name}, but {value!r}")
    return value


def asked_length(given: Mapping[str, Any], what: str) -> int | None:
    """Units per draft that a config of speculators asks for, from 1 to 512; None where it names none."""
    config = given.get("speculators_config")
    methods = config.get("proposal_methods") if isinstance(config, Mapping) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    asked = first.get("speculative_tokens") if isinstance(first, Mapping) else None
    if asked is not None and (type(asked) is not int or not 1 <= asked <= 512):
        raise ValueError(f"{what}: speculative_tokens in its config is from 1 to 512, and not {shown(repr(asked))}")
    return asked


def number(given: Mapping[str, Any], name: str, default: float, what: str) -> float:
    """A number above 0 that the config may have."""
    value = given.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"{what}: {name} in its config is a number above 0, and not {value!r}")
    return float(value)


def activation(given: Mapping[str, Any], what: str) -> str:
    """The activation of the MLPs, one that transformers has, by its name; SiLU where the config names none."""
    named = list(dict.fromkeys(str(given[name]) for name in ACTIVATIONS if given.get(name) is not None)) or ["silu"]
    if len(named) > 1:
        raise ValueError(f"{what}: its config names two activations, {' and '.join(map(shown, named))}")
    if named[0] not in ACT2FN:
        raise ValueError(f"{what}: {unknown('activation', named[0], [*ACT2FN])}")
    return named[0]


def architectures(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of models in a config."""
    named = given.get("architectures")
    return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()


def refuse_gemma(given: Mapping[str, Any], what: str) -> None:
    """Refuse a head with layers of Gemma, which may have the same tensors.

    Raises:
        ValueError: The config names them.
    """
    for name in (*architectures(given), str(given.get("model_type") or "")):
        if "gemma" in name.lower():
            raise ValueError(
                f"{what} has layers of Gemma ({shown(name)}), with other norms and scales; the nearest that are "
                "computed are those of Llama and Qwen3"
            )


def refuse_layers(given: Mapping[str, Any], what: str) -> None:
    """Refuse a head whose layers are computed in another way, as an entry of its config says.

    Raises:
        ValueError: The message names the entry.
    """
    for name, value in PLAIN.items():
        if given.get(name) not in (None, value):
            raise ValueError(
                f"{what} has layers with {name} = {shown(repr(given[name]))}, which are not computed; the nearest that "
                "are, those of Llama and Qwen3, have none"
            )


def layer_kinds(given: Mapping[str, Any], layers: int, what: str) -> list[str]:
    """What each of a head's first layers attends over: `FULL` or `SLIDING`; as in Qwen's configs if none are named."""
    kinds = given.get("layer_types")
    if kinds is None:
        last = given.get("max_window_layers") if given.get("use_sliding_window") else None
        return [FULL if last is None or number < last else SLIDING for number in range(layers)]
    if not isinstance(kinds, list) or len(kinds) < layers or not {*map(str, kinds[:layers])} <= {FULL, SLIDING}:
        raise ValueError(f"{what}: layer_types names {FULL} or {SLIDING} for {layers} layers, not {shown(repr(kinds))}")
    return kinds[:layers]


def window(given: Mapping[str, Any], kind: str, what: str, name: str = "sliding_window") -> int | None:
    """Rows that a layer of a kind attends to, as the entry of that name says; None: all of them."""
    return positive(given, name, what) if kind == SLIDING and given.get("use_sliding_window") is not False else None


def rope(given: Mapping[str, Any], kinds: Collection[str], theta: float, what: str) -> dict[str, Any]:
    """Rotary parameters in transformers' names, of a head with layers of some `kinds`.

    The base is `theta` where the config has none; lengths are its own where the parameters have none.

    Raises:
        ValueError: They are of an unknown kind, of two kinds, or of a part of a head's numbers.
    """
    entry = next((name for name in ("rope_parameters", "rope_scaling") if given.get(name)), "rope_scaling")
    found = given.get(entry) or {}
    if isinstance(found, Mapping) and any(isinstance(value, Mapping) for value in found.values()):
        found, *others = [found.get(kind) for kind in kinds]
        if any(other != found for other in others):
            raise ValueError(f"{what} has other rotary positions in each of its layers ({entry}), which are not read")
    if not isinstance(found, Mapping):
        raise ValueError(f"{what}: {entry} in its config is an object, and not {found!r}")
    found = {key: value for key, value in found.items() if value is not None}
    old = found.pop("type", "default")
    kind = found.pop("rope_type", old)
    kind = ALIASES.get(kind, kind)
    if kind not in ROTARY:
        raise ValueError(f"{what}: {unknown(f'kind of rotary positions ({entry})', kind, ROTARY)}")
    refuse_layers({"partial_rotary_factor": found.pop("partial_rotary_factor", None)}, what)
    read = {key: found.pop(key) for key in (*ROTARY[kind], "rope_theta") if key in found}
    if found:
        warn(f"{what}: entries of {entry} in its config that are not read: {shown(', '.join(sorted(found)))}")
    if LENGTH in ROTARY[kind]:
        read[LENGTH] = given.get(LENGTH) or read.get(LENGTH) or positive(given, LENGTHS, what)
    if kind == "dynamic" or (kind == "longrope" and "factor" not in read):
        positive(given, LENGTHS, what)
    return {"rope_type": kind, "rope_theta": number(given, "rope_theta", theta, what), **read}


def agree(given: Mapping[str, Any], found: Mapping[str, int], what: str) -> None:
    """Refuse a config that counts something otherwise than the file.

    Raises:
        ValueError: The message names the entry.
    """
    for name, value in found.items():
        if given.get(name) not in (None, value):
            raise ValueError(f"{what}: its config has {name} {shown(repr(given[name]))}, and its file has {value}")


def drafted_ids(given: Mapping[str, Any], own: int | None, vocab: int, what: str) -> int:
    """Rows of the output layer.

    `own` are the rows of the head's own layer, None if it has none; `vocab` counts where the config says nothing else.

    Raises:
        ValueError: Config and layer contradict each other.
    """
    named = positive(given, "draft_vocab_size", what) if given.get("draft_vocab_size") is not None else None
    if own is not None and named is not None and own != named:
        raise ValueError(f"{what}: its config has draft_vocab_size {named}, and lm_head.weight has {own} rows")
    drafted = own or named or vocab
    if drafted > vocab:
        raise ValueError(
            f"{what} scores {drafted} ids, and its target has {vocab} (vocab_size): a head of another target"
        )
    return drafted


def flat(config: Mapping[str, Any], *parts: str) -> dict[str, Any]:
    """The entries that are set in some parts of a config, the later parts before the earlier ones."""
    found: dict[str, Any] = {}
    for part in parts:
        inner = config.get(part)
        if isinstance(inner, Mapping):
            found |= {key: value for key, value in inner.items() if value is not None}
    return found


def part_numbers(keys: Iterable[str], prefix: str, place: int = 1) -> set[int]:
    """The numbers at a place of keys that begin so: of `cells.2.norm`, 2 is at place 1."""
    found = (key.split(".") for key in keys if key.startswith(prefix))
    return {int(parts[place]) for parts in found if len(parts) > place and parts[place].isdecimal()}


def counted(found: Collection[int], given: Mapping[str, Any], names: tuple[str, ...], what: str) -> int:
    """How many parts a head has: as many as its files hold.

    `found` are the numbers of the parts in its files. The first of `names` in the config may name more, and too few.

    Raises:
        ValueError: Parts are missing.
    """
    named = next((positive(given, name, what) for name in names if given.get(name) is not None), 0)
    missing = next(part for part in range(len(found) + 1) if part not in found)
    wanted = max(max(found, default=0) + 1, named)
    if missing < wanted:
        said = f" ({' or '.join(names)})" if names else ""
        raise ValueError(f"{what} has no part {missing} of {wanted}{said}")
    return len(found)


def renamed(key: str, beginnings: Mapping[str, str]) -> str:
    """A key with another beginning, if `beginnings` says what its own is called here."""
    for old, new in beginnings.items():
        if key.startswith(old):
            return new + key.removeprefix(old)
    return key


def split_heads(given: Mapping[str, Any], queries: int, keys: int, what: str) -> tuple[int, int]:
    """The number of attention heads, and the numbers of each, where a row's queries and keys have so many numbers."""
    heads = positive(given, "num_attention_heads", what)
    head_dim = queries // heads if queries % heads == 0 else 0
    if not head_dim or keys % head_dim:
        raise ValueError(f"{what}: {queries} and {keys} numbers of queries and keys are not {heads} equal heads")
    return heads, head_dim


def numbered_ids(given: Mapping[str, Any], name: str, what: str) -> tuple[int, ...]:
    """Layer ids that the config may name, a list; () where it names none."""
    ids = given.get(name) or ()
    if not isinstance(ids, list | tuple) or not all(type(i) is int for i in ids):
        raise ValueError(f"{what}: {name} are numbers, got {ids!r}")
    return tuple(ids)
