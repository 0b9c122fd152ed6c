"""`python -m tools.cards`: cards and README say what was measured; what somebody types is found and overwritten."""

import json
from dataclasses import replace
from pathlib import Path

import click.testing
import pytest
from huggingface_hub import ModelCard
from typer.testing import CliRunner

from mmspec import shipped
from tools.cards import cards
from tools.cards.__main__ import build
from tools.cards.models import SHIPPED
from tools.cards.numbers import fill
from tools.report import markdown
from tools.report.whole import WholeResult

ROOT = Path(__file__).parents[2]
README = """# Title
It writes code <!-- bench: r.json speedup "code, greedy" prompt-lookup -->9.99<!-- /bench --> times as fast
(<!-- bench: r.json speedup "code, greedy" prompt-lookup plain --><!-- /bench --> over plain,
<!-- bench: r.json speedup "code, greedy" prompt-lookup "prompt lookup" --><!-- /bench -->,
<!-- bench: r.json acceptance "code, greedy" auto --><!-- /bench --> a pass).

<!-- bench: r.json summary -->
| old |
<!-- /bench -->

The end.
"""


def mmspec(*arguments: object) -> click.testing.Result:
    return CliRunner().invoke(build(), [*map(str, arguments)])


@pytest.fixture
def saved(result: WholeResult, tmp_path: Path) -> Path:
    result.save(tmp_path / "r.json")
    return tmp_path / "r.json"


def test_numbers_in_sentences_and_blocks(saved: Path) -> None:
    filled = fill(README, saved.parent)
    assert "auto -->1.60<!-- /bench --> a pass" in filled and "| old |" not in filled
    assert "prompt-lookup -->1.14<!-- /bench --> times" in filled, "as fast as the fastest peer"
    assert "plain -->1.60<!--" in filled and '"prompt lookup" -->1.14<!--' in filled
    assert "<!-- bench: r.json summary -->\n\n| method | code, greedy |" in filled and "| measured against |" in filled
    assert filled.endswith("The end.\n")
    assert fill(filled, saved.parent) == filled


def test_a_readme_is_filled_and_a_number_typed_by_hand_fails_the_check(saved: Path) -> None:
    readme = saved.with_name("README.md")
    readme.write_text(README)
    assert mmspec("--readme", readme, "--check").exit_code == 1 and readme.read_text() == README
    assert mmspec("--readme", readme).exit_code == 0 and readme.read_text() == fill(README, saved.parent)
    assert mmspec("--readme", readme, "--check").exit_code == 0
    readme.write_text(readme.read_text().replace("1.14<", "1.70<", 1))
    check = mmspec("--readme", readme, "--check")
    assert check.exit_code == 1 and "would change" in check.output


def test_the_readme_and_the_cards_of_this_repository_are_what_the_command_writes() -> None:
    for file in (ROOT / "README.md", *(ROOT / "model_cards").glob("*.md")):
        assert file.read_text() == fill(file.read_text(), file.parent), f"run: python -m tools.cards --readme {file}"
    check = mmspec("--check")
    assert check.exit_code == 0, f"run: python -m tools.cards\n{check.output}"


