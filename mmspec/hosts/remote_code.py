"""Code that comes with a model is never run: the one place where transformers' Auto classes read what is not ours.

`trust_remote_code=False` is said with every call; without it transformers asks on the terminal, and takes a `y` that
was meant for something else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import AutoConfig, AutoProcessor, AutoTokenizer

from mmspec.registry.printable import shown


@contextmanager
def refusing_code(what: str) -> Iterator[None]:
    """Say in our words what a library makes of a damaged or dangerous folder; its own recommend to run the code.

    Args:
        what: What is loaded, such as `the model 'x'`.

    Raises:
        ValueError: Whatever was raised, on one line.
    """
    try:
        yield
    except Exception as error:  # what a file can make a library raise is nobody's to list
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"{shown(what)} needs code of its own (auto_map in its configuration), which mmspec never runs; "
                "load a model that transformers itself has a class for"
            ) from None
        kind = "" if isinstance(error, OSError | ValueError | RuntimeError) else f"{type(error).__name__}: "
        raise ValueError(f"{shown(what)} cannot be loaded: {kind}{shown(error)}") from error


def config_of(place: str) -> Any:
    """The config of a model: a folder's, or that of a hub name.

    Raises:
        ValueError: There is none that transformers can read without running code.
    """
    with refusing_code(f"the config of {place!r}"):
        return AutoConfig.from_pretrained(place, trust_remote_code=False)


def tokenizer_of(place: str) -> Any:
    """The tokenizer of a model; as in `config_of`.

    Raises:
        ValueError: There is none that transformers can read without running code.
    """
    with refusing_code(f"the tokenizer of {place!r}"):
        return AutoTokenizer.from_pretrained(place, trust_remote_code=False)


def processor_of(place: str) -> Any:
    """The processor of a model; as in `config_of`.

    Raises:
        ValueError: There is none that transformers can read without running code.
    """
    with refusing_code(f"the processor of {place!r}"):
        return AutoProcessor.from_pretrained(place, trust_remote_code=False)
