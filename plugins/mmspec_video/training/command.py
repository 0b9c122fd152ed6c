"""`mmspec train student`: a consistency student of a world of yours. Imports nothing heavy; running it does."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.groups import Device, Work, resumable
from mmspec.cli.places import refuse_folders, refuse_taken


def train_student(
    target: Annotated[str, typer.Option(help="A world whose frames are denoised: a folder, or mmspec/….")],
    clips: Annotated[
        Path,
        typer.Option(
            help="Clips of it, .npz: frames [clip, frame, height, width, 3] uint8, actions [clip, frame - 1].",
            exists=True,
            dir_okay=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder that receives the student.")],
    *,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps.")] = 200,
    batch: Annotated[int, typer.Option(min=1, help="Clips in a batch.")] = 8,
    rank: Annotated[int, typer.Option(min=1, help="Rank of the differences from the world's model.")] = 4,
    jumps: Annotated[int, typer.Option(min=1, max=4, help="The student's steps from noise to a frame.")] = 2,
    learning_rate: Annotated[float, typer.Option(min=1e-6, max=1, help="The peak.")] = 1e-3,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and batches.")] = 0,
    work: Work = Path("runs/student"),
    device: Device = "cpu",
) -> None:
    """Distil a world's model into a student that makes a frame in one to four steps, for the methods student and nfd.

    Of the clips every tenth, or the last one, is held out. It resumes where it stopped.
    """
    refuse_folders(work)
    refuse_taken(out, {"the target": Path(target), "the clips (--clips)": clips, "the work (--work)": work})
    from mmspec.training.work import refuse_foreign

    refuse_foreign(work)
    import mmspec
    from mmspec_video.recorded import clips_in
    from mmspec_video.training.student import StudentRecipe, train_and_write

    kept = clips_in(clips)
    pipe = mmspec.Pipeline.from_pretrained(target, device=device, method="plain")
    recipe = StudentRecipe(steps, batch, rank, jumps, learning_rate, seed)
    with resumable(work):
        facts = train_and_write(pipe, kept, recipe, out, work, target, typer.echo)
    typer.echo(f"{out.name}: {facts['parameters']:,} parameters; held out: {json.dumps(facts['held_out'])}")
    typer.echo(f"Next: mmspec generate video FRAME --model {target} --actions … --method nfd --opt student={out}")
