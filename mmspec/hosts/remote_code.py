"""Configs, tokenizers and processors of models, read without running code that comes with a model.

`trust_remote_code=False` is passed in every call; without it transformers asks on the terminal.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import AutoConfig, AutoProcessor, AutoTokenizer

from mmspec.registry.printable import shown


@contextmanager
def refusing_code(what: str) -> Iterator[None]:
    """Turn any error of a library that loads `what` (such as `the model 'x'`) into a `ValueError` on one line; the
    library's may advise to run the code.
    """
    try:
        yield
    except Exception as error:  # a damaged file can make a library raise anything
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"{shown(what)} needs code of its own (auto_map in its configuration), which mmspec never runs; "
                "load a model that transformers itself has a class for"
            ) from None
        kind = "" if isinstance(error, OSError | ValueError | RuntimeError) else f"{type(error).__name__}: "
        raise ValueError(f"{shown(what)} cannot be loaded: {kind}{shown(error)}") from error


def read_auto(kind: type[AutoConfig] | type[AutoTokenizer] | type[AutoProcessor], place: str) -> Any:
    """The config, tokenizer or processor of a model in a folder or on the hub."""
    with refusing_code(f"the {kind.__name__.removeprefix('Auto').lower()} of {place!r}"):
        return kind.from_pretrained(place, trust_remote_code=False)
