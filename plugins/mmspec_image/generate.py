"""`mmspec generate image "…"`: draws pictures into a file; CTRL-C keeps what there is of them."""

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.arguments import Device, Drafted, Dtype, Method, RuleName
from mmspec.kits.pictures import command as kit


def generate_image(
    prompt: Annotated[str | None, typer.Argument(help="What to draw; models of classes take --class-label.")] = None,
    out: kit.Out = Path("out.png"),
    trace: kit.Trace = None,
    model: kit.Model = "mmspec/emoji",
    method: Method = "auto",
    rule: RuleName = None,
    num_speculative_tokens: Drafted = None,
    guidance: Annotated[
        float | None, typer.Option(help="Higher follows the prompt more closely; 1 is none. Default: the model's.")
    ] = None,
    negative: kit.Negative = None,
    seed: Annotated[int, typer.Option(help="Same seed, same picture.")] = 0,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0 is greedy. Default: the model's.")] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="0 keeps all. Default: the model's.")] = None,
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Default: the model's.")] = None,
    class_label: Annotated[int | None, typer.Option(min=0, help="What to draw, for models of classes.")] = None,
    num_images: kit.NumImages = 1,
    opt: kit.Options = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    words: Annotated[
        bool, typer.Option("--words", help="List the words that the model knows, and draw nothing.")
    ] = False,
) -> None:
    """Draw a picture, speculatively; under an invariant method it is the plain picture for that seed."""
    if words:
        kit.list_words(model)
        return
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
    how = {"device": device, "dtype": dtype, "method": method, "rule": rule, "k": num_speculative_tokens}
    kit.generate(call, "code", out, trace, model, opt, **how)
