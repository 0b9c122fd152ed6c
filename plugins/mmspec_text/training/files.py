"""The two files of a trained head, whatever its kind."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor


def write_files(weights: Mapping[str, Tensor], config: Mapping[str, Any], folder: Path) -> None:
    """Write `model.safetensors` and `config.json`.

    Args:
        weights: Tensors by the keys of the layout.
        config: The entries of the config.
        folder: Receives the files; made if missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def half(weights: Tensor) -> Tensor:
    """Weights as they are stored: in float16, on the CPU."""
    return weights.detach().cpu().half().contiguous()
