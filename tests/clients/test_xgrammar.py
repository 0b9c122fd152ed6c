"""xgrammar: a processor with a state for every row, made anew for every call."""

from collections.abc import Callable
from typing import Any

import pytest

xgrammar = pytest.importorskip("xgrammar")
client = pytest.importorskip("xgrammar.contrib.hf")


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.filterwarnings("ignore:this call runs without drafts")
def test_json(model: Any, tokenizer: Any, both: Callable, rows: int) -> None:
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=model.config.vocab_size)
    grammar = xgrammar.GrammarCompiler(info).compile_builtin_json_grammar()
    inputs = tokenizer(
        ["the point as JSON: ", "a list: "][:rows], return_tensors="pt", padding=True, padding_side="left"
    )

    def ask() -> list[list[int]]:
        call = dict(max_new_tokens=24, do_sample=True, logits_processor=[client.LogitsProcessor(grammar)])
        return model.generate(**inputs, **call).tolist()

    both(model, ask)
