"""The common part of commands that draw pictures. Nothing heavy is imported before a command runs.

Files are written whole or not at all, several pictures stand on one sheet, and CTRL-C keeps what there is.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.arguments import Device, Drafted, Dtype, Method, RuleName, refuse_method
from mmspec.cli.groups import INTERRUPTED
from mmspec.cli.places import refuse_unwritable
from mmspec.files import save_whole

Out = Annotated[
    Path,
    typer.Option(
        "--out", "-o", help="The picture, in the format of its ending; of .safetensors, codes or tokens alone."
    ),
]
UNITS = ".safetensors"  # the ending of a file of a picture's units, which are not decoded for it
Trace = Annotated[Path | None, typer.Option(help="The picture again, its cells in the colours of rounds.")]
Model = Annotated[str, typer.Option(help="A shipped model (mmspec/…) or a folder.")]
Negative = Annotated[str | None, typer.Option(help="What to lead away from.")]
Enhance = Annotated[
    str | None,
    typer.Option(
        help="A language model that rewrites the prompt first; with --height and --width, of as many pixels in the "
        "aspect that it names (arXiv 2509.20427)."
    ),
]
Judge = Annotated[
    str | None,
    typer.Option(help="A vision-language model that looks on: what it names is led away from, too (arXiv 2510.10715)."),
]
Question = Annotated[list[str] | None, typer.Option(help="What the judge is asked, in a word; repeatable.")]
Most = Annotated[int | None, typer.Option(min=1, help="Things that are led away from, the latest; default: all.")]
SteerEvery = Annotated[int, typer.Option(min=1, help="Units that are drawn between two looks of the judge.")]
NumImages = Annotated[int, typer.Option(min=1, max=256, help="Pictures, on one sheet.")]
Options = Annotated[list[str] | None, typer.Option(help="key=value of drafter, rule or model (vq=FOLDER); repeatable.")]


def pipeline(model: str, device: str, /, makes: str = "image", **how: Any) -> Any:
    """Load a pipeline that makes pictures, or what `makes` says; arguments as in `mmspec.Pipeline.from_pretrained`."""
    from diffusers.utils import logging

    import mmspec

    logging.disable_progress_bar()  # loading takes a moment only
    pipe = mmspec.Pipeline.from_pretrained(model, device=device, **how)
    if pipe.makes != makes:
        other = f", for mmspec generate {pipe.makes}" if pipe.makes else ""
        raise ValueError(f"{model} makes no {makes}: it is a {type(pipe).__name__}{other}")
    return pipe


def list_words(model: str) -> None:
    """Print the words of a model's training captions."""
    from mmspec.api.stored import Stored
    from mmspec.hosts.loading import load_tokenizer
    from mmspec.kits.pictures.prompts import words_of

    stored = Stored.named(model)
    if stored is None or not (stored.folder / "tokenizer").is_dir():
        raise ValueError(f"{model} is no folder of a pipeline with a tokenizer of captions")
    typer.echo("\n".join(words_of(load_tokenizer(str(stored.folder / "tokenizer")))))


