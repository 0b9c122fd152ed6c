"""`mmspec demo text`: the shipped models write Python and Shakespeare, plainly and speculatively, in one run."""

from mmspec.kits.text.demo import write

TARGET = "mmspec/text-14m"


def demo_text() -> None:
    """Print, for each prompt and method, the first lines, acceptance length and speed-up over plain."""
    write(TARGET)
