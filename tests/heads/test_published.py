"""Heads as their authors publish them: files that the authors' own classes wrote, and what these drafted with them.

`tools/fixtures/heads.py` says how the fixtures were made, and each of them by whom.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from mmspec.api.build import decoder_for
from mmspec.core.drafters import growing
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.registry import installed

FOLDER = Path(__file__).parent / "published"
NAMES = sorted(path.stem for path in FOLDER.glob("*.safetensors") if path.stem != "target")
TOLERANCE = 1e-5
"""Of the largest logit."""


def opened(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    weights, about = opened(FOLDER / "target.safetensors")
    model = LlamaForCausalLM(LlamaConfig(**json.loads(about["config"])))
    model.load_state_dict(weights)
    return model.eval()


def stored(tensors: dict[str, Tensor], about: dict[str, str], folder: Path) -> str:
    """The head in its authors' file."""
    head = {key.removeprefix("head."): value for key, value in tensors.items() if key.startswith("head.")}
    (folder / about.get("config_file", "config.json")).write_text(about["config"])
    if about["file"].endswith(".safetensors"):
        save_file(head, folder / about["file"])
    else:
        torch.save(head, folder / about["file"])
    return str(folder)


def paths(units: list[int], parents: list[int]) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for unit, parent in zip(units, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), unit))
    return set(found)


def started(target: LlamaForCausalLM, tensors: dict[str, Tensor], about: dict[str, str], head: str, **more: Any) -> Any:
    """A decoder with a head, and a call behind the fixture's prompt."""
    options = {**json.loads(about["options"]), **more}
    decoder = decoder_for(target, about["method"], drafter=head, k=int(about["k"]), options=options)
    state = decoder.start({"input_ids": tensors["prompt"][None]}, 40, warp=Warp.sampling(temperature=0))
    assert state.root.tolist() == tensors["round.0.new"].tolist()
    return decoder, state


def rounds_of(tensors: dict[str, Tensor], decoder: Any, state: Any) -> Iterator[tuple[str, Draft]]:
    """The beginnings of a fixture's keys, round by round, and our drafts."""
    rounds = sum(key.endswith(".draft") for key in tensors)
    assert rounds > 2
    for number in range(rounds):
        pending = decoder.speculate(state)
        yield f"round.{number}", pending.draft
        rest = tensors[f"round.{number + 1}.new"] if number + 1 < rounds else tensors["prompt"][:0]
        while len(rest):  # a round emits no more than its draft has, and one
            before = state.host.emitted[0]
            decoder.advance(state, truth=rest[None], pending=pending)
            rest, pending = rest[state.host.emitted[0] - before :], None


def compare(
    target: PreTrainedModel, tensors: dict[str, Tensor], about: dict[str, str], head: str, patch: pytest.MonkeyPatch
) -> None:
    """Play the recorded rounds with a head: every logit, and every drafted unit."""
    scored: list[Tensor] = []
    warped = growing.warped

    def watched(rows: Any, output: Any, *args: Any) -> Any:
        scored.append(output.whole().logits[0])
        return warped(rows, output, *args)

    patch.setattr(growing, "warped", watched)
    decoder, state = started(target, tensors, about, head)
    for key, draft in rounds_of(tensors, decoder, state):
        logits, units = tensors[f"{key}.logits"], tensors[f"{key}.draft"].tolist()
        largest = float(logits[logits.isfinite()].abs().max()) if len(logits) else 0.0
        torch.testing.assert_close(torch.cat([logits[:0], *scored]), logits, atol=TOLERANCE * largest, rtol=0)
        parents = (draft.index.parent[0, 1:] - 1).tolist()
        assert paths(draft.drafted[0].tolist(), parents) == paths(units, tensors[f"{key}.parents"].tolist())
        scored.clear()


