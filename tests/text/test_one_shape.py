"""One shape per call, in half precision: texts of the shipped model equal plain decoding of that width to the bit."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor

import mmspec
from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.loading import load_model, load_tokenizer
from tests.support.shorter_tokenizer import first_tokens

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
CORPUS = {"corpus": __file__, "tokenizer": "mmspec/text-14m"}
METHODS: dict[str, dict[str, Any]] = {
    "prompt-lookup": {"k": 6},
    "suffix": {"k": 8},
    "rest": {"k": 4, "options": CORPUS},
    "rasd": {"k": 3, "options": CORPUS},
    "united": {"k": 6, "options": {"first": "draft-tree", "nodes": 12}},
    "token-recycling": {"k": 4},
    "jacobi-text": {"k": 6},
    "lookahead": {"k": 5},
    "layer-skip": {"k": 3, "options": {"exit": 4}},
    "swift": {"k": 5, "options": {"window": 8}},
    "del": {"k": 4, "options": {"latest": 6}},
    "draft-model": {"k": 3},
    "pearl": {"k": 3, "options": {"executor": "serial"}},
    "saguaro": {"k": 3, "options": {"executor": "serial", "branches": 4}},
    "mirror-sd": {"k": 3, "options": {"executor": "serial"}},
    "draft-tree": {"k": 3, "options": {"nodes": 10}},
    "sequoia": {"k": 3, "options": {"nodes": 8}},
    "dyspec": {"k": 3, "options": {"nodes": 8}},
    "llmcad": {"k": 4, "options": {"nodes": 8, "threshold": 0.2}},
    "s2d": {"k": 4, "options": {"exits": (1, 2)}},
    "rapid": {"k": 3, "options": {"first": 1, "chunk": 4, "chunks": 1, "end": 4}},
    "ambedkar": {"k": 3, "options": {"condition": "All are equal before the law.\n"}},
    "vocab-trim": {"k": 3, "options": {"corpus": range(1024)}},
    "specmemo": {"k": 3, "options": {"nodes": 8, "memory_budget": "16MB"}},
    "omnidraft": {"k": 4, "options": {"assistant_tokenizer": first_tokens(load_tokenizer("mmspec/text-14m"), 2000)}},
    "cascade": {"k": 6, "options": {"budget": 64}},
    "triforce": {"k": 6, "options": {"budget": 64}},
    "eagle": {"k": 4, "drafter": "mmspec/text-14m-eagle3", "options": {"form": "chain"}},
    "eagle, a tree": {"k": 4, "drafter": "mmspec/text-14m-eagle3", "options": {"nodes": 16}},
}
DRAFTED = (
    *("ambedkar", "vocab-trim", "omnidraft", "specmemo", "llmcad", "s2d"),
    *("pearl", "saguaro", "mirror-sd", "sequoia", "dyspec", "rasd", "united"),
)
"""Methods beside `draft-…` that take the small model."""
TEXTS = [
    "def area(radius):\n    return",
    "class Stack:\n    def",
    "import os\n",
    "KING RICHARD:\nWhat say you",
    "for i in range(10):\n",
]


@pytest.fixture(scope="module")
def models() -> Callable[[str], tuple[Any, Any]]:
    """The model and its small draft model, in a dtype."""
    known: dict[str, tuple[Any, Any]] = {}

    def load(dtype: str) -> tuple[Any, Any]:
        if dtype not in known:
            names = "mmspec/text-14m", "mmspec/text-1m"
            known[dtype] = tuple(load_model(name, "cpu", DTYPES[dtype]) for name in names)  # type: ignore[assignment]
        return known[dtype]

    return load


@pytest.fixture(scope="module")
def prompts() -> Callable[[int, int], dict[str, Any]]:
    tokenizer = load_tokenizer("mmspec/text-14m")

    def make(batch: int, seed: int) -> dict[str, Any]:
        texts = [TEXTS[(seed + row) % len(TEXTS)] for row in range(batch)]
        return dict(tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False))

    return make


def made(models: Any, method: str, shape: Any) -> Decoder:
    model, small = models
    drafter = small if method.startswith("draft") or method in DRAFTED else None
    return decoder_for(model, method.partition(",")[0], shape=shape, **{"drafter": drafter, **METHODS[method]})


def texts(decoder: Decoder, inputs: dict[str, Any], limit: int, seed: int, temperature: float) -> list[list[int]]:
    seeds = [100 * seed + row for row in range(len(inputs["input_ids"]))]
    output = decoder.generate(inputs, limit, seed=seeds, warp=Warp.sampling(temperature=temperature))
    assert decoder.one_width() is None or set(output.report.sizes) == {decoder.one_width()}
    return [units.tolist() for units in output.units]


@pytest.mark.parametrize(
    ("method", "batch", "temperature"),
    [
        pytest.param("prompt-lookup", 3, 0.8, marks=pytest.mark.slow),
        ("suffix", 1, 1.0),
        pytest.param("draft-tree", 3, 0.8, marks=pytest.mark.slow),
    ],
)
def test_texts_equal_plain_of_one_width(models: Any, prompts: Any, method: str, batch: int, temperature: float) -> None:
    decoder = made(models("bfloat16"), method, "one")
    plain = Decoder(decoder.target, shape=decoder.one_width())
    call = prompts(batch, 0), 48, 0, temperature
    assert texts(decoder, *call) == texts(plain, *call)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "temperature"), [(1, 1.0), (3, 0.8)])
@pytest.mark.parametrize("method", METHODS)
def test_more_texts_equal_plain_of_one_width(
    models: Any, prompts: Any, method: str, batch: int, temperature: float, dtype: str
) -> None:
    decoder = made(models(dtype), method, "one")
    plain = Decoder(decoder.target, shape=decoder.one_width())
    for seed in range(6):
        call = prompts(batch, seed), 96, seed, temperature
        assert texts(decoder, *call) == texts(plain, *call)


@pytest.mark.slow
def test_without_one_shape_some_text_differs(models: Any, prompts: Any) -> None:
    """Else the tests here would show nothing."""
    decoder = made(models("bfloat16"), "prompt-lookup", "any")
    plain = Decoder(decoder.target)
    calls = ((prompts(1, seed), 96, seed, 0.8) for seed in range(12))
    assert any(texts(decoder, *call) != texts(plain, *call) for call in calls)


@pytest.mark.slow
def test_texts_of_two_widths_part(models: Any, prompts: Any) -> None:
    """A plain decoder's number is its width, and these texts are long enough to show that one node is not nine."""
    target = made(models("bfloat16"), "suffix", "any").target
    widths = [Decoder(target, shape=shape) for shape in (1, 9)]
    calls = ((prompts(1, seed), 96, seed, 0.8) for seed in range(12))
    assert any(texts(widths[0], *call) != texts(widths[1], *call) for call in calls)


