"""Reading MLP and LSTM speculators.

Keys may be under `speculator.` or not; `n_predict` and `scale_input` are in the config.
`mlp-speculator`, of fms-extras: `{emb,proj,head}.{depth}.weight`, `ln.{depth}.{weight,bias}`, `tie_weights`.
`arctic-lstm`, of Arctic Inference: `projs.{0,1}`, `forget_emb.0`, `cell_ln.0`, `state_ln.0`, `head.0`, `method`.

Tied weights may be stored once or once for each depth. Widths are read from the tensors.
"""

import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from mmspec_text.drafters.heads.pathwise.checkpoint import PathCheckpoint
from mmspec_text.drafters.heads.speculator.network import LstmSpeculator, MlpSpeculator, SpeculatorSizes
from mmspec_text.drafters.heads.stored import Stored, stored_head
from mmspec_text.drafters.heads.values import positive

PREFIX, MOST = "speculator.", 64
"""The beginning of keys; the most units of a path."""
MLP = {"mlp-speculator": ("proj.0.weight", "emb.0.weight", "head.0.weight", "ln.0.weight")}
LSTM = {"arctic-lstm": ("projs.0.weight", "forget_emb.0.weight", "head.0.weight", "cell_ln.0.weight")}
"""Keys by which the kinds are known."""
GATES = re.compile("^(cell|input|output)_emb$")
"""Tables of the other gates, which are that of the gate that forgets."""


def canonical(key: str) -> str:
    """A checkpoint's key as the networks name it."""
    return key.removeprefix(PREFIX)


def read_mlp(name: str) -> PathCheckpoint:
    """Read an MLP speculator.

    Args:
        name: A folder, or a hub name.

    Raises:
        ValueError: There is none, it is damaged, or of another kind.
    """
    stored = stored_head(name, "an MLP speculator", canonical, inside=(PREFIX,))
    if any(key not in stored.headers for key in MLP["mlp-speculator"]):
        raise stored.no_layout(MLP)
    inner, width = stored.matrix("proj.0.weight")
    sizes = _sizes(stored, "emb.0.weight", width, inner, bool(stored.config.get("tie_weights", False)))
    return _checkpoint(name, stored, "mlp-speculator", sizes, MlpSpeculator)


def read_lstm(name: str) -> PathCheckpoint:
    """Read an LSTM speculator.

    Args:
        name: A folder, or a hub name.

    Raises:
        ValueError: There is none, it is damaged, or of another kind.
    """
    stored = stored_head(name, "an LSTM speculator", canonical, inside=(PREFIX,))
    config, what = stored.config, stored.what
    if any(key not in stored.headers for key in LSTM["arctic-lstm"]):
        raise stored.no_layout(LSTM)
    for entry, value in (("method", "sum_lstm"), ("tie_weights", True), ("tie_lstm_embs", True)):
        if config.get(entry, value) != value:
            raise ValueError(f"{what}: {entry} in its config is {config[entry]!r}, and only {value!r} is computed")
    inside, width = stored.matrix("projs.0.weight")
    if inside % 4:
        raise ValueError(f"{what}: projs.0.weight has {inside} rows, which are not four gates")
    sizes = _sizes(stored, "forget_emb.0.weight", width, inside // 4, True)
    return _checkpoint(name, stored, "arctic-lstm", sizes, LstmSpeculator)


def _sizes(stored: Stored, table: str, width: int, inner: int, tied: bool) -> SpeculatorSizes:
    units = positive(stored.config, "n_predict", stored.what)
    if units > MOST:
        raise ValueError(f"{stored.what}: n_predict in its config is {units}, and the most is {MOST}")
    return SpeculatorSizes(
        units=units,
        target_hidden=width,
        hidden=inner,
        vocab=stored.matrix(table)[0],
        draft_vocab=stored.matrix("head.0.weight")[0],
        own_embedding=True,
        inner=inner,
        tied=tied,
        scale_input=bool(stored.config.get("scale_input", False)),
    )


def _checkpoint(
    name: str, stored: Stored, kind: str, sizes: SpeculatorSizes, make: Callable[[Any, int], Any]
) -> PathCheckpoint:
    with torch.device("meta"):
        wanted = make(sizes, 1).state_dict().keys()
    return PathCheckpoint(name, kind, sizes, make, *stored.weights(wanted, _copies(stored.headers, wanted, sizes)))


def _copies(names: Iterable[str], wanted: Collection[str], sizes: SpeculatorSizes) -> dict[str, str]:
    """Tensors of tied parts that are stored for every depth, and of gates that share a table, with their originals."""
    found = {}
    for name in names if sizes.tied else ():
        part, _, rest = name.partition(".")
        depth, _, end = rest.partition(".")
        part = GATES.sub("forget_emb", part)
        last = next((i for i in (1, 0) if f"{part}.{i}.{end}" in wanted), None)
        if name not in wanted and last is not None and depth.isdecimal() and int(depth) < sizes.units:
            found[name] = f"{part}.{min(int(depth), last)}.{end}"
    return found
