"""`mmspec pose`: a toy model talks about a picture, and its poses are drawn."""

from pathlib import Path
from typing import Annotated

import typer


def pose(
    method: Annotated[str, typer.Option(help="A method of mmspec.")] = "prompt-lookup",
    tokens: Annotated[int, typer.Option(min=1, max=256)] = 40,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="The stick figures.")] = Path("poses.png"),
) -> None:
    """Let a model of random weights answer with a text and its poses, which are drawn as stick figures."""
    import torch

    from mmspec_pose.body import stick_figures
    from mmspec_pose.chat import reply
    from mmspec_pose.model import prompts, tiny

    (answer,), report = reply(tiny(), prompts(torch.tensor([[3, 5, 7, 3, 5, 7]])), tokens, method, seed)
    stick_figures(answer.poses).save(out)
    typer.echo(" ".join(map(str, answer.ids.tolist())))
    typer.echo(f"{len(answer.poses)} poses, {report.emitted} tokens in {report.rounds} rounds")
