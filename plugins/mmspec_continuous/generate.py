"""`mmspec generate continuous "…"`: draws pictures into a file; CTRL-C keeps what there is of them."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.arguments import refuse_method
from mmspec.cli.places import refuse_unwritable
from mmspec.kits.pictures.command import draw, pipeline, refuse_format


def generate_continuous(
    prompt: Annotated[str, typer.Argument(help="What to draw.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The picture; its ending says the format.")] = Path(
        "out.png"
    ),
    trace: Annotated[Path | None, typer.Option(help="The picture again, its cells in the colours of rounds.")] = None,
    model: Annotated[str, typer.Option(help="A shipped model (mmspec/…) or a folder.")] = "mmspec/emoji-continuous",
    method: Annotated[str, typer.Option(help="See `mmspec methods`.")] = "auto",
    rule: Annotated[str | None, typer.Option(help="Acceptance rule; default: the method's.")] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option("--num-speculative-tokens", "-k", min=0)] = None,
    guidance: Annotated[
        float | None, typer.Option(help="Higher follows the prompt more closely; default: 3, or 1 (none) without it.")
    ] = None,
    negative: Annotated[str | None, typer.Option(help="What to lead away from.")] = None,
    seed: Annotated[int, typer.Option(help="Same seed and method, same picture.")] = 0,
    num_images: Annotated[int, typer.Option(min=1, max=256, help="Pictures, on one sheet.")] = 1,
    opt: Annotated[list[str] | None, typer.Option(help="key=value of drafter or rule; repeatable.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
) -> None:
    """Draw a picture of continuous tokens, speculatively; under a lossless method it has the plain picture's
    distribution.
    """
    for file in filter(None, (out, trace)):
        refuse_unwritable(file)
        refuse_format(file)
    refuse_method(method)

    from mmspec.registry.options import parse

    pipe = pipeline(model, device, method=method, rule=rule, k=num_speculative_tokens, **parse(opt or []))
    call = {
        "prompt": prompt,
        "negative_prompt": negative,
        "num_images_per_prompt": num_images,
        "guidance_scale": guidance,
        "seed": seed,
    }
    draw(pipe, call, out, trace, "token")
