"""`mmspec bench diversity`: whether a method's texts are as varied as plain decoding's."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.bench.methods import chosen_methods
from mmspec.cli.places import refuse_unwritable


def diversity(methods: Callable[[], Mapping[str, Mapping[str, Any]]], target: str) -> Callable[..., None]:
    """The command that measures diversity.

    Args:
        methods: Returns the default methods by label, with their options; called after the arguments were checked.
        target: The default model.
    """

    def command(
        method: Annotated[str | None, typer.Option(help="Methods, joined by commas; default: all.")] = None,
        json: Annotated[Path | None, typer.Option(help="Where to write the result, a line of JSON a cell.")] = None,
        prompts: Annotated[int, typer.Option(min=1, max=100, help="Prompts of each kind.")] = 6,
        outputs: Annotated[int, typer.Option(min=2, max=1000, help="Texts of a prompt under one set of seeds.")] = 8,
        sets: Annotated[int, typer.Option(min=2, max=1000, help="Sets of seeds.")] = 8,
        new_tokens: Annotated[int, typer.Option(min=4, max=512, help="Tokens of each text.")] = 32,
        temperature: Annotated[float, typer.Option(min=0.01, max=10, help="Of sampling.")] = 1.0,
        device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
        model: Annotated[str, typer.Option(help="A model with the shipped tokenizer.")] = target,
    ) -> None:
        """Measure how varied sampled texts are, by distinct-n, self-BLEU and entropy, beside plain's spread."""
        refuse_unwritable(json)
        listed = methods()
        names = chosen_methods(method, listed) or list(listed)
        if find_spec("nltk") is None:
            raise ValueError("self-BLEU needs NLTK: pip install 'mmspec[bench]'")
        from tqdm import tqdm
        from transformers.utils import logging

        from mmspec.kits.text.bench.divergent import KINDS
        from mmspec.kits.text.bench.diversity import Size, measure
        from mmspec.report import lines, terminal
        from mmspec.report.diversity import view
        from mmspec.report.table import show_view

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        size = Size(prompts, outputs, sets, new_tokens, temperature)
        chosen = {name: listed.get(name, {}) for name in names}
        with tqdm(total=len(KINDS) * (len(chosen) + 1), desc="bench diversity", unit="cell", leave=False) as bar:
            cells = measure(model, chosen, size, device, lambda: bar.update() and None)
        if json is not None:
            lines.save(json, cells)
        show_view(view(cells), terminal.terminal())

    return command
