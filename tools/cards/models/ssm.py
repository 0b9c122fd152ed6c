"""What the cards of the shipped state-space models say."""

from tools.cards.cards import Shipped
from tools.cards.models.sources import SOURCES, held_out

SHIPPED = (
    Shipped(
        name="ssm-5m",
        summary="A Bamba-architecture hybrid (five Mamba-2 layers, one of attention) that continues Python and "
        "Shakespeare, distilled from `mmspec/text-14m` before that was trained further; same tokenizer, so that "
        "`mmspec/text-1m` drafts for it.",
        target="recurrent",
        method="suffix",
        policy="goodput",
        k=10,
        drafter=None,
        data=SOURCES,
        command="python -m tools.train ssm --prose tinyshakespeare.txt",
        tags=("text-generation", "speculative-decoding", "mamba2", "bamba"),
        measured=held_out,
    ),
)
