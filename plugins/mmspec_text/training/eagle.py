"""New heads of the EAGLE family for a target, and their files: EAGLE-3 (Li et al., arXiv 2503.01840), EAGLE-1
(2401.15077), FSPAD (Gui et al., 2408.15562), Falcon (Gao et al., doi 10.1609/aaai.v39i22.34566).

Embedding and, with the whole vocabulary, output layer are the target's and stay as they are. A new head begins where
its states are the target's last ones, so that at first it scores as the target's output layer does.

EAGLE-3's files are those that vLLM serves: `config.json` (fields of `Eagle3SpeculatorConfig`) and `model.safetensors`,
in half precision under the format's keys. What is the target's own is not stored. Those of the other three are what
their authors' loaders take, with a copy of the target's embedding. These heads learn a feature, the next or, Falcon's,
the one k places on, and beside it the target's distribution; FSPAD's from a state of its own that is no feature. The
authors train with AdamW at 3e-5 and 5e-5 over 20 to 40 epochs; here it is the one loop of all kinds. Falcon's released
loss compares distributions at the temperature 0.95, and draws its hard units from the target's; here it is 1, and they
are the text's.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.hidden import FINAL
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from mmspec_text.drafters.heads.eagle.family import SPECULATORS, Architecture
from mmspec_text.drafters.heads.eagle.network import LAYERS, EagleNetwork
from mmspec_text.training.new_head import NewHead, draw_weights, half, join_model, layer_entries, sizes_for, write_files
from mmspec_text.training.recipe import DrafterRecipe

LEAST = 8
"""Layers of a target above which the released boundaries lie apart."""
VERSION = "0.5.0"
"""The version of the format that has these fields."""


def begun_eagle(model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
    """An EAGLE-3 head; arguments as in `Begin`. One that the recipe names keeps its ids."""
    if recipe.head is not None:
        head, boundaries = trained_before(model, recipe.head)
    else:
        boundaries = usual_boundaries(model.config.get_text_config(decoder=True).num_hidden_layers)
        head = new_head(model, boundaries, recipe.intermediate, ids, recipe.seed)
    return NewHead(head, boundaries, "layers", partial(write_head, head, boundaries, name, recipe.depth))


def begun_first(kind: str, model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
    """A head of the kind eagle (EAGLE-1), fspad or falcon; the other arguments are as in `Begin`, without `ids`."""
    sizes, fspad, block = sizes_for(model, recipe.intermediate), kind == "fspad", 1
    if kind == "falcon":
        block = recipe.depth
        if block < 2:
            raise ValueError("a head of Falcon drafts blocks of two units or more (depth)")
    architecture = Architecture(
        **sizes,
        layers=1,
        draft_vocab=sizes["vocab"],
        features=1,
        fused=False,
        projected=False,
        own_output=False,
        final_norm=False,
        embedding_norm=False,
        first_norms=frozenset(),
        biases=frozenset({"fc", "lstm"}),
        sampled=fspad,
        split=fspad,
        block=block,
    )
    head = EagleNetwork(architecture, sizes["vocab"])
    draw_weights(head, recipe.seed)
    joined, hidden = "fc.fc" if fspad else "fc", architecture.hidden
    with torch.no_grad():
        if head.lstm is not None:
            g = torch.Generator().manual_seed(recipe.seed)
            for weights in head.lstm.parameters():  # as torch's begins
                nn.init.uniform_(weights, -(hidden**-0.5), hidden**-0.5, g)
        else:
            head.get_parameter(f"{joined}.weight")[:, -hidden:] += torch.eye(hidden)
            head.get_parameter(f"{joined}.bias").zero_()
    join_model(head, model)
    return NewHead(head, (FINAL,), "layers", partial(write_first, head, name))


def write_first(head: EagleNetwork, target: str, folder: Path) -> None:
    """Write a head of EAGLE-1, FSPAD or Falcon for a target of that name, in its authors' layout."""
    a = head.architecture
    weights = {key: half(value) for key, value in head.state_dict().items()}
    weights["embed_tokens.weight"] = half(head.of_target(0).weight[: a.vocab])
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "verifier": target,
        "pad_token_id": 0,  # their class asks for one
        **layer_entries(a, a.layers, a.vocab),
        "dtype": "float16",
    }
    if head.lstm is None:
        config["bias"] = True  # of `fc`
    else:
        config["k_mask"] = a.block
        none = torch.zeros(4 * a.hidden, a.hidden, dtype=torch.float16)  # of a past that a cell does not have
        weights |= {f"lstm.weight_hh_l{number}": none.clone() for number in range(LAYERS)}
    write_files(weights, config, folder, "pytorch_model.bin")


