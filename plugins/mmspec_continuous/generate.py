"""`mmspec generate continuous "…"`: draws pictures into a file; CTRL-C keeps what there is of them."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.arguments import Device, Drafted, Dtype, Method, RuleName
from mmspec.kits.pictures import command as kit


def generate_continuous(
    prompt: Annotated[str, typer.Argument(help="What to draw.")],
    out: kit.Out = Path("out.png"),
    trace: kit.Trace = None,
    model: kit.Model = "mmspec/emoji-continuous",
    method: Method = "auto",
    rule: RuleName = None,
    num_speculative_tokens: Drafted = None,
    guidance: Annotated[
        float | None, typer.Option(help="Higher follows the prompt more closely; default: 3, or 1 (none) without it.")
    ] = None,
    negative: kit.Negative = None,
    seed: Annotated[int, typer.Option(help="Same seed and method, same picture.")] = 0,
    num_images: kit.NumImages = 1,
    opt: kit.Options = None,
    device: Device = "cpu",
    dtype: Dtype = None,
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
    how = {"device": device, "dtype": dtype, "method": method, "rule": rule, "k": num_speculative_tokens}
    kit.generate(call, "token", out, trace, model, opt, **how)
