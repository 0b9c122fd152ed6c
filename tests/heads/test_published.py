"""Heads as their authors publish them: files that the authors' own classes wrote, and what these drafted with them.

`published/make_fixtures.py` says how the fixtures were made, and each of them by whom.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.api.build import decoder_for
from mmspec.core.drafters import growing
from mmspec.core.warp import Warp

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


@pytest.mark.parametrize("name", NAMES)
def test_drafts_are_those_of_the_authors_class(
    name: str, target: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the prompt, behind accepted units, and where nothing was accepted: every logit, and every drafted unit."""
    tensors, about = opened(FOLDER / f"{name}.safetensors")
    scored: list[Tensor] = []
    warped = growing.warped

    def watched(rows: Any, output: Any, *args: Any) -> Any:
        scored.append(output.logits[0])
        return warped(rows, output, *args)

    monkeypatch.setattr(growing, "warped", watched)
    options = json.loads(about["options"])
    drafter = stored(tensors, about, tmp_path)
    decoder = decoder_for(target, about["method"], drafter=drafter, k=int(about["k"]), options=options)
    state = decoder.start({"input_ids": tensors["prompt"][None]}, 40, warp=Warp.sampling(temperature=0))
    rounds = sum(key.endswith(".draft") for key in tensors)
    assert rounds > 2
    for number in range(rounds):
        if number == 0:
            assert state.root.tolist() == tensors["round.0.new"].tolist()
        scored.clear()
        pending = decoder.speculate(state)
        logits, units = tensors[f"round.{number}.logits"], tensors[f"round.{number}.draft"].tolist()
        largest = float(logits[logits.isfinite()].abs().max()) if len(logits) else 0.0
        torch.testing.assert_close(torch.cat([logits[:0], *scored]), logits, atol=TOLERANCE * largest, rtol=0)
        theirs = paths(units, tensors[f"round.{number}.parents"].tolist())
        parents = (pending.draft.index.parent[0, 1:] - 1).tolist()
        assert paths(pending.draft.drafted[0].tolist(), parents) == theirs
        if number + 1 < rounds:
            decoder.advance(state, truth=tensors[f"round.{number + 1}.new"][None], pending=pending)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_names_who_wrote_it(name: str) -> None:
    _, about = opened(FOLDER / f"{name}.safetensors")
    page = (Path(__file__).parents[2] / "docs/models/heads.md").read_text()
    row = f"`{about['path']}` of {about['source'].removeprefix('https://github.com/')} | {about['commit'][:7]} |"
    assert row in page
