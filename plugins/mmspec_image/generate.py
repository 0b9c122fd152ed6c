"""`mmspec generate image "…"`: draws pictures into a file; CTRL-C keeps what there is of them."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.arguments import refuse_method
from mmspec.cli.places import refuse_unwritable
from mmspec.kits.pictures.command import draw, list_words, pipeline, refuse_format


def generate_image(
    prompt: Annotated[str | None, typer.Argument(help="What to draw; models of classes take --class-label.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The picture; its ending says the format.")] = Path(
        "out.png"
    ),
    trace: Annotated[Path | None, typer.Option(help="The picture again, its cells in the colours of rounds.")] = None,
    model: Annotated[str, typer.Option(help="A shipped model (mmspec/…) or a folder.")] = "mmspec/emoji",
    method: Annotated[str, typer.Option(help="See `mmspec methods`.")] = "auto",
    rule: Annotated[str | None, typer.Option(help="Acceptance rule; default: the method's.")] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option("--num-speculative-tokens", "-k", min=0)] = None,
    guidance: Annotated[float, typer.Option(help="Higher follows the prompt more closely; 1 is none.")] = 3.0,
    negative: Annotated[str | None, typer.Option(help="What to lead away from.")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same picture.")] = 0,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 1.0,
    class_label: Annotated[int | None, typer.Option(min=0, help="What to draw, for models of classes.")] = None,
    num_images: Annotated[int, typer.Option(min=1, max=256, help="Pictures, on one sheet.")] = 1,
    opt: Annotated[list[str] | None, typer.Option(help="key=value of drafter or rule; repeatable.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    words: Annotated[
        bool, typer.Option("--words", help="List the words that the model knows, and draw nothing.")
    ] = False,
) -> None:
    """Draw a picture, speculatively; under an invariant method it is the plain picture for that seed."""
    if words:
        list_words(model)
        return
    for file in filter(None, (out, trace)):
        refuse_unwritable(file)
        refuse_format(file)
    refuse_method(method)

    from mmspec.registry.options import parse

    pipe = pipeline(model, device, method=method, rule=rule, k=num_speculative_tokens, **parse(opt or []))
    call = {
        "prompt": prompt,
        "class_labels": class_label,
        "negative_prompt": negative,
        "num_images_per_prompt": num_images,
        "guidance_scale": guidance,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
    }
    draw(pipe, call, out, trace, "code")
