"""Text as Markdown that shows it as it is: a benchmark's JSON, or the facts beside weights, may come from anybody."""

import html
import re

from mmspec.registry.printable import printable

_MARKUP = re.compile(r"[\\`*|\[\]#~]")


def escaped(text: str) -> str:
    r"""One line of Markdown: no tag, comment, link, fence, heading or cell begins in it.

    Example:
        >>> escaped("<!-- a | b -->")
        '&lt;!-- a \\| b --&gt;'
    """
    return _MARKUP.sub(r"\\\g<0>", html.escape(printable(text.strip()), quote=False))
