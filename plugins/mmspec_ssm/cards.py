"""What the cards of the shipped state-space models say: none is shipped yet."""

from pathlib import Path

from mmspec.report.cards import Shipped, write

SHIPPED: tuple[Shipped, ...] = ()


def write_all(assets: Path, cards: Path) -> None:
    """Render the cards of the models in `assets`."""
    cards.mkdir(parents=True, exist_ok=True)
    for shipped in SHIPPED:
        write(shipped, assets, cards)
