"""Text from a plugin, a file or a request, made fit for one line of a terminal, a table or a card."""

import unicodedata

QUOTED = 300  # characters of a quotation
LONGEST = 2000  # characters of an error that are shown
#: Controls (ESC, newline), format characters (bidi overrides, zero-width), halves of a surrogate pair, line separators.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    r"""One line without control characters: white space is a space, any other control is written as its escape.

    Example:
        >>> printable("red\x1b[31m\nnext")
        'red\\x1b[31m next'
    """
    return "".join(_shown(character) if _is_control(character) else character for character in text)


def shown(text: object, most: int = QUOTED) -> str:
    """A quotation of what a file holds, or a library says about one: one printable line, cut where it is long."""
    line = printable(" ".join(str(text)[: 8 * most].split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def first_line(error: BaseException) -> str:
    """An error's class, and the first line of what it says."""
    return printable(f"{type(error).__name__}: {error}".splitlines()[0])


def one_line(error: BaseException) -> str:
    """The words of an error, as one printable line; a very long one is cut."""
    try:
        return shown(error, LONGEST)
    except Exception:
        return "an error that cannot be shown"  # a plugin's own class, which fails again when it is asked


def refuse_control(text: str, what: str) -> None:
    r"""Refuse a text that holds a control character; `what` is the text's name in the message.

    Example:
        >>> refuse_control("a\x1b[2J", "the summary of drafter 'odd'")
        Traceback (most recent call last):
        ValueError: the summary of drafter 'odd' holds the control character U+001B; write it without
    """
    found = next(filter(_is_control, text), None)
    if found is not None:
        raise ValueError(f"{what} holds the control character U+{ord(found):04X}; write it without")


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in _UNPRINTABLE


def _shown(character: str) -> str:
    return " " if character.isspace() else character.encode("unicode_escape", "surrogatepass").decode()