def test_no_loop_of_ours_is_called_somebody_elses_and_no_document_holds_a_speed() -> None:
    """A baseline is named for what it is; and the fastest one is taken."""
    for file in (ROOT / "README.md", *(ROOT / "model_cards").glob("*.md")):
        text = file.read_text()
        assert not any(
            words in text for words in ("LlamaGen's loop", "LlamaGen's own sampling", "Times as fast as generate")
        )
    for file in (ROOT / "model_cards").glob("*.bench.json"):
        held = json.loads(file.read_text())
        assert not any("speedup" in row for row in held["rows"]), file
        assert all(row["equivalent_passes"] for row in held["rows"] if row["method"] == "cascade")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- bench: r.json summary -->\n", "not closed"),
        ("<!-- bench: r.json summary --> <!-- bench: r.json facts --> <!-- /bench -->", "not closed"),
        ("text <!-- /bench -->", "not closed"),
        ("<!-- bench: none.json summary --><!-- /bench -->", "none.json, which does not exist"),
        ("<!-- bench: r.json sumary --><!-- /bench -->", "did you mean 'summary'"),
        ("<!-- bench: r.json --><!-- /bench -->", "no table or number is called ''"),
        ("<!-- bench: r.json speedup auto --><!-- /bench -->", "a setting in quotes and a method"),
        ('<!-- bench: r.json speedup "code, gredy" auto --><!-- /bench -->', "did you mean 'code, greedy'"),
        ('<!-- bench: r.json speedup "code, greedy" autos --><!-- /bench -->', "did you mean 'auto'"),
        ('<!-- bench: r.json speedup "code, greedy" auto generates --><!-- /bench -->', "did you mean 'generate'"),
    ],
)
def test_mistakes_in_markers_teach(saved: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fill(text, saved.parent)


def test_a_card_of_another_model_is_made_kept_and_filled_again(result: WholeResult, saved: Path) -> None:
    card = saved.with_name("mine.md")
    assert mmspec(saved, "-o", card).exit_code == 0
    made = card.read_text()
    assert ModelCard.load(card).data.to_dict()["mmspec"] == {"kind": "text", "bench": "mine.bench.json"}
    assert markdown.markdown(result) in made and saved.with_name("mine.bench.json").read_text() == saved.read_text()
    assert fill(made, saved.parent) == made

    card.write_text("# Mine\n\nSomebody's words.\n")
    assert mmspec(saved, "-o", card).exit_code == 0
    assert card.read_text() == f"# Mine\n\nSomebody's words.\n\n{cards.speed_section(result, 'mine.bench.json')}"

    replace(result, seed=7).save(saved)
    assert mmspec(saved, "-o", card, "--check").exit_code == 1
    assert mmspec(saved, "-o", card).exit_code == 0
    assert "seed 7" in card.read_text() and card.read_text().count("## Speed") == 1
    assert card.read_text().startswith("# Mine\n\nSomebody's words.\n")
    assert mmspec(saved, "-o", card, "--check").exit_code == 0


def test_the_card_of_a_shipped_model_is_the_same_whoever_renders_it(result: WholeResult, saved: Path) -> None:
    card = saved.with_name("text-14m.md")
    card.write_text("stale")
    assert mmspec(saved, "-o", card).exit_code == 0
    (model,) = [model for model in SHIPPED if model.name == "text-14m"]
    facts = json.loads((shipped.asset("text-14m") / "training.json").read_text())
    assert card.read_text() == cards.render(model, facts, result)
    assert card.read_text() == cards.from_facts(model, shipped.folder("assets"), saved.parent)
    cards.write(model, shipped.folder("assets"), saved.parent)  # as training does
    assert mmspec(saved, "-o", card, "--check").exit_code == 0
    text = card.read_text()
    assert "bench: text-14m.bench.json" in text and "14,162,304 parameters" in text and "⚠ lossy" in text
    assert text.startswith(cards.render(model, facts).partition("mmspec:")[0])

    more = saved.with_name("text-14m.further.bench.json")
    replace(result, seed=11).save(more)
    assert mmspec(saved, "-o", card, "--check").exit_code == 1
    assert mmspec(saved, "-o", card).exit_code == 0
    _, further = card.read_text().split("## Speed of further methods")
    assert "text-14m.further.bench.json tables" in further and "seed 11" in further
    assert fill(card.read_text(), saved.parent) == card.read_text()


def test_mistakes_teach(saved: Path) -> None:
    for arguments, message in (
        ((saved,), "give both RESULT and -o"),
        ((saved, "-o", saved), "FILE.md, not 'r.json'"),
        ((saved.with_name("no.json"), "-o", saved.with_name("x.md")), "there is no "),
        (("--readme", saved.with_name("NONE.md")), "there is no "),
    ):
        run = mmspec(*arguments)
        assert isinstance(run.exception, ValueError) and message in str(run.exception)
