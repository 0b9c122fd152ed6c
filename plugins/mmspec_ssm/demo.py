"""`mmspec demo ssm`: the shipped hybrid writes Python and Shakespeare, plainly and speculatively, in one run."""

from mmspec.kits.text.bench.settings import DRAFTER
from mmspec.kits.text.demo import METHODS, write

TARGET = "mmspec/ssm-5m"


def demo_ssm() -> None:
    """Print, for each prompt and method, the first lines, acceptance length and speed-up over plain."""
    write(TARGET, {**METHODS, "stree": {"drafter": DRAFTER}})
