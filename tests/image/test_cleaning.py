"""Captions are cleaned as LlamaGen's published `T5Embedder` cleaned them when these pairs were written down."""

import pytest

from mmspec.kits.pictures.prompts import cleaned

PAIRS = {
    "A portrait photo of a kangaroo, holding a sign that says Welcome Friends!": (
        "a portrait photo of a kangaroo, holding a sign that says welcome friends!"
    ),
    "  A “red”  fox — it’s one of 3 … in snow.  ": 'a "red" fox - it\'s one of 3 … in snow.',
    "cats,dogs and birds : a map/plan of Naples.it is large": "cats, dogs and birds: a map plan of is large",
    "<b>Bold</b> &amp; <person> holding &quot;x&quot; @someone #12": 'bold person holding "x"',
    "this_is_my-cute-cat (1920x1080) jc6640 page 12 img.jpg": "this is my cute cat",
    "Free shipping worldwide! click for more: https://shop.com/a?b=1 or www.shop.org": "worldwide! : ?b=1 or",
    "100%25 wool+silk 漢字 e\u0301t\u00e9 10.0.0.1 1234567": "100% wool silk été",
    "'a quoted fox'": "a quoted fox",
    "- a fox -": "a fox",
    "https://foxes.com/": "",
    "2 red_foxes - a 4k photo, 35mm": "2 red_foxes - a 4k photo, 35mm",
}


@pytest.mark.parametrize("caption", PAIRS)
def test_captions_are_cleaned_as_published(caption: str) -> None:
    assert cleaned(caption) == PAIRS[caption]
