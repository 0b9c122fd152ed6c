"""A tiny Llama of random weights over bytes, with its tokenizer, in a folder: what training recipes run on in tests."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""A chat template: a turn ends with `<end>` and a newline, which the target does not write."""


def save(folder: Path, template: str | None = None, reach: int = 64) -> Path:
    """Write the model; id 0 is `<end>`, which begins and ends texts, and every byte has an id: 257 in all."""
    words = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bytes_ = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_, bos_token="<end>", eos_token="<end>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2)
    sizes["max_position_embeddings"] = reach
    config = LlamaConfig(vocab_size=len(words), num_key_value_heads=1, bos_token_id=0, eos_token_id=0, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
