"""Prompt tokens: what they score round after round, that nodes do not see them, equality with plain, bad input.

The forward to compare with is transformers' own, of one row of embeddings, with the prompt tokens at its end.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection, Rule
from mmspec.core.types import Draft
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.statistics import LEVEL
from mmspec.testing.tiny_models import llama
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_text.drafters.heads.probes import ProbedTarget, probed
from mmspec_text.drafters.ppd import PPD, PPDOptions, Prompts, read_prompts
from tests.heads.conftest import GREEDY, SAMPLED
from tests.heads.test_eagle_equality import ZOO
from tests.support.draft_rounds import ROUNDS, Budgets, assert_distributions, assert_dynamic_tree, played
from tests.support.head_equality import assert_equal_to_transformers
from tests.support.zoo import build

EMBEDDINGS = torch.randn(3, 16, generator=torch.Generator().manual_seed(4)) * 0.05
FORMS: list[dict[str, Any]] = [{"form": "chain"}, {"form": "rerank", "width": 3, "nodes": 6}]
CONFIG = {"peft_type": "PROMPT_TUNING", "num_special_tokens": 3, "virtual_tokens_per_special_token": 1, "num_exits": 1}


def decoder(rule: Rule | None = None, k: int = 3, **options: Any) -> Decoder:
    drafter = PPD(PPDOptions(model=Prompts("random", EMBEDDINGS), **options))
    return Decoder(TransformersTarget(llama()), drafter, rule or Match(), k=k)


def saved(folder: Path, key: str = "prompt_embeddings", width: int = 64, **changed: Any) -> Path:
    """An adapter as the authors' code writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = torch.randn(3, width, generator=torch.Generator().manual_seed(0)) * 0.02
    save_file({key: drawn}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **changed}))
    return folder


@cache
def block(known: tuple[int, ...]) -> Tensor:
    """Log probabilities of the units behind known ones: prompt tokens behind the last unit before the root."""
    model = llama()
    with torch.no_grad():
        embedded = torch.cat([model.model.embed_tokens(torch.tensor(known[:-1])), EMBEDDINGS])
        logits = model(inputs_embeds=embedded[None], use_cache=False).logits[0, -len(EMBEDDINGS) :]
    return logits.double().log_softmax(-1)


def expected(known: Tensor, path: list[int]) -> Tensor:
    return block(tuple(known.tolist()))[: len(path) + 1]


@pytest.mark.parametrize(
    ("form", "rule"),
    [({"form": "chain"}, Rejection), ({"form": "branching", "branching": (2, 2, 1)}, RecursiveRejection)],
)
def test_distributions_of_successive_rounds(form: dict[str, Any], rule: type, rows: dict[str, Tensor]) -> None:
    """A ragged batch, after rounds that accepted nothing and a part; only the first round has no draft."""
    recorded, accepted = played(decoder(rule(), **form), rows, SAMPLED)
    assert [draft.units.shape[1] > 0 for _, _, draft in recorded] == [False] + [True] * (ROUNDS - 1)
    assert {0} < set(accepted), "no round accepted a part, so nothing was tested"
    assert assert_distributions(recorded, expected) > 30


def test_the_dynamic_tree_of_successive_rounds(rows: dict[str, Tensor]) -> None:
    """Greedy: every node's score is the log probability of its path; nodes lie differently in every row."""
    recorded, accepted = played(decoder(Match(), form="rerank", width=3, nodes=6), rows, GREEDY)
    assert 0 in accepted and max(accepted) > 0, "no round accepted a part, so nothing was tested"
    assert_dynamic_tree(recorded[1:], expected, 6)


def test_rounds_without_a_draft(rows: dict[str, Tensor]) -> None:
    """A pass over the root alone carries prompt tokens, too."""
    ours = decoder(Rejection(), k=4, form="chain")
    ours.policy = Budgets()
    recorded, _ = played(ours, rows, SAMPLED, rounds=6)
    assert [draft.units.shape[1] for _, _, draft in recorded] == [0, 3, 3]  # of 2, 4 and 3; three prompt tokens
    assert assert_distributions(recorded, expected) > 0


def test_nodes_do_not_see_prompt_tokens(rows: dict[str, Tensor]) -> None:
    """Scores of a tree, with prompt tokens of two sorts and without."""
    plain, found = TransformersTarget(llama()), []
    for target in (plain, *(ProbedTarget(plain, EMBEDDINGS * factor) for factor in (1, 30))):
        started = target.start(rows, 8, 5)
        root = started.output.logits[:, 0].argmax(-1)  # type: ignore[index]
        units = torch.tensor([[1, 2, 3, 4]]).expand(3, -1)
        draft = Draft.tree(units, [-1, -1, 0, 2]).rooted(root, torch.tensor([9, 9, 1]))
        output = target.verify(started.cache, draft)
        assert output.logits is not None
        found.append(output.logits[draft.valid])
    assert torch.allclose(found[0], found[1], atol=1e-4) and torch.allclose(found[0], found[2], atol=1e-4)


