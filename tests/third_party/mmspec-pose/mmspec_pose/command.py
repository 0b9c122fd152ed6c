"""`mmspec pose`: a toy model talks, and its poses are printed."""

from typing import Annotated

import typer


def pose(
    method: Annotated[str, typer.Option(help="A method of mmspec.")] = "prompt-lookup",
    tokens: Annotated[int, typer.Option(min=1, max=256)] = 40,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Let a model of random weights answer with a text and its poses."""
    import torch

    from mmspec_pose.chat import reply
    from mmspec_pose.model import tiny

    ids = torch.tensor([[3, 5, 7, 3, 5, 7]])
    (answer,), report = reply(tiny(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, tokens, method, seed)
    typer.echo(" ".join(map(str, answer.ids.tolist())))
    typer.echo(f"{len(answer.poses)} poses, {report.emitted} tokens in {report.rounds} rounds")
