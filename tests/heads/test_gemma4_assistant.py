"""Gemma 4's assistants: drafts of transformers' own class over the same keys, and texts that equal plain decoding's.

The class and its target ran under transformers 5.17.0 (`tools/fixtures/heads.py`); that of 5.23.0 cannot be built.
"""

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Gemma4ForCausalLM, Gemma4TextConfig, PreTrainedModel

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.rules import Block, Match, Rejection
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.statistics import LEVEL
from mmspec.testing.tiny_models import llama, prompt
from mmspec_text.drafters.gemma4_assistant import Assistant, AssistantOptions, Gemma4Assistant, read_assistant
from tests.heads.test_published import FOLDER, compare, opened, stored
from tests.support.examples.heads import assistant, gemma4
from tests.support.zoo import build

NAMES = ("all-ids", "clusters")
CHAIN: dict[str, Any] = {"form": "chain"}
TREE: dict[str, Any] = {"form": "rerank", "width": 3, "nodes": 8}
GREEDY, SAMPLED = Warp.sampling(temperature=0), Warp.sampling()


@cache
def fixture(name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    return opened(FOLDER / "gemma4" / f"{name}.safetensors")


@cache
def target() -> PreTrainedModel:
    """The fixtures' target."""
    model = Gemma4ForCausalLM(Gemma4TextConfig(**json.loads(fixture("all-ids")[1]["target"])))
    weights = {key.removeprefix("target."): value for key, value in fixture("all-ids")[0].items() if "target." in key}
    lacking = model.load_state_dict(weights, strict=False)
    assert lacking.missing_keys == ["lm_head.weight"]  # which is tied
    return model.eval()


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The folders of the fixtures' assistants."""
    return {name: stored(*fixture(name), tmp_path_factory.mktemp(name)) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_drafts_are_those_of_transformers_class(
    name: str, heads: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a prompt longer than the window, behind accepted units, and where nothing was accepted."""
    tensors, about = fixture(name)
    page = (Path(__file__).parents[2] / "docs/models/heads.md").read_text()
    assert f"`{about['path']}` of huggingface/transformers | {about['commit']} |" in page
    compare(target(), tensors, about, heads[name], monkeypatch)


def decoder(head: Any, model: Any, rule: Any = None, **how: Any) -> Decoder:
    form = {key: how.pop(key) for key in ("form", "width", "nodes", "branching") if key in how}
    drafter = Gemma4Assistant(AssistantOptions(model=head, **form))
    return Decoder(TransformersTarget(model), drafter, rule or Match(), k=3, **how)


@pytest.mark.thinned(1)
@pytest.mark.compiled
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("form", [CHAIN, TREE], ids=lambda form: form["form"])
@pytest.mark.parametrize("shared", [0, 2])
def test_equal_to_plain(shared: int, form: dict[str, Any], warp: Any) -> None:
    """Batch 3 and its rows alone; whether or not the target's own last layers share keys."""
    model = gemma4(shared)
    for batch in ([0, 1, 2], [1]):
        plain = Decoder(TransformersTarget(model), None, Match(), k=0).generate(prompt(batch), 40, seed=5, warp=warp)
        ours = decoder(assistant(), model, **form).generate(prompt(batch), 40, seed=5, warp=warp)
        assert all(torch.equal(a, b) for a, b in zip(ours.units, plain.units, strict=True))
        assert ours.report.accepted > 0, "nothing was accepted, so nothing was tested"


def test_one_shape_in_half_precision() -> None:
    """Texts of a tree equal plain's of the same width, to the bit."""
    model, rows = copy.deepcopy(gemma4()).bfloat16(), prompt([0, 1, 2])
    ours = decoder(assistant(), model, shape="one", **TREE).generate(rows, 40, seed=5, warp=SAMPLED)
    plain = Decoder(TransformersTarget(model), shape=ours.report.width or "any")
    texts = plain.generate(rows, 40, seed=5, warp=SAMPLED).units
    assert all(torch.equal(a, b) for a, b in zip(ours.units, texts, strict=True)) and ours.report.accepted > 10


def test_a_row_drafts_as_it_does_alone() -> None:
    """Padding is seen by no draft."""
    drafted, three = [], prompt([0, 1, 2])
    pads = (1 - three["attention_mask"]).sum(1).tolist()
    row = max(range(3), key=pads.__getitem__)
    assert pads[row]
    for inputs, place in ((three, row), ({"input_ids": three["input_ids"][row : row + 1, pads[row] :]}, 0)):
        state = (ours := decoder(assistant(), gemma4(), **CHAIN)).start(inputs, 12, warp=GREEDY)
        drafted.append(ours.speculate(state).draft.drafted[place].tolist())
    assert drafted[0] == drafted[1]


def test_a_window_in_a_ring() -> None:
    """Layers with a window keep the latest keys in a ring where texts are long."""
    model = gemma4(0)
    rows = {"input_ids": torch.randint(7, (2, 300), generator=torch.Generator().manual_seed(1))}
    ours = decoder(assistant(), model, **TREE)
    plain = Decoder(TransformersTarget(model), None, Match(), k=0).generate(rows, 60, seed=5, warp=SAMPLED)
    state = ours.start(rows, 60, warp=SAMPLED)
    assert state.cache.slots.rings, "no layer keeps a ring, so nothing is tested"
    output = ours.generate(rows, 60, seed=5, warp=SAMPLED)
    assert all(torch.equal(a, b) for a, b in zip(output.units, plain.units, strict=True))


@pytest.mark.parametrize("rule", [Rejection, Block])
def test_the_law_of_rules_that_use_q(rule: type, law: Callable) -> None:
    assert law(decoder(assistant(), gemma4(), rule(), **CHAIN), model=gemma4()) > LEVEL


def test_by_folder_and_through_enable(heads: dict[str, str]) -> None:
    model = target()
    ids = torch.randint(3, 48, (3, 14), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": (torch.arange(14) >= torch.tensor([[0], [9], [3]])).long()}
    call: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    stock = model.generate(**inputs, **call)
    with mmspec.enable(model, drafter=heads["all-ids"]) as spec:
        assert torch.equal(model.generate(**inputs, **call), stock)
    assert "gemma4-assistant" in str(spec.report)


def test_bad_input(heads: dict[str, str], tmp_path: Path) -> None:
    tensors, about = fixture("all-ids")
    known, config = read_assistant(heads["all-ids"]), json.loads(about["config"])
    assert isinstance(known, Assistant)

    def refused(said: str, changed: dict[str, Any] | None = None, **more: Any) -> None:
        found = {**tensors, **{f"head.{key.replace('__', '.')}": value for key, value in more.items()}}
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        kept = {key: value for key, value in found.items() if value is not None}
        with pytest.raises(ValueError, match=said):
            read_assistant(
                stored(kept, {**about, "config": json.dumps({**config, **(changed or {})})}, folder)
            ).network()

    refused("no assistant of Gemma 4", {"model_type": "gemma4"})
    refused("no assistant of Gemma 4", {"text_config": {"model_type": "llama"}})
    refused("backbone_hidden_size", {"backbone_hidden_size": None})
    refused("not read whole.*1 keys that nothing reads .*odd", odd=torch.ones(3))
    refused("post_projection", post_projection__weight=None)
    refused("of another shape.*pre_projection", pre_projection__weight=torch.zeros(3, 3))
    refused("one tensor for all depths, and lm_head.weight", lm_head__weight=torch.zeros(48, 12))
    refused("num_centroids", {"use_ordered_embeddings": True, "num_centroids": None})
    refused("num_hidden_layers", {"text_config": {**config["text_config"], "num_hidden_layers": "two"}})
    some = {"use_ordered_embeddings": True, "num_centroids": 5, "centroid_intermediate_top_k": 2}
    refused("48 ids are no 5 equal clusters", some)
    refused("equal clusters, of which 20 count", {**some, "num_centroids": 12, "centroid_intermediate_top_k": 20})
    with pytest.raises(ValueError, match="reads the keys of a Gemma 4"):
        decoder(known, llama())
    with pytest.raises(ValueError, match=r"reads states of 16 numbers and 48 ids.* another target"):
        decoder(known, build("gemma4_text"))
    with pytest.raises(ValueError, match="needs an assistant"):
        Gemma4Assistant()
    with pytest.raises(TypeError, match="not int"):
        Gemma4Assistant(AssistantOptions(model=3))
