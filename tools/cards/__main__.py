"""`python -m tools.cards`: renders model cards, and the numbers of any Markdown file, from benchmarks."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.arguments import checked
from mmspec.cli.boundary import run
from mmspec.cli.places import text_of
from mmspec.files import save_text
from mmspec.shipped import folder
from tools.cards.cards import facts_of, from_facts, render, render_measured, sections_beside, speed_section
from tools.cards.models import SHIPPED
from tools.cards.numbers import fill
from tools.report.whole import load_whole


def card(
    result: Annotated[Path | None, typer.Argument(help="The JSON of `mmspec bench`.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The card, FILE.md; RESULT is kept beside it.")
    ] = None,
    readme: Annotated[
        list[Path] | None, typer.Option(help="Fill the blocks of numbers in this Markdown file; repeatable.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 if something would change.")
    ] = False,
) -> None:
    """Render model cards and the numbers of a README from what was measured.

    Without arguments: the cards of all shipped models, from the facts beside their weights and the benchmarks beside
    the cards. With RESULT and -o: that card; a card that says more keeps what it says. With --readme: every block
    between `<!-- bench: FILE WHAT -->` and `<!-- /bench -->`.
    """
    if (result is None) != (output is None):
        raise ValueError(
            "a card is rendered from a RESULT.json into a file: give both RESULT and -o FILE.md, or neither"
        )
    texts: dict[Path, str] = {}
    if result is not None and output is not None:
        texts |= _measured(result, output)
    elif not readme:
        texts |= _shipped()
    texts |= {file: _filled(file) for file in readme or ()}
    changed = [file for file, text in texts.items() if not file.is_file() or text_of(file) != text]
    for file in changed:
        typer.echo(f"{file} {'would change' if check else 'written'}")
        if not check:
            file.parent.mkdir(parents=True, exist_ok=True)
            save_text(file, texts[file])
    if not changed:
        typer.echo(f"up to date: {', '.join(map(str, texts))}")
    raise typer.Exit(1 if check and changed else 0)


def _shipped() -> dict[Path, str]:
    cards = folder("model_cards")
    return {cards / f"{model.name}.md": from_facts(model, folder("assets"), cards) for model in SHIPPED}


def _measured(result: Path, output: Path) -> dict[Path, str]:
    """The benchmark beside a card, and the card; of a model that is not shipped only the section on speed."""
    if output.suffix != ".md":
        raise ValueError(f"a card is a Markdown file, FILE.md, not {output.name!r}")
    document = text_of(result)
    bench = load_whole(result)
    beside = output.with_suffix(".bench.json")
    known = [model for model in SHIPPED if model.name == output.stem == bench.model.removeprefix("mmspec/")]
    if known:
        text = render(known[0], facts_of(known[0], folder("assets")), bench, sections_beside(output))
    elif output.is_file():
        text = text_of(output)
        text += "" if f"<!-- bench: {beside.name} " in text else "\n" + speed_section(bench, beside.name)
        text = fill(text, output.parent, {beside.name: bench})
    else:
        text = render_measured(bench, output.stem)
    return {beside: document, output: text}


def _filled(file: Path) -> str:
    return fill(text_of(file), file.parent)


def build() -> typer.Typer:
    """The application."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command("card")(checked(card))
    return app


if __name__ == "__main__":
    sys.exit(run(lambda: build()(standalone_mode=False)))