def usual_boundaries(layers: int) -> tuple[int, ...]:
    """An early, a middle and a late boundary of a target with so many layers, as in EAGLE-3's released code.

    Of a target with few layers the last one is in the place of the late one.
    """
    if layers > LEAST:
        return 2, layers // 2, layers - 3
    return tuple(sorted({min(2, layers), (layers + 2) // 2, layers}))


def new_head(
    model: Any, boundaries: Sequence[int], intermediate: int | None, ids: Tensor | None, seed: int
) -> EagleNetwork:
    """A head before training.

    It reads the states at `boundaries`, and scores `ids`, `[draft vocabulary]` int64, ascending; None: all of them,
    with the target's output layer.
    """
    sizes = sizes_for(model, intermediate)
    hidden, vocab = sizes["hidden"], sizes["vocab"]
    architecture = Architecture(
        **sizes,
        layers=1,
        draft_vocab=vocab if ids is None else len(ids),
        features=len(boundaries),
        fused=True,
        projected=True,
        own_output=ids is not None,
        final_norm=True,
        embedding_norm=False,
        first_norms=frozenset({"input_layernorm", "hidden_norm"}),
        norm_before_residual=True,
        fc_norm=True,
    )
    head = EagleNetwork(architecture, vocab)
    draw_weights(head, seed)
    with torch.no_grad():
        head.get_parameter("fc.weight")[:, -hidden:] += torch.eye(hidden)
        if ids is not None and head.lm_head is not None:
            head.lm_head.weight.copy_(model.get_output_embeddings().weight[ids])
    head.ids = ids
    join_model(head, model)
    return head


def trained_before(model: Any, name: str) -> tuple[EagleNetwork, tuple[int, ...]]:
    """A stored head to go on from, and the boundaries that it reads."""
    stored, config = read_checkpoint(name), model.config.get_text_config(decoder=True)
    a = stored.architecture
    plain = a.fused and a.projected and a.latent is None and len(stored.layer_ids) == a.features
    if stored.layout is not SPECULATORS or not plain:
        raise ValueError(f"training goes on from plain EAGLE-3 heads in the format of speculators; {name!r} is another")
    if a.target_hidden != config.hidden_size or max(stored.layer_ids) > config.num_hidden_layers:
        raise ValueError(
            f"the head {name!r} reads states of {a.target_hidden} numbers at layers "
            f"{stored.layer_ids}, and the target has {config.num_hidden_layers} layers of {config.hidden_size}"
        )
    head = stored.network(config.vocab_size).requires_grad_(True)
    join_model(head, model)
    return head, stored.layer_ids


def write_head(head: EagleNetwork, boundaries: Sequence[int], target: str, k: int, folder: Path) -> None:
    """Write a head; the live one is unchanged.

    It reads the target's states at `boundaries`; a draft should have `k` units.
    """
    write_files(tensors_of(head), config_of(head, boundaries, target, k), folder)


def tensors_of(head: EagleNetwork) -> dict[str, Tensor]:
    """A head's tensors under the format's keys, in float16; with a pruned vocabulary the maps of its ids, too."""
    weights = {key: half(value) for key, value in head.state_dict().items()}
    if head.ids is not None:
        ids = head.ids.cpu()
        weights["d2t"] = ids - torch.arange(len(ids))
        weights["t2d"] = torch.zeros(head.architecture.vocab, dtype=torch.bool).index_fill(0, ids, True)
    return weights


def config_of(head: EagleNetwork, boundaries: Sequence[int], target: str, k: int) -> dict[str, Any]:
    """The `config.json` of a head; arguments as in `write_head`."""
    a = head.architecture
    if not a.fused or not a.projected:
        raise ValueError("only heads of EAGLE-3 are written: this one reads the target's last state alone")
    layer = layer_entries(a, a.layers, a.vocab) | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": "q_proj" in a.biases,
        "mlp_bias": "up_proj" in a.biases,
        "tie_word_embeddings": False,
    }
    method = {
        "proposal_type": "greedy",
        "speculative_tokens": k,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": target, "architectures": []},
        },
        "draft_vocab_size": a.draft_vocab,
        "target_hidden_size": a.target_hidden,
        "eagle_aux_hidden_state_layer_ids": list(boundaries),
        "norm_before_residual": a.norm_before_residual,
        "norm_before_fc": a.norm_before_fc,
        "fc_norm": a.fc_norm,
        "norm_output": a.norm_output,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "dtype": "float16",
        "transformer_layer_config": layer,
    }
