"""`python -m tools.bench diversity`: its figures by hand, its prompts, and exact methods beside plain decoding."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmspec.kits.text.bench.settings import held_out
from tests.support import byte_llama
from tools.bench import diversity
from tools.bench.__main__ import build
from tools.bench.diversity import figures as variety
from tools.bench.diversity.measure import FLIPS, KINDS, Size, branching_prompts, measure, read_bits
from tools.cards.diversity import outside

MODEL = "mmspec/text-1m"


def test_figures_by_hand() -> None:
    """Six units, of which four differ; four pairs, of which three differ: (1, 2) comes twice."""
    outputs = [[1, 2, 3], [1, 2, 4]]
    assert variety.distinct(outputs, 1) == 4 / 6 and variety.distinct(outputs, 2) == 3 / 4
    assert variety.distinct(outputs, 4) == 0
    expected = -(2 * (2 / 6) * math.log(2 / 6) + 2 * (1 / 6) * math.log(1 / 6))
    assert variety.entropy(outputs) == pytest.approx(expected)


def test_self_bleu_by_hand() -> None:
    """Of 1 2 3 4 5 beside 1 2 3 4 6: 4 of 5 units, 3 of 4 pairs, 2 of 3 triples, 1 of 2 quadruples are there."""
    one, other = [1, 2, 3, 4, 5], [1, 2, 3, 4, 6]
    assert variety.self_bleu([one, other]) == pytest.approx((4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
    assert variety.self_bleu([one, one, one]) == pytest.approx(1)
    assert variety.self_bleu([one, [7, 8, 9, 10, 11]]) < 0.1


def test_prompts_end_where_a_title_or_a_hypothesis_begins() -> None:
    found = branching_prompts(held_out())
    assert all(text.endswith('"""') and "def " in text.splitlines()[-2] for text in found["titles"])
    assert all(text.splitlines()[-1].split()[0] in ("If", "What", "Were", "Suppose") for text in found["hypotheses"])
    assert min(map(len, found.values())) >= 5


def test_exact_methods_are_inside_plains_spread() -> None:
    sure = {"drafter": MODEL, "k": 4}
    methods = {
        "token-recycling": {"k": 2, "nodes": 4},
        "rejection": {"method": "draft-model", "rule": "rejection", **sure},
    }
    cells = measure(MODEL, methods, Size(prompts=1, outputs=8, sets=4, new=16))
    plain = {cell.kind: cell for cell in cells if cell.method == "plain"}
    assert {cell.kind for cell in cells} == set(KINDS) and len(cells) == 6
    for cell in cells:
        assert not outside(cell, plain[cell.kind])
        assert (cell.same == 1) == (cell.exactness == "invariant")
        assert (cell.figures == plain[cell.kind].figures) == (cell.exactness == "invariant")
        assert cell.bias is None and (cell.acceptance_length > 1) == (cell.method != "plain")


def bits(path: Path, *lines: dict[str, str]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_hypotheses_are_asked_for_by_bits(tmp_path: Path) -> None:
    """In the layout of HypoGen, whose other fields are not shown; the lines that come with the tool have it, too."""
    whole = {"title": "T", "bit": " Slow. ", "flip": "Fast!", "spark": "S", "chain_of_reasoning": "C"}
    assert read_bits(bits(tmp_path / "a.jsonl", whole)) == ["Slow."]
    model = str(byte_llama.save(tmp_path / "tiny", byte_llama.CHAT, reach=1024))
    cells = measure(model, {"prompt-lookup": {"k": 2}}, Size(outputs=2, sets=2, new=6), bits=["Slow.", "Old."])
    assert [(cell.kind, cell.method, cell.prompts) for cell in cells] == [
        (FLIPS, "plain", 2),
        (FLIPS, "prompt-lookup", 2),
    ]
    assert cells[1].same == 1
    for lines, says in (([whole, {**whole, "spark": " "}], r"line 2 of .*a.jsonl has no spark"), ([], "has no lines")):
        with pytest.raises(ValueError, match=says):
            read_bits(bits(tmp_path / "a.jsonl", *lines))
    assert len(read_bits(Path(diversity.__file__).parent / "papers.jsonl")) == 6


def test_the_command_refuses_unknown_methods_before_anything_is_loaded() -> None:
    refused = CliRunner().invoke(build(), ["diversity", "--method", "bildd"])
    assert refused.exit_code and "bild" in str(refused.exception)
