"""`mmspec.Rows`: a row is what the pipeline makes with the seed of its id, whatever batch it comes in."""

import hashlib
import io
import json
import pickle
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mmspec
from mmspec.api.row_values import ids_of, objects, seed_of

PROMPTS = ["def main(", "The sea", "import os", "class A:", "Once upon", "for i in", "The king", "x = "]
TEXT = {"method": "prompt-lookup", "max_new_tokens": 8}


def table(prompts: list[Any] = PROMPTS, **more: list[Any]) -> dict[str, np.ndarray]:
    ids = [f"row {number}" for number in range(len(prompts))]
    return {name: objects(values) for name, values in {"id": ids, "prompt": prompts, **more}.items()}


def cut(batch: dict[str, np.ndarray], size: int) -> list[dict[str, np.ndarray]]:
    starts = range(0, len(batch["id"]), size)
    return [{name: values[start : start + size] for name, values in batch.items()} for start in starts]


@pytest.fixture(scope="module")
def rows() -> mmspec.Rows:
    return mmspec.Rows("mmspec/text-1m", seed=3, **TEXT)


@pytest.fixture(scope="module")
def pipe() -> Any:
    return mmspec.Pipeline.from_pretrained("mmspec/text-1m", method="plain")


def test_a_seed_is_the_beginning_of_a_digest() -> None:
    digest = hashlib.blake2b(b"3/row 1").hexdigest()
    assert f"{seed_of(3, 'row 1'):016x}" == digest[:16]


def test_a_row_is_plain_decoding_with_its_seed(rows: mmspec.Rows, pipe: Any) -> None:
    made = rows(table())
    for id, prompt, seed, text in zip(made["id"], PROMPTS, made["seed"], made["text"], strict=True):
        assert seed == seed_of(3, id)
        assert text == pipe(prompt, 8, seed=[int(seed)]).texts[0]
    assert json.loads(made["report"][0])["rows"] == 8 and not any(made["report"][1:])
    assert set(made["method"]) == {"prompt-lookup"} and not any(made["error"])


