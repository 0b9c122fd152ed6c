"""`mmspec generate continuous "…"`: draws pictures into a file; CTRL-C keeps what there is of them."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.kits.pictures.command import (
    Device,
    Drafted,
    Method,
    Model,
    Negative,
    NumImages,
    Options,
    Out,
    Rule,
    Trace,
    generate,
)


def generate_continuous(
    prompt: Annotated[str, typer.Argument(help="What to draw.")],
    out: Out = Path("out.png"),
    trace: Trace = None,
    model: Model = "mmspec/emoji-continuous",
    method: Method = "auto",
    rule: Rule = None,
    num_speculative_tokens: Drafted = None,
    guidance: Annotated[
        float | None, typer.Option(help="Higher follows the prompt more closely; default: 3, or 1 (none) without it.")
    ] = None,
    negative: Negative = None,
    seed: Annotated[int, typer.Option(help="Same seed and method, same picture.")] = 0,
    num_images: NumImages = 1,
    opt: Options = None,
    device: Device = "cpu",
) -> None:
    """Draw a picture of continuous tokens, speculatively; under a lossless method it has the plain picture's
    distribution.
    """
    call = {
        "prompt": prompt,
        "negative_prompt": negative,
        "num_images_per_prompt": num_images,
        "guidance_scale": guidance,
        "seed": seed,
    }
    how = {"method": method, "rule": rule, "k": num_speculative_tokens, "options": opt}
    generate(call, "token", out=out, trace=trace, model=model, device=device, **how)
