"""`mmspec bench ssm`."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.bench.command import Quick, bench, check_output_folders
from mmspec.bench.methods import told
from mmspec.kits.text.bench.defaults import BATCH, NEW, PROMPTS, REPEATS

TARGET = "mmspec/ssm-5m"


def bench_ssm(
    method: Annotated[str | None, typer.Option(help="Methods, joined by commas; default: all.")] = None,
    json: Annotated[Path | None, typer.Option(help="Where to write the result; raw repeats included.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to draw it (.png, .svg); needs the extra `bench`.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    repeats: Annotated[
        int, typer.Option(min=1, max=1000, help="Counted repeats; the raw seconds of each are kept.")
    ] = REPEATS,
    prompts: Annotated[int, typer.Option(min=1, max=10, help="Prompts of each kind of text.")] = PROMPTS,
    new_tokens: Annotated[int, typer.Option(min=8, max=512, help="Tokens of each output.")] = NEW,
    batch: Annotated[int, typer.Option(min=0, max=10, help="Rows of the batch; 0 leaves batches out.")] = BATCH,
    seed: Annotated[int, typer.Option(help="Of torch's generator, before every call.")] = 0,
    quick: Quick = False,
    model: Annotated[str, typer.Option(help="A model with recurrent layers and the shipped tokenizer.")] = TARGET,
) -> None:
    """Compare methods, interleaved, with plain decoding and transformers' own; what rounds over trees cost."""
    check_output_folders(json, plot)
    from mmspec.kits.text.bench.run import bench as run
    from mmspec.kits.text.bench.settings import BenchOptions, Subject
    from mmspec_ssm.bench.rounds import rounds
    from mmspec_ssm.bench.settings import METHODS

    subject = Subject("ssm", model, METHODS, by_nodes=rounds)
    options = BenchOptions(prompts=prompts, new=new_tokens, repeats=repeats, batch=batch, seed=seed)
    options = options.quick if quick else options
    methods = told(method, METHODS)
    bench("ssm", lambda progress: run(subject, methods, options, device, progress), json, plot)
