"""Any published head, at any setting of its configuration, drafts as its authors' class, or what is not done is named.

A case is a layout, up to three entries of its config or tensors that are otherwise, and a form of its files. Logits of
a chain are compared with a forward written out after the authors' class, which takes the same entries. An entry that
changes something there and nothing here is a finding; so is a refusal, or a warning, that does not name it; and so is
an entry of any configuration class of transformers that is neither read, nor named, nor known to change nothing.
"""

import json
import random
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.draws.claim import Broken, Case, Claim
from tests.draws.head_files import DTYPES, FORMS, ONE, rounded, write
from tests.draws.head_kinds import COUNTS, ENDS, KINDS, NESTED, Deep, Kind, Pathed, Prompted, Rowed
from tests.draws.head_settings import rotary, values, windows
from tests.support.eagle_layouts import TARGET, VOCAB
from tests.support.settled_forward import ROTARY, WINDOWS

CLOSE = 1e-5
"""Of the largest logit: what rounding to float32 costs; or thirty times what a change of last places costs there."""
SHAPES: dict[str, Sequence[Any]] = {"layers": (1, 2, 3), "biases": (True,), "embedding": (True,), "whole": (True,)}
"""Other shapes of a layout: layers, biases of queries, keys and values, an embedding of its own, all ids scored."""
NAMES: Mapping[str, tuple[str, ...]] = {
    "attention_bias": ("bias",),
    "clover": ("num_heads", "num_layers"),
    "biases": ("bias",),
    "embedding": ("embed_tokens",),
    "conv_kernel_size": ("conv",),
    "draft_vocab_size": ("d2t",),
    "fc_norm": ("fc_norm.", "aux_norm"),
    "head_dim": ("heads",),
    "hidden_act": ("activations",),
    "hidden_activation": ("activations",),
    "layer_types": ("sliding_window",),
    "layers": ("layers.",),
    "markov_head_type": ("markov_head",),
    "markov_rank": ("markov_head",),
    "mask_token_id": ("mask token",),
    "norm_before_fc": ("input_norm",),
    "parallel_drafting": ("P-EAGLE",),
    "num_attention_heads": ("head_dim", "heads"),
    "num_key_value_heads": ("head_dim", "heads"),
    "original_lm_head": ("lm_head",),
    "rope_parameters": ("rotary", "max_position_embeddings"),
    "rope_scaling": ("rotary", "max_position_embeddings"),
    "tie_weights": ("head.", "emb."),
    "target_hidden_size": ("fc_norm", "states of "),
    "use_aux_hidden_state": ("fc.weight", "hidden_norm"),
    "use_aux_norm": ("aux_norm", "fc_norm"),
    "swa_window_size": ("sliding_window",),
    "use_swa": ("sliding_window",),
    "vocab_size": (" ids", "lm_heads", "markov", "vocabulary", "codebook", "embed_proj"),
    "whole": ("ids", "lm_head"),
}
"""What else a message may call an entry: parts that it asks for."""
TRAINING = frozenset(
    {
        *("add_cross_attention", "cross_attention_hidden_size", "is_decoder", "tie_encoder_decoder"),
        *("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "auto_map", "base_model_name_or_path"),
        *("confidence_head_alpha", "decay_coefficient", "decoder_sparse_step", "draft_num_hidden_layers"),
        *("eagle_decoder_type", "embed_requires_grad", "heads_coefficient", "initializer_range", "loss_decay_gamma"),
        *("model_type", "n_candidates", "num_anchors", "num_lookahead_tokens", "num_target_layers", "pretraining_tp"),
        *("sep_token_id", "speculators_version", "step_loss_decay", "target_model_name_or_path", "target_model_type"),
        *("top_k_tokens_per_head", "torch_dtype", "ttt_length", "ttt_step_loss_decay", "ttt_steps", "verifier"),
        "version",
    }
)
"""Entries of training, and of what a file is."""
READ = frozenset(
    {
        *("conv_group_size", "conv_kernel_size", "pure_draft_prefix_len", "selector_top_k"),
        *("block_size", "causal", "causal_head", "clover", "draft_vocab_size", "dspark_bonus_anchor", "fc_norm"),
        *(
            "final_logit_softcapping",
            "kv_lora_rank",
            "q_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
        ),
        *("rope_interleave", "head_dim", "hidden_act", "hidden_activation", "hidden_size"),
        *("input_embedding_scale", "intermediate_size", "is_causal", "k_mask", "layer_types", "logit_scale"),
        *("markov_head_type", "mask_token_id", "max_position_embeddings", "max_window_layers"),
        *("medusa_num_heads", "medusa_num_layers", "n_predict", "norm_before_fc", "norm_before_residual"),
        *("norm_output", "num_attention_heads", "num_heads", "num_hidden_layers", "num_key_value_heads"),
        *("num_layers", "original_max_position_embeddings", "output_multiplier", "rms_norm_eps", "rope_parameters"),
        *("rope_scaling", "rope_theta", "sample_from_anchor", "scale_input", "shift_label", "sliding_window"),
        *("sliding_window_non_causal", "swa_window_size", "tie_weights", "tie_word_embeddings", "use_aux_norm"),
        *("use_aux_hidden_state", "use_sliding_window", "use_swa", "vocab_size", "attention_bias", "mlp_bias"),
        *("bias", "fusion_bias", "mask_token", "pard_token", "partial_rotary_factor", "ptd_token_id", "qkv_bias"),
        *COUNTS,
        *("hydra_num_heads", "hydra_num_layers", "parallel_drafting", "original_lm_head", "truncated_vocab_size"),
    }
)
"""Entries that the reference takes, or of which the tensors tell."""
PLAIN: Mapping[str, Any] = {
    **dict.fromkeys(("logits_scaling", "embedding_multiplier", "residual_multiplier", "scale_emb"), 1),
    **dict.fromkeys(("is_neox_style", "next_layer_regular"), True),
    **dict.fromkeys(("rope_interleave", "use_mtp_layernorm"), False),
}
"""Entries that no reference takes, and their values for what every reference computes."""
REMOTE: Mapping[str, Any] = {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256, "mup_denominator": 32}
"""Entries of configuration classes that are not in transformers: MiniCPM's."""
FEATURES = frozenset({"target_layer_ids", "aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids"})
"""Entries that say which of the target's states are read, which no logits of given features show."""
OF_LAYERS = frozenset({"rms_norm_eps", "hidden_act", "layer_types", "rope_theta", "rope_scaling", "rope_parameters"})
KINDS_OF_HARM = frozenset({*PreTrainedConfig().to_dict(), *GenerationConfig().to_dict()} - {"tie_word_embeddings"})


@cache
def universe() -> Mapping[str, Any]:
    """The entries that configuration classes of language models have, by asking them, with a value of each."""
    found: dict[str, Any] = dict(REMOTE)
    for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            entries = CONFIG_MAPPING[name]().to_dict()
        except Exception:  # some cannot be made of nothing
            continue
        for key, value in entries.items():
            if value is not None and not isinstance(value, Mapping) and key not in ("architectures", "model_type"):
                found.setdefault(key, value)
    return dict(sorted(found.items()))


def place_of(config: Mapping[str, Any], key: str, kind: Kind) -> str:
    """Where an entry is in a config, or would be: its name, behind that of the part that it is in."""
    for part in NESTED:
        if isinstance(config.get(part), Mapping) and key in config[part]:
            return f"{part}.{key}"
    return key if key in config or not kind.nested else f"{kind.nested[0]}.{key}"


def changed(config: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """A config with other entries, by their places; None takes one out."""
    made: dict[str, Any] = json.loads(json.dumps(config))
    for place, value in entries.items():
        *outer, key = place.split(".")
        inside = made
        for part in outer:
            inside = inside.setdefault(part, {})
        inside.pop(key, None) if value is None else inside.update({key: value})
    return made


class Heads(Claim):
    """See the module."""

    name = "heads"
    share = 1.0
    fixed = 400
    needed = frozenset({"head"})

    def draw(self, dice: random.Random) -> Case:
        name = dice.choice(sorted(KINDS))
        kind = KINDS[name]
        case: Case = {"head": name}
        if dice.random() < 0.5:
            case["form"] = dice.choice(FORMS[:2] if isinstance(kind, Deep) else FORMS if kind.stem == "model" else ONE)
            case["dtype"] = "float32" if isinstance(kind, Deep) and kind.chained else dice.choice(DTYPES)
        if isinstance(kind, Rowed) and "kv_lora_rank" not in kind.config and dice.random() < 0.4:
            part = dice.choice(sorted(SHAPES))
            case[f"shape.{part}"] = dice.choice(SHAPES[part])
        for _ in range(dice.choice((1, 1, 2, 3))):
            case |= self._otherwise(kind, int(case.get("shape.layers") or 0), dice)
        return case

    def _otherwise(self, kind: Kind, layers: int, dice: random.Random) -> Case:
        config, way = kind.config, dice.random()
        own = [place for place in places(config) if place.split(".")[0] in NESTED or "." not in place]
        own = [place for place in own if place not in ("architectures", "speculators_model_type")]  # of the layout
        if way < 0.05:
            w, _ = kind.weights({})
            key = dice.choice(sorted({*w} - {*ENDS}) if isinstance(kind, Deep) else sorted(w))
            return {dice.choice(("tensor.lack", "tensor.odd")): key}
        if isinstance(kind, Deep) and way < 0.6:
            return {f"config.{dice.choice(COUNTS)}": dice.choice((None, 0, 1, 2, 3))}
        if isinstance(kind, Prompted):
            place = dice.choice(sorted(config))
            return {f"config.{place}": values(place, config[place], dice)}
        if isinstance(kind, Deep) or way < 0.12:
            return {"tensor.more": dice.choice(more_tensors(kind))}
        found: dict[str, Any] = {}
        rowed, layered = isinstance(kind, Rowed), "rms_norm_eps" in config or isinstance(kind, Rowed)
        if layered and way < 0.32:
            found = rotary(dice, layers or len_layers(kind))
            found = found if rowed else {key: value for key, value in found.items() if key not in WINDOWS}
        elif rowed and way < 0.44:
            found = windows(dice, layers or len_layers(kind))
        elif way < 0.62 and own:
            place = dice.choice(own)
            return {f"config.{place}": values(place.split(".")[-1], value_at(config, place), dice)}
        else:
            named = dice.choice(sorted({*READ, *REMOTE})) if dice.random() < 0.75 else dice.choice(list(universe()))
            found = {named: values(named, universe().get(named), dice)}
            if named == "tie_word_embeddings" and rowed and dice.random() < 0.7:
                return {**self._placed(kind, found), "shape.embedding": True, "tensor.lack": "lm_head.weight"}
        return self._placed(kind, found)

    def _placed(self, kind: Kind, found: Mapping[str, Any]) -> Case:
        return {f"config.{place_of(kind.config, key, kind)}": value for key, value in found.items()}

    def files(self, case: Case, folder: Path) -> None:
        """Write the head of a case."""
        kind = KINDS[case["head"]]
        w, config = tensors(case), config_of(case)
        files = {kind.named(key): value for key, value in w.items()} | {key: torch.zeros(2) for key in kind.extra}
        dtype = case.get("dtype", "float32")
        files |= kind.lent | {key: w[of] for key, of in kind.copies.items() if of in w and key not in files}
        files |= extras(case, w)
        write(folder, rounded(files, dtype), config, kind.stem, case.get("form", "one"))

    def ours(self, case: Case) -> tuple[Tensor, str]:
        """The logits that mmspec drafts with, `[step, vocab]`, and what it warns of."""
        with TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.files(case, Path(folder) / "head")
            found = KINDS[case["head"]].ours(Path(folder) / "head")
        return found, " ".join(str(each.message) for each in said)

    def theirs(self, case: Case, dtype: torch.dtype = torch.float64) -> Tensor:
        """The logits of the reference, `[step, vocab]`."""
        w = {key: value.to(dtype) if value.is_floating_point() else value for key, value in stored(case).items()}
        return KINDS[case["head"]].theirs(w, config_of(case))

    def run(self, case: Case) -> str:
        otherwise = {key for key in case if key not in ("head", "dtype", "form")}
        try:
            ours, said = self.ours(case)
        except (ValueError, TypeError) as error:
            shown = re.search(r"Its keys are ([^,]+), ", str(error))
            if shown and shown[1] not in keys_of(case):
                raise Broken(f"names a key that the file does not have: {error}") from error
            if not any(is_named(key, case, str(error)) for key in otherwise):
                raise Broken(f"refused, and what is otherwise is not named: {error}") from error
            return "refused"
        warned = {key for key in otherwise if key.startswith("config.") and key.rpartition(".")[2] in said}
        silent = sorted(key for key in otherwise - warned if not self._known(key, case))
        if silent:
            raise Broken(f"taken, and neither read nor named: {', '.join(silent)}")
        # Of rotary parameters a part is named: which one counts is for the authors' class to say.
        left = {key for key in warned if key.rpartition(".")[2] not in ROTARY}
        theirs_case = {key: value for key, value in case.items() if key not in left}
        try:
            theirs = self.theirs(theirs_case)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise Broken(f"taken, and its authors' class does not compute it: {what}") from error
        finite = theirs.isfinite()
        if ours.shape != theirs.shape or not torch.equal(finite, ours.isfinite()):
            raise Broken(f"logits are {list(ours.shape)}, and {list(theirs.shape)}; or other ids have none")
        largest = float(theirs[finite].abs().max())
        off = [float((ours - theirs)[i][finite[i]].abs().max()) / largest for i in range(len(theirs))]
        if max(off) > CLOSE and max(off) > 30 * self._rounding(theirs_case, theirs, largest):
            raise Broken(f"off by {', '.join(f'{each:.1e}' for each in off)} of the largest logit, step by step")
        return "warned" if warned else "equal"

    def _rounding(self, case: Case, theirs: Tensor, largest: float) -> float:
        """What a change of the tensors' last place in float32 costs the reference."""
        g = torch.Generator().manual_seed(0)
        w = {}
        for key, value in stored(case).items():
            off = 1 + 6e-8 * torch.randn(value.shape, generator=g) if value.is_floating_point() else 1
            w[key] = value.double() * off if value.is_floating_point() else value
        other = KINDS[case["head"]].theirs(w, config_of(case))
        return float((other - theirs)[theirs.isfinite()].abs().max()) / largest

    def _known(self, key: str, case: Case) -> bool:
        """Whether what is otherwise is known to the reference, or to change nothing."""
        first, _, rest = key.partition(".")
        if first in ("shape", "tensor"):
            return first == "shape" or key == "tensor.lack" or case[key] in HARMLESS_TENSORS
        name = rest.split(".")[-1]
        if name in KINDS_OF_HARM | TRAINING | FEATURES | READ or case["head"] == "ppd:ppd":
            return True
        return case[key] in (None, PLAIN.get(name)) or case[key] == value_at(KINDS[case["head"]].config, rest)

    def space(self) -> Iterator[str]:
        yield from (f"layout:{name}" for name in KINDS)
        yield from (f"entry:{name}" for name in sorted({*universe(), *READ}))
        yield from (f"dtype:{name}" for name in DTYPES)
        yield from (f"form:{name}" for name in FORMS)
        yield from (f"shape:{name}" for name in SHAPES)

    def parts(self, case: Case) -> Iterator[str]:
        yield f"layout:{case['head']}"
        yield f"dtype:{case.get('dtype', 'float32')}"
        yield f"form:{case.get('form', 'one')}"
        for key in case:
            first, _, rest = key.partition(".")
            if first == "config" and rest.split(".")[-1] in {*universe(), *READ}:
                yield f"entry:{rest.split('.')[-1]}"
            if first == "shape":
                yield f"shape:{rest}"

    def program(self, case: Case) -> str:
        return f"""import torch
from tests.draws.heads import CLAIM, config_of

case = {case!r}
print(config_of(case))  # what config.json says
ours, said = CLAIM.ours(case)  # logits of a chain behind random features, step by step; and warnings
theirs = CLAIM.theirs(case)  # those of the forward written out in tests/support/settled_forward.py
print(said)
for one, other in zip(ours, theirs):
    there = other.isfinite()
    print(float((one - other)[there].abs().max() / other[there].abs().max()))
"""


def places(config: Mapping[str, Any], outer: str = "") -> list[str]:
    """Where the entries of a config are; those inside of parts that hold entries have the part's name before theirs."""
    found = list[str]()
    for key, value in config.items():
        inside = places(value, f"{key}.") if isinstance(value, Mapping) and key in NESTED else []
        found += inside or [f"{outer}{key}"]
    return found


def value_at(config: Mapping[str, Any], place: str) -> Any:
    """The entry at a place; None where there is none."""
    found: Any = config
    for part in place.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def len_layers(kind: Kind) -> int:
    """Layers of a layout as it is."""
    numbers = [key.split(".")[1] for key in kind.weights({})[0] if key.startswith("layers.")]
    return 1 + max((int(number) for number in numbers), default=0)


def config_of(case: Case) -> dict[str, Any]:
    """The config of a case."""
    kind = KINDS[case["head"]]
    _, more = kind.weights(shape_of(case))
    entries = {place_of(kind.config, key, kind): value for key, value in more.items()}
    own = {key.removeprefix("config."): value for key, value in case.items() if key.startswith("config.")}
    return changed(kind.config, {**entries, **own})


def shape_of(case: Case) -> dict[str, Any]:
    return {key.removeprefix("shape."): value for key, value in case.items() if key.startswith("shape.")}


def tensors(case: Case) -> dict[str, Tensor]:
    """The tensors of a case, by our names."""
    w, _ = KINDS[case["head"]].weights(shape_of(case))
    w.pop(case.get("tensor.lack", ""), None)
    return w


def stored(case: Case) -> dict[str, Tensor]:
    """The tensors of a case as its files hold them."""
    return rounded(tensors(case), case.get("dtype", "float32"))


HARMLESS_TENSORS = ("layers.0.self_attn.k_scale", "layers.0.input_layernorm.weight", "equal copy")
"""Tensors beside a head's own that change nothing; EAGLE-1's class has no such norm in the first layer."""


def more_tensors(kind: Kind) -> list[str]:
    """Tensors that a file may have beside its own: of these some change nothing, and others are to be named."""
    first = [] if HARMLESS_TENSORS[1] in kind.weights({})[0] else [HARMLESS_TENSORS[1]]
    first = first if isinstance(kind, Rowed) and not kind.fused else []
    copies = ["equal copy", "other copy", "other copy"] if kind.copies or kind.may_repeat else []
    rowed = [*HARMLESS_TENSORS[:1], *first] if isinstance(kind, Rowed) and kind.family == "eagle" else []
    return [*rowed, *copies, "0.odd.weight"]


def keys_of(case: Case) -> set[str]:
    """The keys in the files of a case."""
    kind, w = KINDS[case["head"]], tensors(case)
    return {*map(kind.named, w), *kind.extra, *kind.lent, *kind.copies, *extras(case, w)}


def extras(case: Case, w: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors beside a head's own."""
    kind, found = KINDS[case["head"]], dict[str, Tensor]()
    if "tensor.odd" in case:
        beside = kind.named(case["tensor.odd"]).rpartition(".")[0]
        found[f"{beside}.odd" if beside else "odd.weight"] = torch.ones(2)
    more = case.get("tensor.more")
    if more in ("equal copy", "other copy"):
        off = 0.5 if more == "other copy" else 0
        found |= {key: w[of] + off for key, of in kind.copies.items() if of in w}
        found |= {key: value + off for key, value in kind.may_repeat.items()}
    elif more:
        shape = (TARGET,) if more.endswith("norm.weight") else (1,) if more.endswith("scale") else (VOCAB, 4)
        found[prefix(kind) + kind.named(more)] = torch.full(shape, 5.0)
    return found


def prefix(kind: Kind) -> str:
    """What all keys of a head begin with that may be stored beside its target's."""
    if isinstance(kind, Deep):
        return kind.layout.place(kind.layout.block, 0)
    firsts = {key.partition(".")[0] for key in kind.weights({})[0]} - {"token_map"}
    return f"{firsts.pop()}." if isinstance(kind, Pathed) and len(firsts) == 1 else ""


def is_named(key: str, case: Case, said: str) -> bool:
    """Whether a message names what is otherwise: the entry, a part of its value, or the tensor."""
    first, _, rest = key.partition(".")
    name, value, kind = rest.split(".")[-1], case[key], KINDS[case["head"]]
    words = [name, *NAMES.get(name, ())]
    if key == "tensor.lack":
        words = [
            " missing",
            "no weights",
            " fit",
            "nothing reads",
            "has no ",
            "lacks ",
            "there is no ",
            kind.named(value),
        ]
    elif first == "tensor":
        words = ["nothing reads", "without a place", str(value), *kind.copies, *kind.may_repeat]
    elif isinstance(value, Mapping):
        words += [str(part) for part in value]
    elif isinstance(value, str):
        words.append(repr(value))
    return any(word in said for word in words)


CLAIM = Heads()
