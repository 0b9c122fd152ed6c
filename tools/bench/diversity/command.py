"""`python -m tools.bench diversity`: whether a method's texts are as varied as plain decoding's."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm
from transformers.utils import logging

from mmspec.bench.methods import chosen_methods
from mmspec.cli.places import refuse_unwritable
from mmspec.kits.text.bench.settings import DRAFTER
from mmspec.report import terminal
from mmspec.report.table import show_view
from tools.bench.diversity.measure import KINDS, Size, measure, read_bits
from tools.cards.diversity import view
from tools.report import lines

METHODS: Mapping[str, Mapping[str, Any]] = {
    "prompt-lookup": {"k": 7},
    "draft-tree": {"k": 3, "drafter": DRAFTER, "width": 3, "nodes": 7},
    "draft-model, rejection": {"method": "draft-model", "k": 4, "drafter": DRAFTER, "rule": "rejection"},
    "rsd": {"k": 3, "drafter": DRAFTER, "width": 2},
    "bild": {"k": 4, "drafter": DRAFTER},
    "bild, threshold 5": {"method": "bild", "k": 4, "drafter": DRAFTER, "rule.threshold": 5.0},
}
"""What is compared with plain decoding: invariant, lossless and lossy methods."""
HEAD: Mapping[str, Any] = {"model": "mmspec/smollm2-eagle3", "k": 3}
ANSWERED: Mapping[str, Mapping[str, Any]] = {
    "prompt-lookup": {"k": 7},
    "eagle": HEAD,
    "eagle, rejection": {"method": "eagle", **HEAD, "form": "chain", "rule": "rejection"},
    "eagle, typical": {"method": "eagle", **HEAD, "form": "chain", "rule": "typical"},
}
"""The same for a model that answers questions about papers, with the head that ships for it."""
ANSWERS = "smollm2"
DEFAULT = Size()


def diversity(
    method: Annotated[str | None, typer.Option(help="Methods, joined by commas; default: all.")] = None,
    json: Annotated[Path | None, typer.Option(help="Where to write the result, a line of JSON a cell.")] = None,
    prompts: Annotated[int, typer.Option(min=1, max=100, help="Prompts of each kind.")] = DEFAULT.prompts,
    outputs: Annotated[
        int, typer.Option(min=2, max=1000, help="Texts of a prompt under one set of seeds.")
    ] = DEFAULT.outputs,
    sets: Annotated[int, typer.Option(min=2, max=1000, help="Sets of seeds.")] = DEFAULT.sets,
    new_tokens: Annotated[int, typer.Option(min=4, max=512, help="Tokens of each text.")] = DEFAULT.new,
    temperature: Annotated[float, typer.Option(min=0.01, max=10, help="Of sampling.")] = DEFAULT.temperature,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    model: Annotated[
        str | None, typer.Option(help="A model with the shipped tokenizer; with --data, of chats.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Ask for hypotheses: JSON lines in HypoGen's layout.", exists=True, dir_okay=False),
    ] = None,
) -> None:
    """Measure how varied sampled texts are, by distinct-n, self-BLEU and entropy, beside plain's spread."""
    refuse_unwritable(json)
    methods, usual = (METHODS, "mmspec/text-14m") if data is None else (ANSWERED, ANSWERS)
    names = chosen_methods(method, methods) or list(methods)
    bits = [] if data is None else read_bits(data)
    if find_spec("nltk") is None:
        raise ValueError("self-BLEU needs NLTK: pip install -e '.[tools]'")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    size = Size(prompts, outputs, sets, new_tokens, temperature)
    chosen, kinds = {name: methods.get(name, {}) for name in names}, 1 if bits else len(KINDS)
    with tqdm(total=kinds * (len(chosen) + 1), desc="diversity", unit="cell", leave=False) as bar:
        cells = measure(model or usual, chosen, size, device, lambda: bar.update() and None, bits)
    if json is not None:
        lines.save_lines(json, cells)
    show_view(view(cells), terminal.terminal())