@pytest.mark.parametrize("shared", [True, False])
def test_probes_hang_behind_every_node(shared: bool) -> None:
    parents = [-1, 0] if shared else torch.tensor([[-1, 0]])
    draft = Draft.tree(torch.tensor([[5, 6]]), parents, valid=torch.tensor([[True, False]]))
    tree = probed(draft.rooted(torch.tensor([4]), torch.tensor([9])), 2)
    assert tree.index.parent.tolist() == [[-1, 0, 1, 0, 3, 1, 5, 2, 7]]
    assert tree.index.depth.tolist() == [[0, 1, 2, 1, 2, 2, 3, 3, 4]]
    assert tree.valid.tolist() == [[True, True, False, True, True, True, True, False, False]]


@pytest.mark.thinned
@pytest.mark.compiled
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("batch", [1, 3])
def test_equal_to_plain(batch: int, warp: Any, form: dict[str, Any], rows: dict[str, Tensor]) -> None:
    rows = {key: value[:batch] for key, value in rows.items()}
    plain = Decoder(TransformersTarget(llama()), None, Match(), k=0).generate(rows, 30, seed=5, warp=warp)
    ours = decoder(Match(), **form).generate(rows, 30, seed=5, warp=warp)
    assert all(torch.equal(a, b) for a, b in zip(ours.units, plain.units, strict=True))
    assert ours.report.drafted > 0 and (batch == 1 or ours.report.accepted > 0), "so nothing was tested"


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
@pytest.mark.parametrize("architecture", ZOO)
def test_equal_to_transformers(architecture: str, form: dict[str, Any], prompts: Callable, tmp_path: Path) -> None:
    model = build(architecture)
    folder = saved(tmp_path, width=model.get_input_embeddings().weight.shape[1])
    live = PPD(PPDOptions(model=str(folder), **form))
    named = {"method": "ppd", "drafter": str(folder), **form}
    assert_equal_to_transformers(model, prompts, named, {"drafter": live})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "form"),
    [
        (Rejection, {"form": "chain"}),
        (Block, {"form": "chain"}),
        (RecursiveRejection, {"form": "branching", "branching": (2, 2)}),
    ],
)
def test_the_law_of_rules_that_use_q(rule: type, form: dict[str, Any], law: Callable) -> None:
    """Of four tokens: the first round has no draft, and the last token is never drafted."""
    assert law(decoder(rule(), k=2, **form), 4) > LEVEL


def test_files(tmp_path: Path) -> None:
    assert read_prompts(str(saved(tmp_path / "a"))).embeddings.shape == (3, 64)
    assert read_prompts(str(saved(tmp_path / "b", "base_model.prompt_embeddings"))).embeddings.shape == (3, 64)
    for number, (changed, said) in enumerate(
        (
            ({"virtual_tokens_per_special_token": 4}, "trained with virtual_tokens_per_special_token = 4; 1 is"),
            ({"use_custom_lm_head": True}, "use_custom_lm_head = True"),
            ({"num_special_tokens": 4}, "num_special_tokens is 4, and there are 3 embeddings"),
            ({"num_special_tokens": None}, "no number num_special_tokens"),
        )
    ):
        with pytest.raises(ValueError, match=said):
            read_prompts(str(saved(tmp_path / str(number), **changed)))
    with pytest.raises(ValueError, match=r"no matrix prompt_embeddings: .* Its keys are lora_A"):
        read_prompts(str(saved(tmp_path / "c", "lora_A")))
    (saved(tmp_path / "d") / "adapter_config.json").unlink()
    with pytest.raises(ValueError, match=r"has no adapter_config.json: .* is no adapter"):
        read_prompts(str(tmp_path / "d"))
    (saved(tmp_path / "e") / "adapter_model.safetensors").write_bytes(b"{}")
    with pytest.raises(ValueError, match="cannot be read"):
        read_prompts(str(tmp_path / "e"))
    (saved(tmp_path / "f") / "adapter_model.safetensors").rename(tmp_path / "f" / "adapter_model.bin")
    with pytest.raises(ValueError, match=r"cannot be read: adapter_model.bin in .* it is damaged, cut off, or no"):
        read_prompts(str(tmp_path / "f"))


def test_targets_that_do_not_fit(tmp_path: Path) -> None:
    folder = str(saved(tmp_path, width=24))
    with pytest.raises(ValueError, match="have 24 numbers, and the target's embeddings 16"):
        Decoder(TransformersTarget(llama()), PPD(PPDOptions(model=folder)))
    with pytest.raises(ValueError, match="not for MarkovTarget"):
        Decoder(MarkovTarget(torch.rand(7, 7, 7)), PPD(PPDOptions(model=folder, form="chain")))
    with pytest.raises(ValueError, match="wants 9 siblings, and the target has 7 ids"):
        decoder(width=9)
    with pytest.raises(ValueError, match="ppd needs prompt tokens"):
        mmspec.enable(llama(), "ppd")
