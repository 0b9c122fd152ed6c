"""Our drafters as vLLM's proposers: what it is recorded to call, with what it is recorded to pass."""

import ast
import importlib
import importlib.util
import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mmspec.bridges.vllm import VllmHostProposer
from mmspec_text.drafters.suffix import KEPT, Suffix

CONTRACT = json.loads((Path(__file__).parent / "vllm-0.33.0.json").read_text())
TEXT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]


def proposer(name: str, k: int = 4) -> Any:
    """As vLLM makes it: an attribute of a module, called with the configuration."""
    module = importlib.import_module("mmspec.bridges.vllm")
    return getattr(module, name)(SimpleNamespace(speculative_config=SimpleNamespace(num_speculative_tokens=k)))


def asked(made: Any, texts: list[list[int]], new: list[list[int]] | None = None, longest: int = 64) -> list[list[int]]:
    """One step with these texts; what stands behind a text is of an older request."""
    ids = np.full((len(texts) + 2, longest), 9, dtype=np.int32)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
    lengths = np.array([len(text) for text in texts] + [0, 0], dtype=np.int32)
    drafts: list[list[int]] = made.propose(new or [text[-1:] for text in texts], lengths, ids, slot_mappings=None)
    return drafts


@pytest.mark.parametrize("name", ["suffix", "prompt_lookup"])
def test_drafts_are_lists_of_what_followed(name: str) -> None:
    made = proposer(name)
    drafts = asked(made, [TEXT, [1, 2, 3], [3, 4, 3, 4, 3]])
    assert drafts[0][:2] == [7, 8] and drafts[1] == [] and drafts[2][:1] == [4]
    assert all(type(token) is int for draft in drafts for token in draft) and max(map(len, drafts)) <= 4


def test_a_prompt_that_is_still_read_gets_no_draft() -> None:
    assert asked(proposer("suffix"), [TEXT, TEXT], [[], [6]])[0] == []
    assert asked(proposer("suffix"), [TEXT, TEXT], [[], []]) == [[], []]


def test_drafts_end_where_the_text_does() -> None:
    assert asked(proposer("prompt_lookup"), [TEXT], longest=len(TEXT) + 1) == [[7]]
    assert asked(proposer("prompt_lookup"), [TEXT], longest=len(TEXT)) == [[]]
    assert asked(proposer("suffix", k=0), [TEXT]) == [[]]


def test_suffix_remembers_texts_that_grow() -> None:
    """Drafts are those of a drafter that sees every text anew, whatever comes, goes, and changes its row."""
    kept, texts = Suffix().of_texts(), [[1, 2, 3, 1, 2], TEXT[:4], [4, 4]]
    for step in range(12):
        texts = [*texts[1:], texts[0]]
        texts = [[*text, text[-(step % 2) - 1]] for text in texts]
        some = texts[: 1 + step % 3]
        assert kept.propose(some, 5) == Suffix().of_texts().propose(some, 5)
    twins = [[1, 2, 1], [1, 2, 1]]
    assert kept.propose(twins, 3) == Suffix().of_texts().propose(twins, 3)
    for number in range(KEPT + 5):
        kept.propose([[number, 3]], 1)
    assert len(kept._rows) == KEPT


def test_names_of_drafters() -> None:
    for name, said in (
        ("sufix", "suffix"),
        ("draft_model", "needs a smaller model"),
        ("token_recycling", "more than"),
    ):
        with pytest.raises(ValueError, match=said):
            proposer(name)
    with pytest.raises(AttributeError):
        importlib.import_module("mmspec.bridges.vllm").__path__  # noqa: B018


def test_a_strangers_drafter_in_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    class Echo:
        def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
            return [row[-1:] * k for row in tokens]

    spec = SimpleNamespace(name="my-echo", load=lambda: Echo)
    monkeypatch.setattr("mmspec.bridges.vllm.installed", lambda: SimpleNamespace(components=lambda kind: [spec]))
    assert asked(proposer("my_echo", k=3), [[1, 2]]) == [[2, 2, 2]]


def test_the_recorded_call_fits() -> None:
    called = CONTRACT["called"]
    parameters = inspect.signature(VllmHostProposer.propose).parameters
    assert list(parameters)[1 : 1 + len(called["positional"])] == called["positional"]
    assert set(called["keywords"]) <= set(parameters)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_record_is_what_vllm_does() -> None:
    """By its sources, which are not imported."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations is not None
    assert recorded(Path(spec.submodule_search_locations[0]).parent) == CONTRACT["called"]["positional"]


def recorded(site: Path) -> list[str]:
    """The positional arguments of `self.drafter.propose(…)` under the method `custom_class`."""
    called = CONTRACT["called"]
    tree = ast.parse((site / (called["module"].replace(".", "/") + ".py")).read_text())
    function = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == called["function"])
    branch = next(n for n in ast.walk(function) if isinstance(n, ast.If) and "'custom_class'" in ast.unparse(n.test))
    call = next(
        n
        for statement in branch.body
        for n in ast.walk(statement)
        if isinstance(n, ast.Call) and ast.unparse(n.func).endswith(".propose")
    )
    assert [keyword.arg for keyword in call.keywords] == called["keywords"]
    return [ast.unparse(argument).rpartition(".")[2] for argument in call.args]
