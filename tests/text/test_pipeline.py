"""The text pipeline, on a saved tiny model with a tokenizer made here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, SuppressTokensLogitsProcessor, TextStreamer

import mmspec
from mmspec.api import pipeline
from mmspec.core.report import Report
from mmspec.kits.text.pipeline import TextPipeline, TextPipelineOutput
from mmspec.registry import Registry, TargetSpec, installed

PROMPTS = ["the cat and the dog and the ", "a dog", "cats and dogs and c"]


@pytest.fixture(scope="module")
def folder(make_llama: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model over bytes; its tokenizer has no padding token."""
    place = tmp_path_factory.mktemp("bytes")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = dict(special_tokens=["<end>"], show_progress=False)
    bpe.train_from_iterator(PROMPTS, trainers.BpeTrainer(initial_alphabet=alphabet, **special))
    PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>").save_pretrained(place)
    model = make_llama(vocab_size=bpe.get_vocab_size(), eos_token_id=0)
    model.generation_config.eos_token_id = list(range(0, 200, 11))
    model.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def pipe(folder: Path) -> Any:
    return mmspec.Pipeline.from_pretrained(folder, method="prompt-lookup", k=3)


def seeded(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def same(a: TextPipelineOutput, b: TextPipelineOutput) -> bool:
    return a.texts == b.texts and all(torch.equal(x, y) for x, y in zip(a.ids, b.ids, strict=True))


def test_greedy_is_what_the_model_generates(pipe: Any) -> None:
    out = pipe(PROMPTS, 30, temperature=0)
    assert type(pipe) is TextPipeline and type(out) is TextPipelineOutput
    for prompt, text, ids in zip(PROMPTS, out.texts, out.ids, strict=True):
        given = pipe.tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        right = pipe.model.generate(**given, max_new_tokens=30, do_sample=False, pad_token_id=0)
        right = right[0, given["input_ids"].shape[1] :]
        assert torch.equal(ids, right) and text == pipe.tokenizer.decode(right, skip_special_tokens=True)
    assert out.report.method == "prompt-lookup" and out.report.emitted == sum(map(len, out.ids))


def test_a_traced_call_writes_the_same_and_shows_it(pipe: Any) -> None:
    out, plain = pipe(PROMPTS, 30, seed=[3, 4, 5], trace=True), pipe(PROMPTS, 30, seed=[3, 4, 5])
    assert same(out, plain) and plain.report.trace is None
    for ids, rounds in zip(out.ids, out.report.trace.rows, strict=True):
        assert [unit for round in rounds for unit in round.units] == ids.tolist()
    shown = out.report._repr_html_()
    assert shown.count("<details") == sum(bool(r.nodes) for rounds in out.report.trace.rows for r in rounds) > 0
    stream = pipe(PROMPTS[0], 30, seed=3, stream=True, trace=True)
    list(stream)
    assert [r.units for r in stream.output.report.trace.rows[0]] == [r.units for r in out.report.trace.rows[0]]


@pytest.mark.compiled
def test_the_method_does_not_change_the_text(folder: Path, pipe: Any) -> None:
    drafter = TextPipeline.from_pretrained(folder).model
    torch.nn.init.normal_(drafter.lm_head.weight, std=0.5)
    for numbers in (dict(), dict(temperature=1.3, top_k=60, top_p=0.95, min_p=0.01)):
        first = pipe(PROMPTS, 25, **numbers, generator=seeded(4)[0])
        for how in (dict(method="plain"), dict(drafter=drafter, k=4), dict(method="auto")):
            other = TextPipeline(pipe.model, pipe.tokenizer).use(**how)
            assert same(other(PROMPTS, 25, **numbers, generator=seeded(4)[0]), first)
        assert not same(pipe(PROMPTS, 25, **numbers, generator=seeded(5)[0]), first)


def test_a_row_does_not_depend_on_its_batch(pipe: Any) -> None:
    together = pipe(PROMPTS, 25, generator=seeded(1, 2, 3))
    assert len({len(ids) for ids in together.ids}) > 1, "all rows ended together"
    for row, prompt in enumerate(PROMPTS):
        alone = pipe(prompt, 25, generator=seeded(row + 1)[0])
        assert alone.texts == [together.texts[row]] and torch.equal(alone.ids[0], together.ids[row])
    by_seed = pipe(PROMPTS, 25, seed=[7, 8, 9])
    assert pipe(PROMPTS[1], 25, seed=[8]).texts == [by_seed.texts[1]]
    # With one generator, or one seed, the first row does not depend on how many rows follow.
    assert pipe(PROMPTS, 25, generator=seeded(6)[0]).texts[0] == pipe(PROMPTS[0], 25, generator=seeded(6)[0]).texts[0]
    assert pipe(PROMPTS, 25, seed=6).texts[0] == pipe(PROMPTS[0], 25, seed=6).texts[0]


def test_equal_prompts_get_texts_of_their_own(pipe: Any) -> None:
    for how in (dict(seed=1), dict(generator=seeded(1)[0])):
        assert len(set(pipe([PROMPTS[0]] * 3, 25, **how).texts)) == 3


@pytest.mark.compiled
def test_several_continuations_of_a_prompt(pipe: Any) -> None:
    """Those of one prompt follow each other, and are those of the repeated prompts; or of separate calls."""
    pipe = TextPipeline(pipe.model, pipe.tokenizer).use(method="prompt-lookup", k=3)
    repeated = [prompt for prompt in PROMPTS[:2] for _ in range(3)]
    out = pipe(PROMPTS[:2], 25, num_return_sequences=3, seed=4)
    assert same(out, pipe(repeated, 25, seed=4)) and len(set(out.texts)) == 6
    assert (out.report.rows, out.report.prompts) == (6, 2)
    seeds = [5, 9, 5, 1, 2, 3]
    out = pipe(PROMPTS[:2], 25, num_return_sequences=3, seed=seeds)
    assert out.texts == [pipe(prompt, 25, seed=seed).texts[0] for prompt, seed in zip(repeated, seeds, strict=True)]
    assert same(
        pipe(PROMPTS[0], 9, num_return_sequences=2, generator=seeded(1, 2)),
        pipe([PROMPTS[0]] * 2, 9, generator=seeded(1, 2)),
    )


def test_without_a_seed_torchs_own_generator_decides(pipe: Any) -> None:
    texts = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        texts.append(pipe(PROMPTS[0], 25).texts)
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.compiled
def test_k_of_a_call(pipe: Any) -> None:
    first = pipe(PROMPTS[0] * 3, 40, seed=3)
    wide = pipe(PROMPTS[0] * 3, 40, seed=3, k=7)
    none = pipe(PROMPTS[0] * 3, 40, seed=3, k=0)
    assert same(first, wide) and same(first, none)
    assert none.report.drafted == 0 < first.report.drafted
    assert max(len(r.accepted_by_depth) for r in (first.report,)) <= 3 < len(wide.report.accepted_by_depth)
    assert pipe.decoder().k == 3


def test_a_pipeline_shows_its_method(pipe: Any) -> None:
    decoder, arguments = pipe._decoder, pipe._use_arguments
    try:
        pipe.use("suffix", k=7)
        assert "LlamaForCausalLM" in repr(pipe) and repr(pipe).endswith("\nspeculates by suffix, k=7")
        pipe.use()
        assert repr(pipe).endswith(f" ({pipe.decoder().why})")
        pipe._decoder = None
        assert repr(pipe).endswith("by a method that the first call chooses")
    finally:
        pipe._decoder, pipe._use_arguments = decoder, arguments


def test_the_tuple_and_the_stream(pipe: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out = pipe(PROMPTS[0], 20, seed=1)
    texts, ids, report = pipe(PROMPTS[0], 20, seed=1, return_dict=False, streamer=TextStreamer(pipe.tokenizer))
    assert (texts, report.emitted) == (out.texts, len(ids[0]))
    given = pipe.tokenizer(PROMPTS[0])["input_ids"]
    assert capsys.readouterr().out == pipe.tokenizer.decode([*given, *ids[0].tolist()]) + "\n"


def test_totals_of_several_calls(pipe: Any) -> None:
    given = pipe.tokenizer(PROMPTS[0], return_tensors="pt", return_token_type_ids=False)
    reports = []
    with mmspec.enable(pipe.model, "prompt-lookup", k=3) as spec:
        assert spec.totals is None
        for length in (5, 9):
            pipe.model.generate(**given, max_new_tokens=length, do_sample=False, pad_token_id=0)
            reports.append(spec.report)
    assert spec.totals.to_dict() == Report.total(reports).to_dict() and spec.totals.rows == 2
    assert spec.totals.emitted == sum(report.emitted for report in reports)


def test_a_stream_is_the_text_in_pieces(pipe: Any) -> None:
    whole = pipe(PROMPTS[0], 40, seed=1)
    stream = pipe(PROMPTS[0], 40, seed=1, stream=True)
    assert stream.output is None
    pieces = list(stream)
    assert "".join(pieces) == whole.texts[0] and len(pieces) > 3 and all(pieces)
    assert same(stream.output, whole) and stream.output.report.rounds == whole.report.rounds
    assert next(stream, "over") == "over"
    begun = pipe(PROMPTS[0], 40, seed=1, stream=True)
    assert next(begun) == pieces[0]
    begun.close()
    assert begun.output is None


def test_texts_end_at_stop_strings(pipe: Any) -> None:
    """Each of its batch by itself, whatever drafts, and shown pieces never hold a part of the string."""
    whole = pipe(PROMPTS, 40, seed=[1, 2, 3], k=0)
    stops = [text[6:8] for text in whole.texts if len(text) > 8][:2]
    expected = [text[: min([p for p in map(text.find, stops) if p >= 0], default=None)] for text in whole.texts]
    assert sum(map(len, expected)) < sum(map(len, whole.texts)) - 10
    for k in (0, 3):
        out = pipe(PROMPTS, 40, seed=[1, 2, 3], k=k, stop=stops)
        assert out.texts == expected
        for found, all_of_it in zip(out.ids, whole.ids, strict=True):
            assert torch.equal(found, all_of_it[: len(found)])
    for prompt, seed, text in zip(PROMPTS, (1, 2, 3), expected, strict=True):
        assert "".join(pipe(prompt, 40, seed=[seed], stop=stops, stream=True)) == text
    once = pipe(PROMPTS[0], 40, seed=[1], stop=stops[0])
    assert once.texts == [whole.texts[0][: whole.texts[0].find(stops[0])]]


def test_penalty_and_processors_are_those_of_transformers(pipe: Any) -> None:
    given = pipe.tokenizer(PROMPTS[0], return_tensors="pt", return_token_type_ids=False)
    first = int(pipe(PROMPTS[0], 1, temperature=0).ids[0][0])
    bans = [SuppressTokensLogitsProcessor([first])]
    call = dict(max_new_tokens=30, do_sample=False, pad_token_id=0)
    for ours, theirs in (
        (dict(repetition_penalty=1.8), dict(repetition_penalty=1.8)),
        (dict(logits_processor=bans), dict(logits_processor=bans)),
    ):
        found = pipe(PROMPTS[0], 30, temperature=0, **ours)
        right = pipe.model.generate(**given, **call, **theirs)[0, given["input_ids"].shape[1] :]
        assert torch.equal(found.ids[0], right) and not same(found, pipe(PROMPTS[0], 30, temperature=0))


def test_a_penalty_does_not_depend_on_the_batch(pipe: Any) -> None:
    """Padding repeats a token that the row has: else another one would be penalised in the shorter rows alone."""
    seen: list[Any] = []

    class Seeing:
        speculative = "history"

        def __call__(self, ids: Any, scores: Any) -> Any:
            seen.append(ids.tolist())
            return scores

    call = dict(temperature=0, repetition_penalty=1.8)
    together = pipe(PROMPTS, 20, **call, logits_processor=[Seeing()])
    own = [set(pipe.tokenizer(prompt)["input_ids"]) for prompt in PROMPTS]
    assert [set(row) for row in seen[0]] == own and len({*map(len, own)}) > 1
    for prompt, ids in zip(PROMPTS, together.ids, strict=True):
        assert torch.equal(ids, pipe(prompt, 20, **call).ids[0])


def test_a_processor_that_may_keep_state_runs_without_drafts(pipe: Any) -> None:
    with pytest.warns(UserWarning, match="runs without drafts"):
        out = pipe(PROMPTS[0], 10, temperature=0, logits_processor=[lambda ids, scores: scores])
    assert same(out, pipe(PROMPTS[0], 10, temperature=0)) and not out.report.drafted


@pytest.mark.parametrize("load", [mmspec.Pipeline, TextPipeline])
@pytest.mark.compiled
def test_saved_and_loaded(pipe: Any, tmp_path: Path, load: Any) -> None:
    pipe.save_pretrained(tmp_path / "pipe")
    again = load.from_pretrained(tmp_path / "pipe", method="plain")
    assert type(again) is TextPipeline and set(again.components) == {"model", "tokenizer"}
    assert same(again(PROMPTS, 15, seed=2), pipe(PROMPTS, 15, seed=2))
    assert same(TextPipeline(**pipe.components)(PROMPTS, 15, seed=2), pipe(PROMPTS, 15, seed=2))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("load", [mmspec.Pipeline, TextPipeline])
@pytest.mark.parametrize("called", ["dtype", "torch_dtype"])
def test_kinds_of_numbers_by_either_name(folder: Path, load: Any, called: str) -> None:
    for numbers in ("bfloat16", torch.bfloat16, "torch.bfloat16"):
        assert load.from_pretrained(folder, **{called: numbers}).model.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="no dtype of weights is called 'int8'"):
        load.from_pretrained(folder, **{called: "int8"})


def test_a_draft_model_is_saved_beside_the_pipeline(folder: Path, tmp_path: Path) -> None:
    pipe = TextPipeline.from_pretrained(folder)
    pipe.use("draft-tree", drafter=TextPipeline.from_pretrained(folder).model, k=2, width=3).save_pretrained(tmp_path)
    assert (tmp_path / "drafter" / "model.safetensors").is_file()
    decoder = mmspec.Pipeline.from_pretrained(tmp_path).decoder()
    assert (decoder.name, decoder.k) == ("draft-tree", 2)
    assert decoder.drafter.options.model == str(tmp_path / "drafter") and decoder.drafter.options.width == 3


def test_moving_takes_the_draft_model_along(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = TextPipeline.from_pretrained(folder).model
    monkeypatch.setattr(pipeline, "refuse_device", lambda place: None)
    moved = TextPipeline.from_pretrained(folder, drafter=small).to("meta")
    assert moved.device.type == moved.model.device.type == small.device.type == "meta"
    half = TextPipeline.from_pretrained(folder, dtype=torch.bfloat16)
    assert half.dtype == half.model.dtype == torch.bfloat16


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no prompt": (dict(prompt=[]), "a list of at least one text, not \\[\\]"),
    "ids": (dict(prompt=[[1, 2]]), "a prompt is a text"),
    "empty": (dict(prompt=["a", ""]), "prompt 1 is empty"),
    "no tokens": (dict(max_new_tokens=0), "max_new_tokens must be at least 1, got 0"),
    "temperature": (dict(temperature=-1.0), "temperature must be >= 0"),
    "top_p": (dict(top_p=1.5), "top_p and min_p must be in"),
    "top_k": (dict(top_k=-2), "top_k must be >= 0"),
    "k": (dict(k=-1), "k must be an integer >= 0, got -1"),
    "text for k": (dict(k="3"), "k must be an integer, got '3'"),
    "text for a number": (dict(max_new_tokens="3"), "max_new_tokens must be an integer >= 0, got '3'"),
    "text for a temperature": (dict(temperature="1"), "temperature must be a number, got '1'"),
    "number for a text": (dict(prompt=3), "a prompt is a text, or a list of at least one text, not 3"),
    "seed and generator": (dict(seed=1, generator=torch.Generator()), "give one of them"),
    "generators": (dict(generator=[torch.Generator()]), "1 generators for 2 prompts; give one, or one a prompt"),
    "seeds": (dict(seed=[1, 2, 3]), "3 seeds for 2 prompts"),
    "no continuation": (dict(num_return_sequences=0), "num_return_sequences must be at least 1, got 0"),
    "a text for their number": (
        dict(num_return_sequences="2"),
        "num_return_sequences must be an integer >= 0, got '2'",
    ),
    "seeds of continuations": (dict(num_return_sequences=2, seed=[1, 2]), "2 seeds for 4 continuations; give one, or"),
    "stream of several": (
        dict(prompt="a", num_return_sequences=2, streamer=TextStreamer(None)),
        "a streamer takes a batch of one, got 2 rows",
    ),
    "an empty stop": (dict(stop=["a", ""]), "stop is a string at which texts end, or a list of some"),
    "no stop": (dict(stop=[]), "stop is a string at which texts end, or a list of some"),
    "penalty": (dict(repetition_penalty=0.0), "repetition_penalty must be above 0, got 0.0; 1 changes nothing"),
    "pieces of several": (dict(stream=True), "stream=True takes one continuation and no streamer=; got 2 rows"),
    "stream": (dict(streamer=TextStreamer(None)), "a streamer takes a batch of one, got 2 rows"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_of_a_call(pipe: Any, case: str) -> None:
    arguments, says = MISTAKES[case]
    with pytest.raises(ValueError, match=says):
        pipe(**{"prompt": PROMPTS[:2], "max_new_tokens": 5, **arguments})


def test_mistakes_in_loading(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for how, says in (
        (dict(method="promt-lookup"), "did you mean 'prompt-lookup'"),
        (dict(method="prompt-lookup", max_ngrm=2), "did you mean 'max_ngram'"),
    ):
        with pytest.raises(ValueError, match=says):
            mmspec.Pipeline.from_pretrained(folder, **how)
    with pytest.raises(ValueError, match="no shipped model is called 'text-14'"):
        mmspec.Pipeline.from_pretrained("mmspec/text-14")
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "OddPipeline"}))
    with pytest.raises(
        ValueError, match=r"holds a OddPipeline, which no installed plugin has; there is .*TextPipeline"
    ):
        mmspec.Pipeline.from_pretrained(tmp_path)
    bare = TargetSpec(name="bare", factory="a:B", summary="A target.", owner="mine")
    monkeypatch.setattr(Registry, "target_for", lambda self, model: bare)
    with pytest.raises(ValueError, match=r"'mine:bare' has no pipeline; use mmspec\.enable"):
        mmspec.Pipeline.from_pretrained(folder)


def test_the_manifest_names_the_class() -> None:
    assert installed().get("target", "transformers").load_pipeline() is TextPipeline
