"""The models and both ways to run a call, as for the text plugin."""

from tests.text.conftest import (  # noqa: F401
    bad,
    good,
    left_as_found,
    make_llama,
    ours,
    prompts,
    spec,
    target,
    theirs,
)
