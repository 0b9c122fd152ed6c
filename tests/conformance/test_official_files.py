"""Every loader of a published file, given files that are none: one line that names the file, and no code runs."""

import json
import os
import pickle
import struct
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.testing.parity import read
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_video.models.oasis import OasisDiT
from mmspec_video.models.oasis_vae import OasisVAE
from tests.support.published_vq import published

TESTS = Path(__file__).parents[1]
State = dict[str, Tensor]


def llamagen() -> tuple[State, Callable]:
    model = LlamaGenTransformer(24, 4, dim=16, n_layer=2, n_head=2, multiple_of=16, num_classes=5)
    return model.state_dict(), lambda file: LlamaGenTransformer.from_official(file, grid=4, n_head=2)


def vq() -> tuple[State, Callable]:
    sizes: dict[str, Any] = dict(ch=32, encoder_ch_mult=(1, 1), decoder_ch_mult=(1, 1), z_channels=32, num_res_blocks=1)
    state = published(LlamaGenVQ(24, **sizes).state_dict())
    return state, lambda file: LlamaGenVQ.from_official(file, codebook_size=24, **sizes)


def oasis(stem: str, kind: Any) -> tuple[State, Callable]:
    state, _, config = read(TESTS / f"video/parity/{stem}.safetensors")
    return state, lambda file: kind.from_official(file, **config)


LOADERS: dict[str, Callable[[], tuple[State, Callable]]] = {
    "llamagen": llamagen,
    "vq": vq,
    "oasis": lambda: oasis("oasis_dit", OasisDiT),
    "oasis-vae": lambda: oasis("oasis_vae", OasisVAE),
}