@pytest.mark.parametrize("size", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_row_does_not_depend_on_its_batch(rows: mmspec.Rows, size: int) -> None:
    texts = [text for batch in cut(table(), size) for text in rows(batch)["text"]]
    assert texts == list(rows(table())["text"])


@pytest.mark.slow
def test_rows_of_a_call_agree_in_their_group(rows: mmspec.Rows, pipe: Any) -> None:
    lengths = [4, None, 6, 4, np.nan, 6.0, 4, 4]
    made = rows(table(max_new_tokens=lengths, note=list(range(8))))
    for prompt, seed, text, length in zip(PROMPTS, made["seed"], made["text"], lengths, strict=True):
        assert text == pipe(prompt, {4: 4, 6: 6}.get(length, 8), seed=[int(seed)]).texts[0]
    assert sorted(json.loads(report)["rows"] for report in made["report"] if report) == [2, 2, 4]
    assert list(made["note"]) == list(range(8))


def test_rows_are_calls_that_share_passes(rows: mmspec.Rows) -> None:
    """A row that has ended makes room for the next one, however long the others are."""
    lengths = [4, 30, 8, 12, 4, 20, 4, 9]
    shared = mmspec.Rows("mmspec/text-1m", seed=3, rows=3, method="plain")
    made = shared(table(max_new_tokens=lengths))
    assert list(made["text"]) == list(rows(table(max_new_tokens=lengths))["text"])
    assert [json.loads(report)["emitted"] for report in made["report"]] == lengths
    decoder: Any = shared.pipeline().decoder()
    assert decoder.shared.running() == 0
    assert list(pickle.loads(pickle.dumps(shared))(table(max_new_tokens=lengths))["text"]) == list(made["text"])


def test_a_row_that_cannot_be_read_stops_no_other(rows: mmspec.Rows) -> None:
    right = rows(table())["text"]
    made = rows(table([*PROMPTS[:2], "", None, *PROMPTS[4:]]))
    assert [error is None for error in made["error"]] == [True, True, False, False, True, True, True, True]
    assert "empty" in made["error"][2] and "no input" in made["error"][3]
    assert [text for text in made["text"] if text] == [*right[:2], *right[4:]]


def test_a_worker_is_sent_names_and_numbers_only(rows: mmspec.Rows) -> None:
    right = rows(table())["text"]
    sent = pickle.dumps(rows)
    assert len(sent) < 2000
    assert list(pickle.loads(sent)(table())["text"]) == list(right)


@pytest.mark.slow
def test_a_lossless_method_is_refused_unless_told() -> None:
    how = {"method": "draft-model", "loading": {"drafter": "mmspec/text-1m", "rule": "rejection"}, "max_new_tokens": 4}
    with pytest.raises(ValueError, match="is lossless: the same row of another batch would be another draw"):
        mmspec.Rows("mmspec/text-1m", **how)(table())
    assert all(mmspec.Rows("mmspec/text-1m", exactness="lossless", **how)(table())["text"])


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"seed": 1.5}, "seed must be an integer"),
        ({"rows": 0}, "rows must be at least 1"),
        ({"exactness": "exact"}, "no exactness is called 'exact'"),
        ({"generator": 1}, "generator= is set by Rows"),
        ({"num_images_per_prompt": 2}, "a row has one output"),
        ({"temperature": object()}, "temperature= takes names and numbers"),
        ({"loading": {"drafter": object()}}, "drafter= takes names and numbers"),
        ({"max_new_token": 3}, "did you mean 'max_new_tokens'"),
    ],
)
def test_arguments_are_refused_by_name(how: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        mmspec.Rows("mmspec/text-1m", **how)(table())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": None}, "no column 'id'"),
        ({"prompt": None}, "none of the columns prompt, "),
        ({"seed": [1] * 8}, "a column 'seed', which is written here"),
        ({"id": ["a", None, *"cdefgh"]}, "row 1 has no id"),
        ({"id": [1.5, *range(7)]}, "an id is a text or an integer"),
        ({"id": ["1", 1, *"cdefgh"]}, "the id '1' stands 2 times"),
    ],
)
def test_tables_are_refused_by_what_is_wrong(rows: mmspec.Rows, change: dict[str, Any], says: str) -> None:
    columns = {**table(), **{name: values and objects(values) for name, values in change.items()}}
    with pytest.raises(ValueError, match=says):
        rows({name: values for name, values in columns.items() if values is not None})


def test_ids_are_texts_or_integers() -> None:
    assert ids_of(np.array([3, 4]), "id") == ["3", "4"]


@pytest.mark.slow
def test_a_picture_does_not_depend_on_its_batch_in_one_byte() -> None:
    captions = ["red heart", "princess skin 4", "fish", "star", "dog"]
    rows = mmspec.Rows("mmspec/emoji", guidance_scale=2.0)
    made = rows(table(captions))
    alone = [picture for batch in cut(table(captions), 2) for picture in rows(batch)["image"]]
    assert alone == list(made["image"])
    pipe = mmspec.Pipeline.from_pretrained("mmspec/emoji", method="plain")
    plain = pipe(captions[1], guidance_scale=2.0, seed=[int(made["seed"][1])]).images[0]
    assert np.array_equal(np.array(Image.open(io.BytesIO(made["image"][1]))), np.array(plain))


@pytest.mark.slow
def test_clips_begin_with_a_picture_and_follow_their_actions() -> None:
    file = io.BytesIO()
    rows = mmspec.Rows("mmspec/four-courts")
    Image.new("RGB", (64, 48), (90, 60, 30)).save(file, "PNG")
    frames, actions = [file.getvalue(), b"no picture", file.getvalue()], [[0, 1], [0, 1], [1]]
    columns = {"id": objects([1, 2, 3]), "first_frames": objects(frames), "actions": objects(actions)}
    made = rows(columns)
    assert [Image.open(io.BytesIO(clip)).n_frames for clip in made["video"][[0, 2]]] == [2, 1]  # type: ignore[attr-defined]
    assert made["video"][1] is None and "UnidentifiedImageError" in made["error"][1]
