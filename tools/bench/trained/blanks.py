"""A small XLNet over the shipped tokenizer, trained to fill blanks, and what it fills them with: ASSD's workload."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast, XLNetConfig, XLNetLMHeadModel

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Rejection
from mmspec_zoo.infill.any_order import Infill
from mmspec_zoo.infill.assd import Assd, AssdOptions
from mmspec_zoo.infill.xlnet import MASK, XLNetTarget

KNOWN, K, LENGTH = 0.05, 5, 128
"""The share of a text's tokens that are known, and the blanks of a draft, as in the released evaluation; and tokens."""


def begun(tokenizer: Any, folder: Path) -> None:
    """Write a small XLNet of random weights, whose tokenizer is the given one with `<mask>` in XLNet's place."""
    made = json.loads(tokenizer.backend_tokenizer.to_str())
    vocab = made["model"]["vocab"]
    moved = next(token for token, number in vocab.items() if number == MASK)
    vocab[moved], vocab["<mask>"] = len(vocab), MASK
    special = {"id": MASK, "content": "<mask>", "special": True, "normalized": False}
    made["added_tokens"].append({**special, "single_word": False, "lstrip": False, "rstrip": False})
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(made)), mask_token="<mask>").save_pretrained(
        folder
    )
    sizes = dict(d_model=192, n_layer=4, n_head=4, d_inner=512, dropout=0.0)
    torch.manual_seed(0)
    XLNetLMHeadModel(XLNetConfig(vocab_size=len(vocab), **sizes)).save_pretrained(folder)


@torch.no_grad()
def filled(model: Any, texts: Tensor, draft: Any) -> tuple[float, float]:
    """Blanks a pass, prefill and drafts included, and the share of drafts that are kept, of texts `[text, unit]` of
    which a small share is known; `draft` is `assd`'s option, None: without drafts.
    """
    g = torch.Generator().manual_seed(1)
    drafter = None if draft is None else Assd(AssdOptions(draft))
    decoder = Decoder(XLNetTarget(model), drafter, Rejection(), k=K)
    blanks = passes = drafted = accepted = 0
    for number, ids in enumerate(texts):
        known = torch.randperm(len(ids), generator=g)[: max(1, int(KNOWN * len(ids)))].tolist()
        inputs = Infill([[token if place in known else None for place, token in enumerate(ids.tolist())]])
        report = decoder.generate(inputs, inputs.limit, seed=number, on_step=inputs.end).report
        blanks, passes = blanks + report.emitted, passes + 1 + report.equivalent_passes
        drafted, accepted = drafted + report.drafted, accepted + report.accepted
    return round(blanks / passes, 3), round(accepted / max(drafted, 1), 3)
