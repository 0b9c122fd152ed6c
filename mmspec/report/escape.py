"""Text escaped for Markdown, since a benchmark's JSON and the facts beside weights are not trusted."""

import html
import re

from mmspec.registry.printable import printable

_MARKUP = re.compile(r"[\\`*|\[\]#~]")


def escaped(text: str) -> str:
    r"""A text as one line of Markdown that shows it literally: it begins no tag, comment, link, fence, heading or cell.

    Example:
        >>> escaped("<!-- a | b -->")
        '&lt;!-- a \\| b --&gt;'
    """
    return _MARKUP.sub(r"\\\g<0>", html.escape(printable(text.strip()), quote=False))
