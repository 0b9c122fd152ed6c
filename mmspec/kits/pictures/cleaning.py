"""Captions as T5 reads them in published models of pictures: without what captions from the web have beside words.

The rules are those of DeepFloyd IF's training, and after it of PixArt's and LlamaGen's. Of the library ftfy, which the
published code calls, they have composed characters (NFC) alone: broken encodings, ligatures and wide letters stay.
"""

import html
import re
from html.parser import HTMLParser
from unicodedata import category, normalize
from urllib.parse import unquote_plus

LINKS = r"\b(?:(?:https?|www):(?:/{1,3}|[a-z0-9%])|[a-z0-9.-]+\.(?:com?|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@))"
DASHES = "".join(filter(lambda sign: category(sign) == "Pd", map(chr, range(2**16))))
ENDING = "(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)"
SIGNS = (
    (r"@\w+\b|[\u31c0-\u9fff]+", ""),  # names of users; Chinese characters
    (f"[{DASHES}]+", "-"),
    (r"[`\u00b4«»“”¨]", '"'),
    (r"[\u2018\u2019]", "'"),
    (r"&(?:quot;?|amp)", ""),
    (r"(?:\d{1,3}\.){3}\d{1,3}", " "),  # addresses of machines
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),
    (r"#(?:\d{1,3}|\d{5,})\b|\b\d{6,}\b", ""),
    (rf"\S+\.{ENDING}", ""),  # names of files
    (r"['\"]{2,}", '"'),
    (r"\.\.+", " "),
    (r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+", " "),
    (r"\s+\.\s+", " "),
)
"""Patterns, and what stands in their place, in this order."""
WORDS = (
    (r"\b[a-z]{1,3}\d{3,15}\b|\b[a-z]+\d+[a-z]+\b|\b\d+[a-z]+\d+\b", ""),  # numbers of articles
    (r"(?:worldwide\s+)?(?:free\s+)?shipping", ""),
    (r"(?:free\s)?download(?:\sfree)?", ""),
    (r"\bclick\s(?:for|on)\s\w+", ""),
    (rf"\b{ENDING}(?:\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-z]+\d+[a-z]+\d+[a-z\d]*\b", " "),
    (r"\b\d+\.?\d*[x\u0445\u00d7]\d+\.?\d*\b", ""),  # sizes
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
    (r"^['\"](.+)['\"]$", r"\1"),
    (r"^[-'_,:;]", ""),
    (r"[-+'_,:]$", ""),
    (r"^\.\S+$", ""),
)
"""The same, after names that are written like those of files are words."""


def cleaned(caption: str) -> str:
    """A caption as in training: in small letters, without links, file names and marks; "" if nothing is left.

    Example:
        >>> cleaned("A “red” fox -- fox.jpg, https://foxes.com (1920x1080)")
        'a "red" fox -'
    """
    return _once(_once(caption))  # as the authors do: a rule may leave work for one before it


def _once(caption: str) -> str:
    caption = unquote_plus(caption).strip().lower().replace("<person>", "person")
    caption = _replaced(_shown(re.sub(LINKS, "", caption)), SIGNS)
    if len(re.findall("[-_]", caption)) > 3:
        caption = re.sub("[-_]", " ", caption)
    return _replaced(html.unescape(html.unescape(normalize("NFC", caption))).strip(), WORDS).strip()


def _replaced(text: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, instead in rules:
        text = re.sub(pattern, instead, text)
    return text


def _shown(marked_up: str) -> str:
    """The text of HTML."""
    parts = list[str]()
    parser = HTMLParser()
    parser.handle_data = parts.append  # type: ignore[method-assign]
    parser.feed(marked_up)
    parser.close()
    return "".join(parts)
