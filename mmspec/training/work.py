"""Folders that training keeps its work in: one run at a time, one recipe, and what is damaged is named.

A folder holds `recipe.json`, what its contents were made with. Whoever comes with another recipe is refused: a stage
that went on from them, or that was skipped because of them, would be neither recipe's. A run holds a lock on its folder
while it lasts; the system lets go of it however the run ends.
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.files import remove_sides, save_text, save_whole

RECIPE, LOCK = "recipe.json", ".lock"


@contextmanager
def claimed(folder: Path, recipe: Mapping[str, Any]) -> Iterator[None]:
    """Inside of the block the folder is this run's.

    Args:
        folder: Made if missing.
        recipe: Whatever decides what is made there, by name; written beside it.

    Raises:
        ValueError: Another run holds the folder, or it holds work of another recipe; says what differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        remove_sides(folder)
        _agree(folder, json.loads(json.dumps(recipe)))
        yield


def save_tensors(path: Path, value: Any) -> None:
    """`torch.save`, whole or not at all; from memory, so that a full disk is an `OSError` and nothing stranger."""
    held = io.BytesIO()
    torch.save(value, held)
    save_whole(path, lambda side: side.write_bytes(held.getbuffer()))


def load_tensors(path: Path) -> Any:
    """What `save_tensors` wrote.

    Raises:
        ValueError: The file is damaged; says which one to delete.
    """
    with damaged(path):
        return torch.load(path, map_location="cpu", weights_only=True)


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    """Whatever goes wrong inside of the block, but for memory and the disk, is the file's fault.

    Raises:
        ValueError: Something did; one line that says which file to delete.
    """
    try:
        yield
    except (OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # unpicklers raise whatever the bytes make them
        what = "empty" if path.is_file() and not path.stat().st_size else "damaged, or of something else"
        raise ValueError(f"{path} is {what}; delete it, and the same command makes it anew") from error


def cached(path: Path, of: Iterable[Tensor], make: Callable[[], Tensor]) -> Tensor:
    """A tensor that takes long to make; made anew where it was made of something else.

    Args:
        path: Where it is kept.
        of: All that it is made of, such as the weights of an encoder and what is encoded.
        make: Makes it.

    Raises:
        ValueError: The file is damaged; says which one to delete.
    """
    now = digest(of)
    if path.is_file():
        kept = load_tensors(path)
        if isinstance(kept, dict) and kept.get("of") == now and isinstance(kept.get("made"), Tensor):
            made: Tensor = kept["made"]
            return made
    made = make()
    save_tensors(path, {"of": now, "made": made})
    return made


def digest(of: Iterable[Tensor | str]) -> str:
    """A few letters that say whether tensors and texts are the same as before."""
    found = hashlib.sha256()
    for one in of:
        if isinstance(one, Tensor):
            found.update(f"{one.dtype} {list(one.shape)}".encode())
            found.update(one.detach().cpu().flatten().view(torch.uint8).numpy().data)
        else:
            found.update(f"{len(one)} {one}".encode())
    return found.hexdigest()[:16]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    import fcntl

    with open(folder / LOCK, "a+") as lock:  # it stays: a lock on a file that was removed excludes nobody
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            who = lock.read().strip() or "another"
            raise ValueError(f"process {who} is at work in {folder}; wait for it, or take another folder") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _agree(folder: Path, recipe: dict[str, Any]) -> None:
    """Write the recipe down where nothing is; refuse another one, and work that says nothing of its own."""
    file = folder / RECIPE
    if not file.is_file():
        if any(folder.glob("*.pt")):
            raise ValueError(f"{folder} holds work without a {RECIPE}; delete it, or take another folder")
        save_text(file, json.dumps(recipe, indent=1) + "\n")
        return
    with damaged(file):
        held = dict(json.loads(file.read_text(encoding="utf-8")))
    other = [name for name in {**held, **recipe} if held.get(name) != recipe.get(name)]
    if other:
        differs = ", ".join(f"{name} {held.get(name)} there, {recipe.get(name)} here" for name in other)
        raise ValueError(f"{folder} holds work of another recipe ({differs}); delete it, or take another folder")
