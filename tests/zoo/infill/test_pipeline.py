"""`InfillPipeline`: what stands around the blanks stays, and the blanks are filled in the order that was asked for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.rules import Rejection
from mmspec_zoo.infill.any_order import Infill
from mmspec_zoo.infill.assd import Assd
from mmspec_zoo.infill.pipeline import InfillPipeline
from mmspec_zoo.infill.xlnet import XLNetTarget
from tests.support.examples.zoo import tiny_xlnet as model

TEXTS = ["a <mask> <mask> b <mask> <mask> <mask> c", "<mask> d <mask>"]


def tokenizer(words: str = "a b c d e f <mask> g", mask: str = "<mask>") -> PreTrainedTokenizerFast:
    made = Tokenizer(WordLevel({word: number for number, word in enumerate(words.split())}, unk_token="a"))
    made.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, mask_token=mask)


@pytest.fixture(scope="module")
def pipe() -> Any:
    return InfillPipeline(model(), tokenizer())


def test_texts_without_their_blanks(pipe: Any) -> None:
    """A text of a batch is the text alone, and what the decoder gives."""
    together = pipe(TEXTS, seed=[3, 4])
    assert together.report.method == "assd" and together.report.exactness == "lossless"
    for row, text in enumerate(TEXTS):
        alone, words = pipe(text, seed=3 + row), text.split()
        assert alone.texts == [together.texts[row]] and torch.equal(alone.ids[0], together.ids[row])
        filled = together.texts[row].split()
        assert len(filled) == len(words) and "<mask>" not in filled
        assert all(new == old for new, old in zip(filled, words, strict=True) if old != "<mask>")
    inputs = Infill([[0, None, None, 1, None, None, None, 2], [None, 3, None]])
    decoder = Decoder(XLNetTarget(model()), Assd(), Rejection(), k=5)
    output = decoder.generate(inputs, inputs.limit, seed=[3, 4], on_step=inputs.end)
    assert all(torch.equal(a, b) for a, b in zip(output.units, together.ids, strict=True))


def test_an_order_of_the_blanks(pipe: Any) -> None:
    """Greedy: the first of them is the likeliest token of its own blank, whatever the others are."""
    backwards = pipe(TEXTS[0], order=[4, 3, 2, 1, 0], temperature=0)
    target = XLNetTarget(model())
    first = target.start(Infill([[0, None, None, 1, None, None, None, 2]], [[6, 5, 4, 2, 1]]), 1, 1).output.logits
    assert first is not None and int(backwards.ids[0][0]) == int(first.argmax())
    words = backwards.texts[0].split()
    assert words[6] == tokenizer().decode(backwards.ids[0][0]) and words[1] == tokenizer().decode(backwards.ids[0][-1])
    both = pipe(TEXTS, order=[[4, 3, 2, 1, 0], [1, 0]], temperature=0)
    assert both.texts[0] == backwards.texts[0]


def test_match_gives_what_plain_gives(pipe: Any) -> None:
    plain = pipe.use("plain")(TEXTS, seed=7)
    ours = pipe.use("assd", rule="match", k=3)(TEXTS, seed=7)
    pipe.use("assd")
    assert plain.texts == ours.texts and ours.report.rounds < plain.report.rounds


def test_saved_and_loaded(pipe: Any, tmp_path: Path) -> None:
    """As a pipeline, and from the folder of a model, which says itself what it is for."""
    pipe.use("assd", k=2).save_pretrained(tmp_path / "pipe")
    model().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    expected = pipe(TEXTS, seed=1).texts
    pipe.use("assd")
    saved = mmspec.Pipeline.from_pretrained(tmp_path / "pipe")
    assert isinstance(saved, InfillPipeline) and saved.decoder().k == 2
    assert saved(TEXTS, seed=1).texts == expected
    loaded = mmspec.Pipeline.from_pretrained(str(tmp_path / "model"), k=2)
    assert isinstance(loaded, InfillPipeline) and loaded.decoder().name == "assd"
    assert loaded(TEXTS, seed=1).texts == expected


def test_bad_input(pipe: Any) -> None:
    for prompt, order, says in (
        ("a b", None, "text 0 has no blank"),
        ("<mask> <mask>", None, "no known token"),
        ([], None, "list of at least one text"),
        (TEXTS[1], [0, 0], r"numbers 0 … 1 of the text's blanks, each once; got \[0, 0\]"),
        (TEXTS[1], [1], "each once"),
        (TEXTS, [[1, 0]], "order is a list of 2 lists of numbers"),
        (TEXTS, [1, 0], "order is a list of 2 lists of numbers"),
    ):
        with pytest.raises(ValueError, match=says):
            pipe(prompt, order=order)
    with pytest.raises(ValueError, match="mask token has the id 2, and that of XLNet is 6"):
        InfillPipeline(model(), tokenizer(mask="c"))(TEXTS)