class Trap:
    """Runs code when it is unpickled."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.place,)


def saved(change: Callable[[State], Any]) -> Callable[[Path, State], Path]:
    """`torch.save` of what a state becomes."""

    def write(folder: Path, state: State) -> Path:
        torch.save(change({key: value.clone() for key, value in state.items()}), folder / "bad.pt")
        return folder / "bad.pt"

    return write


def of_bytes(change: Callable[[bytes], bytes], name: str = "bad.pt") -> Callable[[Path, State], Path]:
    """The result of reading the bytes of a good file of that name."""

    def write(folder: Path, state: State) -> Path:
        file = folder / name
        if file.suffix == ".safetensors":
            save_file({key: value.contiguous() for key, value in state.items()}, file)
        else:
            torch.save(state, file)
        file.write_bytes(change(file.read_bytes()))
        return file

    return write


def first(change: Callable[[Tensor], Any], place: int = 0) -> Callable[[Path, State], Path]:
    return saved(lambda state: {**state, list(state)[place]: change(state[list(state)[place]])})


def trapped(folder: Path, state: State) -> Path:
    torch.save({"model": state, "args": Trap(str(folder / "sprung"))}, folder / "bad.pt")
    return folder / "bad.pt"


def plain_pickle(folder: Path, state: State) -> Path:
    (folder / "bad.pt").write_bytes(pickle.dumps(Trap(str(folder / "sprung")), protocol=2))
    return folder / "bad.pt"


def header(text: bytes, length: int | None = None) -> Callable[[bytes], bytes]:
    return lambda data: struct.pack("<Q", len(text) if length is None else length) + text


BAD: dict[str, Callable[[Path, State], Path]] = {
    "empty": of_bytes(lambda data: b""),
    "half": of_bytes(lambda data: data[: len(data) // 2]),
    "cut off": of_bytes(lambda data: data[:-9]),
    "text": of_bytes(lambda data: b"these are no weights\n"),
    "an error page": of_bytes(lambda data: b"<!DOCTYPE html><html>404</html>"),
    "zeros": of_bytes(lambda data: bytes(1000)),
    "a zip of something else": of_bytes(lambda data: b"PK\x05\x06" + bytes(18)),
    "zip garbage": of_bytes(lambda data: b"PK\x03\x04" + data[40:900]),
    "damaged inside": of_bytes(lambda data: data[:80] + bytes(100) + data[180:]),
    "code": trapped,
    "a plain pickle of code": plain_pickle,
    "a whole module": saved(lambda state: torch.nn.Linear(2, 2)),
    "a list": saved(lambda state: list(state.values())),
    "a tensor": saved(lambda state: next(iter(state.values()))),
    "nothing": saved(lambda state: None),
    "no weights": saved(lambda state: {"epoch": 3, "\x1b[2J\n": "x"}),
    "a list in a wrapper": saved(lambda state: {"model": list(state.values())}),
    "another wrapper": saved(lambda state: {"ema_of_someone": state}),
    "wrapped in a list": saved(lambda state: {"state_dict": [state]}),
    "numbers for names": saved(lambda state: dict(enumerate(state.values()))),
    "twice": saved(lambda state: {**state, f"module.{next(iter(state))}": next(iter(state.values()))}),
    "a key more": saved(lambda state: {**state, "\x1b[2Jodd\n.weight": torch.zeros(2)}),
    "no first key": saved(lambda state: dict(list(state.items())[1:])),
    "no last key": saved(lambda state: dict(list(state.items())[:-1])),
    "half of the keys": saved(lambda state: dict(list(state.items())[::2])),
    "one key": saved(lambda state: dict(list(state.items())[:1])),
    "a dimension more": saved(lambda state: {key: value[None] for key, value in state.items()}),
    "scalars": saved(lambda state: {key: value.flatten()[0] for key, value in state.items()}),
    "nothing in them": saved(lambda state: {key: value[:0] for key, value in state.items()}),
    "a row less": first(lambda weights: weights[:-1].clone(), -1),
    "NaN": first(lambda weights: weights * torch.nan),
    "infinity": first(lambda weights: weights + torch.inf, -1),
    "integers": first(lambda weights: weights.to(torch.int32)),
    "complex": first(lambda weights: weights.to(torch.complex64), -1),
    "sparse": first(lambda weights: weights.to_sparse()),
    "few that are said to be many": first(lambda weights: torch.zeros(1).expand(10**6, 10**6), -1),
    "a block left out": saved(
        lambda state: (
            {key.replace("s.1.", "s.9999999.").replace("n.0.", "n.7."): v for key, v in state.items()}
            | {"odd.weight": torch.zeros(1)}
        )
    ),
    "a folder": lambda folder, state: folder,
    "no file": lambda folder, state: folder / "nowhere.pt",
    "no safetensors file": lambda folder, state: folder / "nowhere.safetensors",
    "safetensors: empty": of_bytes(lambda data: b"", "bad.safetensors"),
    "safetensors: cut off": of_bytes(lambda data: data[:-9], "bad.safetensors"),
    "safetensors: text": of_bytes(lambda data: b"these are no weights\n", "bad.safetensors"),
    "safetensors: a pickle": of_bytes(lambda data: pickle.dumps({}), "bad.safetensors"),
    "safetensors: no JSON": of_bytes(header(b"{\x1b[2J"), "bad.safetensors"),
    "safetensors: a huge header": of_bytes(header(b"{}", 2**62), "bad.safetensors"),
    "safetensors: places beyond the end": of_bytes(
        header(json.dumps({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}).encode()), "bad.safetensors"
    ),
    "safetensors: nothing in it": of_bytes(header(b"{}"), "bad.safetensors"),
    "safetensors by another name": of_bytes(header(b"{}"), "bad.pt"),
}


@pytest.fixture(scope="module", params=LOADERS)
def loader(request: pytest.FixtureRequest) -> tuple[State, Callable]:
    torch.manual_seed(0)
    return LOADERS[request.param]()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_file_is_one_line_that_names_it(bad: str, loader: tuple[State, Callable], tmp_path: Path) -> None:
    state, load = loader
    file = BAD[bad](tmp_path, state)
    with pytest.raises(ValueError) as error:
        load(file)
    assert type(error.value) is ValueError
    said = str(error.value)
    assert said.startswith(f"{file}: ") and said.isprintable() and len(said) < 900
    assert "weights_only" not in said and not (tmp_path / "sprung").exists()


@pytest.mark.filterwarnings("ignore:there is no model_ema")
@pytest.mark.parametrize("kind", ["pt", "safetensors", "wrapped", "half precision"])
def test_a_good_file_loads(kind: str, loader: tuple[State, Callable], tmp_path: Path) -> None:
    state, load = loader
    file = tmp_path / ("good.safetensors" if kind == "safetensors" else "good.pt")
    if kind == "safetensors":
        save_file({key: value.contiguous() for key, value in state.items()}, file)
    else:
        held = {key: value.bfloat16() for key, value in state.items()} if kind == "half precision" else state
        beside = {"args": Namespace(lr=1e-4, steps=[1]), "epoch": 7, "optimizer": {"step": [1]}}
        torch.save({"model": held, **beside} if kind == "wrapped" else held, file)
    assert not load(file).training
