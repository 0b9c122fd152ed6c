"""Writing a trained EAGLE-3 head as a checkpoint in the format of speculators, which vLLM serves and `eagle` reads.

A folder gets `config.json` (fields of `Eagle3SpeculatorConfig`) and `model.safetensors`, in half precision under the
format's keys. What is the target's own, its embedding and with the whole vocabulary its output layer, is not stored.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.training.files import half, write_files

VERSION = "0.5.0"
"""The version of the format that the fields are those of."""


def write_head(head: EagleNetwork, boundaries: Sequence[int], target: str, k: int, folder: Path) -> None:
    """Write a head; the live one is unchanged.

    Args:
        head: The head.
        boundaries: Of the target's layers, whose states it reads.
        target: The target's name.
        k: Units that a draft should have.
        folder: Receives the files; made if missing.

    Raises:
        ValueError: The head is of another version than EAGLE-3.
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
    layer = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": a.hidden,
        "intermediate_size": a.intermediate,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.key_heads,
        "head_dim": a.head_dim,
        "num_hidden_layers": a.layers,
        "vocab_size": a.vocab,
        "hidden_act": a.activation,
        "rms_norm_eps": a.eps,
        "rope_parameters": dict(a.rope),
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