def test_enable_and_custom_generate(models: Any, prompts: Any) -> None:
    model, inputs = models("bfloat16")[0], prompts(3, 0)
    call = dict(**inputs, max_new_tokens=32, do_sample=True, top_k=0, temperature=0.8)
    with mmspec.enable(model, "suffix", k=8, seed=5, shape="one") as spec:
        drafted = model.generate(**call)
        assert spec.report is not None and spec.report.shape == "to the bit with plain of width 9"
    with mmspec.enable(model, "plain", seed=5, shape=9):
        assert torch.equal(model.generate(**call), drafted)
    run = mmspec.custom_generate("suffix", k=8, seed=5, shape=9)
    assert torch.equal(model.generate(**call, custom_generate=run), drafted)
    with mmspec.enable(model, "suffix", k=8) as spec:
        model.generate(**call)
        assert spec.report is not None and spec.report.width is None, "on a CPU width costs time"


def test_a_call_without_drafts_keeps_the_width(models: Any, prompts: Any) -> None:
    class Counting(LogitsProcessor):
        """A processor that may keep state, so that drafts are forbidden."""

        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores

    model = models("bfloat16")[0]
    with mmspec.enable(model, "suffix", k=8, seed=5, shape="one") as spec, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.generate(**prompts(1, 0), max_new_tokens=8, do_sample=True, logits_processor=[Counting()])
        assert spec.report is not None and not spec.report.drafted and set(spec.report.sizes) == {9}


def test_a_method_wider_than_the_number_is_refused(models: Any) -> None:
    with pytest.raises(ValueError, match="k=8 have 9 nodes, the root included, and shape=5 has room for 5"):
        mmspec.enable(models("bfloat16")[0], "suffix", k=8, shape=5)


def test_float32_keeps_its_output_under_one_shape(target: Any, prompts: Any) -> None:
    inputs = {"input_ids": torch.arange(3, 17)[None], "attention_mask": torch.ones(1, 14, dtype=torch.int64)}
    outputs = []
    for shape in ("any", "one"):
        with mmspec.enable(target, "suffix", k=4, shape=shape):
            torch.manual_seed(0)
            outputs.append(target.generate(**inputs, max_new_tokens=24, do_sample=True))
            state = torch.get_rng_state()
    torch.manual_seed(0)
    assert torch.equal(target.generate(**inputs, max_new_tokens=24, do_sample=True), outputs[0])
    assert torch.equal(*outputs) and torch.equal(state, torch.get_rng_state())


def test_a_saved_pipeline_keeps_its_shape(tmp_path: Any) -> None:
    pipe = mmspec.Pipeline.from_pretrained("mmspec/text-1m", method="suffix", k=4, shape="one")
    pipe.save_pretrained(tmp_path)
    again = mmspec.Pipeline.from_pretrained(tmp_path)
    assert again.decoder().one_width() == 5 and again.decoder(k=6).one_width() == 7
    file = tmp_path / "speculation.json"
    for damaged in ('"once"', "0", "true", "[9]", "2.5"):
        file.write_text(f'{{"method": "suffix", "shape": {damaged}}}')
        with pytest.raises(ValueError, match="the shape is"):
            mmspec.Pipeline.from_pretrained(tmp_path)