@pytest.mark.parametrize("name", NAMES)
def test_drafts_are_those_of_the_authors_class(
    name: str, target: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the prompt, behind accepted units, and where nothing was accepted."""
    tensors, about = opened(FOLDER / f"{name}.safetensors")
    compare(target, tensors, about, stored(tensors, about, tmp_path), monkeypatch)


METHODS = sorted({opened(FOLDER / f"{name}.safetensors")[1]["method"] for name in NAMES} | {"mtp", "gemma4-assistant"})


@pytest.mark.parametrize("name", NAMES)
def test_no_method_takes_another_ones_files(name: str, target: LlamaForCausalLM, tmp_path: Path) -> None:
    """All pairs: refused, by an error that names files or tensors."""
    tensors, about = opened(FOLDER / f"{name}.safetensors")
    head = stored(tensors, about, tmp_path)
    for method in METHODS:
        if method != about["method"]:
            with pytest.raises(ValueError, match=r"head|assistant|adapter|checkpoint|model|config.json") as found:
                decoder_for(target, method, drafter=head, options={"form": "chain"})
            assert len(str(found.value)) > 40, "the message teaches nothing"


@pytest.mark.parametrize("name", ["dspark", "dspark-gated", "speculators-dspark", "specforge-dspark"])
def test_a_confidence_head_ends_drafts_where_its_authors_do(
    name: str, target: LlamaForCausalLM, tmp_path: Path
) -> None:
    """Before the first unit whose guess is below the threshold; thresholds lie between all guesses of the fixture."""
    tensors, about = opened(FOLDER / f"{name}.safetensors")
    head = stored(tensors, about, tmp_path)
    guesses = torch.cat([value for key, value in tensors.items() if key.endswith(".confidence")]).sort().values
    lengths = set()
    for low, high in pairwise([0.0, *guesses.tolist(), 1.0]):
        threshold = (low + high) / 2
        decoder, state = started(target, tensors, about, head, sure=threshold)
        for key, draft in rounds_of(tensors, decoder, state):
            below = (tensors[f"{key}.confidence"] < threshold).nonzero()
            length = int(below[0]) if len(below) else int(about["k"])
            assert draft.drafted[0].tolist() == tensors[f"{key}.draft"][:length].tolist()
            lengths.add(length)
    assert len(lengths) > 2


LENGTHS = {
    "eagle-3": ("eagle", 5),
    "deepspec-eagle-3": ("eagle", 4),
    "speculators-eagle-3": ("eagle", 3),
    "dflash": ("dflash", 4),
    "pard": ("pard", 12),
}
"""Units of a draft that the file asks for, or that are the method's."""


@pytest.mark.parametrize("name", LENGTHS)
def test_a_file_by_itself_says_how_it_drafts(name: str, target: LlamaForCausalLM, tmp_path: Path) -> None:
    tensors, about = opened(FOLDER / f"{name}.safetensors")
    method, length = LENGTHS[name]
    asked = method if method == "dflash" else "auto"  # only some kinds of heads are known by their files
    decoder = decoder_for(target, asked, drafter=stored(tensors, about, tmp_path))
    assert (decoder.name, decoder.k) == (method, length)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_names_who_wrote_it(name: str) -> None:
    _, about = opened(FOLDER / f"{name}.safetensors")
    page = (Path(__file__).parents[2] / "docs/models/heads.md").read_text()
    row = f"`{about['path']}` of {about['source'].removeprefix('https://github.com/')} | {about['commit'][:7]} |"
    assert row in page


@pytest.mark.parametrize("name", NAMES)
def test_auto_knows_the_method_by_the_files(name: str) -> None:
    """Or nobody claims them, and the user names the method."""
    tensors, about = opened(FOLDER / f"{name}.safetensors")
    keys = [key.removeprefix("head.") for key in tensors if key.startswith("head.")]
    claimed = [
        each.name for each in installed().components("drafter") if each.is_for(json.loads(about["config"]), keys)
    ]
    known = about["method"] in ("eagle", "dflash", "p-eagle", "falcon", "pard")
    assert claimed == ([about["method"]] if known else [])
