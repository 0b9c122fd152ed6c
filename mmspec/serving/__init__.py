"""`mmspec serve`: the OpenAI endpoint of `transformers serve`, with models that speculate. Importing it loads nothing.

The routes, the handlers and the queue of a model are transformers'. What is here is what they lack: the model with its
decoder, a seed of every request's own, limits, errors that say what was wrong, and an end to requests whose client has
gone.
"""

from collections.abc import Iterable
from importlib.util import find_spec


def refuse_missing(command: str, needed: Iterable[str], extra: str) -> None:
    """Refuse to go on without the packages of an extra."""
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise ValueError(f"{command} needs {', '.join(missing)}: pip install 'mmspec[{extra}]'")