def generate_command(unit: str, target: str, summary: str) -> Callable[..., None]:
    """The command that draws into a file and says what it took; CTRL-C keeps what there is. `unit` is the name of a
    unit (code, token, …), `target` the default model, `summary` the first line of the help.
    """

    def command(
        prompt: Annotated[
            str | None, typer.Argument(help="What to draw; models of classes take --class-label.")
        ] = None,
        *,
        out: Out = Path("out.png"),
        trace: Trace = None,
        model: Model = target,
        method: Method = "auto",
        rule: RuleName = None,
        num_speculative_tokens: Drafted = None,
        guidance: Annotated[
            float | None, typer.Option(help="Higher follows the prompt more closely; 1 is none. Default: the model's.")
        ] = None,
        negative: Negative = None,
        enhance: Enhance = None,
        judge: Judge = None,
        question: Question = None,
        most: Most = None,
        steer_every: SteerEvery = 32,
        seed: Annotated[int, typer.Option(help="Same seed and method, same picture.")] = 0,
        temperature: Annotated[float | None, typer.Option(min=0.0, help="Of codes; 0 is greedy.")] = None,
        top_k: Annotated[int | None, typer.Option(min=0, help="Of codes; 0 keeps all.")] = None,
        top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Of codes; 1 keeps all.")] = None,
        height: Annotated[int | None, typer.Option(help="In pixels; most models draw one size.")] = None,
        width: Annotated[int | None, typer.Option(help="In pixels.")] = None,
        class_label: Annotated[int | None, typer.Option(min=0, help="What to draw, for models of classes.")] = None,
        steps: Annotated[int | None, typer.Option(min=1, help="Passes, for models that draw tokens in sets.")] = None,
        num_images: NumImages = 1,
        opt: Options = None,
        device: Device = "cpu",
        dtype: Dtype = None,
        words: Annotated[
            bool, typer.Option("--words", help="List the words that the model knows, and draw nothing.")
        ] = False,
    ) -> None:
        if words:
            list_words(model)
            return
        from mmspec.registry.options import parse

        units_only = out.suffix.lower() == UNITS
        if units_only and trace is not None:
            raise ValueError(f"a trace lies over a picture: name one with -o, and not a file of {unit}s")
        for file in filter(None, (out, trace)):
            refuse_unwritable(file)
            if not units_only:
                refuse_format(file)
        refuse_method(method)
        pipe = pipeline(
            model, device, dtype=dtype, method=method, rule=rule, k=num_speculative_tokens, **parse(opt or [])
        )
        if enhance is not None:
            prompt, height, width = rewritten(enhance, prompt, height, width, seed, pipe)
        away = None if judge is None else looking_on(judge, question, negative, most, pipe)
        said = {
            "prompt": prompt,
            "class_labels": class_label,
            "negative_prompt": negative,
            "height": height,
            "width": width,
            "guidance_scale": guidance,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "num_inference_steps": steps,
            "callback_on_step_end": away,
            "steer_every": None if away is None else steer_every,
        }
        with ctrl_c_stops(pipe):
            given = {name: value for name, value in said.items() if value is not None}
            given |= {"output_type": "latent"} if units_only else {}
            drawn = pipe(**given, num_images_per_prompt=num_images, seed=seed)
        if units_only:
            from safetensors.torch import save_file

            units = {f"{unit}s": drawn.images.cpu().contiguous()}
            save_whole(out, lambda side: save_file(units, side))
        else:
            save_whole(out, sheet(drawn.images).save)
        if trace is not None:
            from mmspec.kits.pictures.rounds import traced

            save_whole(trace, sheet([traced(*both) for both in zip(drawn.images, drawn.rounds, strict=True)]).save)
        named = "" if away is None else f"led away from: {', '.join(dict.fromkeys(words for *_, words in away.said))}"
        typer.echo("\n".join(line for line in (pipe.why, str(drawn.report), named, str(out)) if line), err=True)
        if pipe.interrupt:
            count = f"{drawn.report.emitted} of {drawn.rounds.numel()} {unit}s"
            typer.echo(f"(stopped; {out} is what there is: {count}, the rest repeats what stands above)", err=True)
            raise typer.Exit(INTERRUPTED)

    command.__doc__ = summary
    return command


def modality(kind: str, unit: str) -> Any:
    """As `mmspec.kits.pictures.bench.pictures`."""
    from mmspec.kits.pictures.bench import pictures

    return pictures(kind, unit)


def rewritten(
    enhance: str, prompt: str | None, height: int | None, width: int | None, seed: int, pipe: Any
) -> tuple[str, int | None, int | None]:
    """A prompt that a language model, on the pipeline's device, made of a prompt, and the size that it calls for."""
    from mmspec.api.prompt_enhancer import PromptEnhancer
    from mmspec.hosts.loading import load_model, load_tokenizer

    if prompt is None:
        raise ValueError("--enhance rewrites a prompt, and there is none")
    area = None if height is None or width is None else (height, width)
    model = load_model(enhance, str(pipe.device), pipe.dtype)
    made = PromptEnhancer(model, load_tokenizer(enhance), area=area)(prompt, seed)
    typer.echo(f"prompt: {made.texts[0]}\n{made.reports[0]}", err=True)
    return made.texts[0], *(made.sizes[0] or (height, width))


def looking_on(judge: str, questions: Sequence[str] | None, negative: str | None, most: int | None, pipe: Any) -> Any:
    """The callback that asks a vision-language model, on the pipeline's device, about pictures that are drawn."""
    from mmspec.kits.pictures.adaptive_negative import QUESTION, AdaptiveNegative, vision_model

    model, processor = vision_model(judge, str(pipe.device), pipe.dtype)
    return AdaptiveNegative.from_model(model, processor, questions or QUESTION, negative_prompt=negative, most=most)


@contextmanager
def ctrl_c_stops(pipe: Any) -> Iterator[None]:
    """Inside of the block the first CTRL-C stops the pipeline's call after its round, the second one at once."""

    def stop(*_: Any) -> None:
        pipe._interrupt = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def sheet(pictures: Sequence[Any]) -> Any:
    """One picture, or several side by side: as square as their number allows."""
    from diffusers.utils import make_image_grid

    rows = next(n for n in range(int(len(pictures) ** 0.5), 0, -1) if len(pictures) % n == 0)
    return make_image_grid(list(pictures), rows=rows, cols=len(pictures) // rows)


def refuse_format(file: Path) -> None:
    """Refuse a file name whose ending is no format of pictures."""
    from PIL import Image

    Image.init()
    if Image.registered_extensions().get(file.suffix.lower()) not in Image.SAVE:
        raise ValueError(f"{file.name} does not end in a format of pictures; .png, .jpg and .webp do")
