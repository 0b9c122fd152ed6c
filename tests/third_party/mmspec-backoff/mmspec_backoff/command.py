"""`mmspec backoff`: what the drafter would say."""

from typing import Annotated

import typer

from mmspec_backoff.table import Table


def backoff(
    text: Annotated[str, typer.Argument(help="Words.")],
    order: Annotated[int, typer.Option(min=1, max=8)] = 3,
    k: Annotated[int, typer.Option("-k", min=1)] = 4,
) -> None:
    """Continue a text of words by its own n-grams."""
    words = text.split()
    table = Table(order)
    table.learn(words)
    typer.echo(" ".join(table.follow(words, k)))
