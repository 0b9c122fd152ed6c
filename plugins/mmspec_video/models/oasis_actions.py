"""Actions of open-oasis: vectors of 25 numbers, in files and by the names of keys.

A number is 1 where a key is held, else 0; the two of the camera are its turn within a frame, from -1 to 1: how far down
(`cameraX`) and how far to the right (`cameraY`).
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from mmspec.hosts.pickles import read_saved
from mmspec.registry.printable import shown
from mmspec.registry.suggest import unknown

KEYS = (
    *("inventory", "ESC", *(f"hotbar.{number}" for number in range(1, 10)), "forward", "back", "left", "right"),
    *("cameraX", "cameraY", "jump", "sneak", "sprint", "swapHands", "attack", "use", "pickItem", "drop"),
)
TURN = 0.25  # the camera's turn of a preset
PRESETS: dict[str, Mapping[str, float]] = {
    "stay": {},
    **{key: {key: 1.0} for key in ("forward", "back", "left", "right", "jump", "sneak", "attack", "use")},
    "sprint": {"forward": 1.0, "sprint": 1.0},
    "forward+jump": {"forward": 1.0, "jump": 1.0},
    "look up": {"cameraX": -TURN},
    "look down": {"cameraX": TURN},
    "look left": {"cameraY": -TURN},
    "look right": {"cameraY": TURN},
}
"""Names of actions to what is held or turned."""


def vector_of(name: str) -> list[float]:
    """The vector of a preset."""
    if name not in PRESETS:
        raise ValueError(unknown("preset of an action", name, PRESETS) + "; or give action_vectors=, one an action")
    return [PRESETS[name].get(key, 0.0) for key in KEYS]


def name_of(vector: Tensor) -> str:
    """A vector in words, such as `forward cameraY -0.25`."""
    held = zip(KEYS, vector.tolist(), strict=False)
    return " ".join(key if value == 1 else f"{key} {value:g}" for key, value in held if value) or "stay"


def read_actions(file: Path) -> Tensor:
    """The actions `[n, 25]` of a file, such as `sample_actions_0.one_hot_actions.pt`; each leads to the next frame."""
    if not file.is_file():
        raise ValueError(f"there is no file {shown(file)}")
    try:
        actions = read_saved(file)
    except ValueError as error:
        raise ValueError(f"{shown(file)}: {error}; actions are in files called *.one_hot_actions.pt") from None
    if not isinstance(actions, Tensor) or actions.dim() != 2:
        what = list(actions.shape) if isinstance(actions, Tensor) else f"a {type(actions).__name__}"
        raise ValueError(f"{shown(file)} holds {what}; a file of actions is a tensor [frame, {len(KEYS)}]")
    return actions


def numbered(actions: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors `[…, width]` as numbers `[…]` in a table `[action, width]`, and the table with those that are new;
    refuses numbers outside of [-1, 1].
    """
    width = table.shape[1]
    if actions.dim() < 2 or actions.shape[-1] != width or not actions.numel():
        raise ValueError(f"an action of this model has {width} numbers, [frame, {width}], not {list(actions.shape)}")
    if not bool((actions.abs() <= 1).all()):  # NaN is not
        raise ValueError("the numbers of an action are from -1 to 1: keys that are held, and the camera's turn")
    rows, numbers = table.tolist(), list[int]()
    known = {tuple(vector): number for number, vector in enumerate(rows)}
    for vector in actions.to(table).flatten(0, -2).tolist():
        if tuple(vector) not in known:
            known[tuple(vector)] = len(rows)
            rows.append(vector)
        numbers.append(known[tuple(vector)])
    return torch.tensor(numbers).unflatten(0, actions.shape[:-1]), torch.tensor(rows)
