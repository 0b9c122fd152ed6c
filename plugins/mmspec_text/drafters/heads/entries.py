"""The entries of a head's config: those that are read, what they must be, and those that ask for what is not computed.

An entry that changes numbers is read, or refused by name: a `ValueError` with the head (`what`), the entry and what was
found there. One that is neither read nor known as harmless is named in a warning. The numbers that tensors show are
compared with the file's (`agree`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from transformers import GenerationConfig, LlamaConfig, PreTrainedConfig
from transformers.activations import ACT2FN

from mmspec.registry.printable import shown
from mmspec.registry.suggest import unknown
from mmspec.registry.warn import warn

FACTORS = ("embedding_multiplier", "input_embedding_scale", "logit_scale", "logits_scaling", "output_multiplier")
NORMS = ("use_input_layernorm_in_first_layer", "use_last_layernorm")
PLAIN = {
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar")),
    **dict.fromkeys(("attention_multiplier", "scale_depth")),
    **dict.fromkeys((*FACTORS, "partial_rotary_factor", "residual_multiplier", "scale_emb"), 1),
    **dict.fromkeys(("is_neox_style", "next_layer_regular", *NORMS), True),
    **dict.fromkeys(("rope_interleave", "use_mtp_layernorm"), False),
    "attention_mode": "gqa",
}
"""Entries of configs that no tensor shows, and their values for the layers that are computed: a turn of halves and of
all numbers, attention scaled by the width of a head alone, no factors. A family may read some of them."""
HARMLESS = frozenset(
    {
        *PreTrainedConfig().to_dict(),
        *GenerationConfig().to_dict(),
        *("add_cross_attention", "attention_dropout", "auto_map", "base_model_name_or_path", "clover"),
        *("confidence_head_alpha", "cross_attention_hidden_size", "decoder_sparse_step", "dflash_config"),
        *("draft_num_hidden_layers", "dspark_config", "eagle_config", "eagle_decoder_type", "embed_requires_grad"),
        *("enable_confidence_head", "finetuning_task", "has_lm_head", "has_no_defaults_at_init", "head_dim"),
        *("initializer_range", "input_type", "is_decoder", "markov_rank", "max_window_layers", "num_anchors"),
        *("num_key_value_heads", "num_target_layers", "prefix", "pretraining_tp", "pruned_heads", "selector_rank"),
        *("sep_token_id", "sliding_window_non_causal", "speculators_config", "speculators_model_type"),
        *("speculators_version", "step_loss_decay", "target_model_name_or_path", "target_model_type"),
        *("task_specific_params", "tf_legacy_loss", "tie_encoder_decoder", "tie_word_embeddings", "tokenizer_class"),
        *("torch_dtype", "torchscript", "transformer_layer_config", "ttt_length", "ttt_step_loss_decay", "ttt_steps"),
        *("use_bfloat16", "use_sliding_window", "verifier", "version", "vocab_size"),
    }
)
"""Entries that change no number of a head: of what the file is, of generation, of training; parts, whose own entries
are read; shapes, which tensors show; and what is read where the part is there that it is about."""
OF_LAYERS = (*LlamaConfig().to_dict(), "rope_scaling", "rope_theta", "sliding_window")
"""Entries that change none of a head without decoder layers, whose config may be a whole language model's."""


class Entries(Mapping[str, Any]):
    """The entries of a head's config that are set, and which of them were asked for.

    They are those of several `parts`, if these are objects; the first ones win. Going through all asks for all.
    """

    def __init__(self, *parts: object) -> None:
        self._entries, self._asked, self._twice = dict[str, Any](), set[str](), set[str]()
        for key, value in (item for part in parts if isinstance(part, Mapping) for item in part.items()):
            if value is not None and self._entries.setdefault(key, value) != value:
                self._twice.add(key)

    def __getitem__(self, name: str) -> Any:
        self._asked.add(name)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def settle(self, what: str, *known: str) -> None:
        """Name the entries that nobody asked for; `known` ones of the family change nothing, or are parts of these."""
        left = {key: value for key, value in self._entries.items() if key not in self._asked}
        refuse_layers(left, what)
        if {"layer_types", "use_sliding_window"} & self._asked & self._entries.keys():
            known = *known, "sliding_window"  # all layers may be without one
        if unread := sorted((left.keys() - PLAIN.keys() | self._twice) - HARMLESS - {*known}):
            warn(f"{what}: entries of its config that are not read, or one of two: {shown(', '.join(unread))}")


def refuse_layers(given: Mapping[str, Any], what: str, plain: Mapping[str, Any] = PLAIN) -> None:
    """Refuse a head whose layers are of a family that is not computed, though they may have the same tensors."""
    for name in (*architectures(given), str(given.get("model_type") or "")):
        if "gemma" in name.lower():
            raise ValueError(
                f"{what} has layers of Gemma ({shown(name)}), with other norms and scales; the nearest that are "
                "computed are those of Llama and Qwen3"
            )
    for name, value in plain.items():
        if given.get(name) not in (None, value):
            raise ValueError(
                f"{what} has layers with {name} = {shown(repr(given[name]))}, which are not computed; the nearest that "
                "are, those of Llama and Qwen3, have none"
            )


def agree(given: Mapping[str, Any], found: Mapping[str, object], what: str) -> None:
    """Refuse a config that says something else than the file."""
    for name, value in found.items():
        if given.get(name) not in (None, value):
            raise ValueError(f"{what}: its config has {name} {shown(repr(given[name]))}, and its file has {value}")


ACTIVATIONS = ("hidden_act", "hidden_activation")
"""Names that configs have for the activation of an MLP."""


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


def drafted_ids(given: Mapping[str, Any], own: int | None, vocab: int, what: str) -> int:
    """Rows of the output layer.

    `own` are the rows of the head's own layer, None if it has none; `vocab` counts where the config says nothing else.
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


def part_numbers(keys: Iterable[str], prefix: str, place: int = 1) -> set[int]:
    """The numbers at a place of keys that begin so: of `cells.2.norm`, 2 is at place 1."""
    found = (key.split(".") for key in keys if key.startswith(prefix))
    return {int(parts[place]) for parts in found if len(parts) > place and parts[place].isdecimal()}


def counted(found: Collection[int], given: Mapping[str, Any], names: tuple[str, ...], what: str) -> int:
    """The number of a head's parts: as many as its files hold.

    `found` are the numbers of the parts in its files. The first of `names` in the config may name more, and too few.
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
