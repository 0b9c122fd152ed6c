"""Reading a head's files, whatever its kind: config and headers first, then the tensors that a network takes.

A checkpoint is taken whole or refused: a tensor that nothing reads is one of another kind of head, with other drafts.
What published files carry beside a head is listed layout by layout (`leftovers`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from mmspec.hosts.loading import fetched, locate
from mmspec.hosts.weight_files import (
    CONFIG,
    StoredTensor,
    differences,
    file_names,
    read_tensors,
    stored_tensors,
    weight_files,
)
from mmspec.registry.printable import shown
from mmspec.untrusted import read_json
from mmspec_text.drafters.heads.entries import positive
from mmspec_text.drafters.heads.vocabulary import mapped_ids

Network = TypeVar("Network", bound=nn.Module)
MAPS = ("d2t", "t2d")
"""Keys of the map of a pruned vocabulary, the only integers that a head may hold."""
COPIES = ("lm_head.weight", "model.embed_tokens.weight", "input_embed_fn.weight")
"""Ends of the keys of what may be stored beside a head: the target's output layer, and twice its embedding."""
OTHERS = {
    "prefix_gru": "Domino, which the drafter dflash takes",
    "_conv.": "DFlash2, which the drafter dflash takes",
    "candidate_selector": "DFlash2, which the drafter dflash takes",
    "slot_embedding": "LiLiCorr",
    "anchor_out_head": "LiLiCorr",
    "feedforward_layernorm": "layers as Gemma has them",
    "layer_scalar": "layers as Gemma has them",
    "kv_a_proj": "latent attention",
    "kv_b_proj": "latent attention",
    "experts.": "experts",
    "markov_head": "DSpark, which the drafter dflash takes",
    "mask_hidden": "P-EAGLE, which the drafter p-eagle takes",
    "lstm.": "Falcon, which the drafter falcon takes",
    "parallel_draft_heads": "Medusa's heads beside EAGLE's",
}
"""Parts of keys by which kinds of heads are known, for messages."""


Convention = Literal["boundary", "output"]


@dataclass(frozen=True)
class Layout:
    """A layout."""

    name: str
    convention: Convention  # what a layer id names there
    residual: bool = False  # `norm_before_residual` of an EAGLE head whose config does not say


@dataclass(frozen=True)
class HeadCheckpoint:
    """A head with one output layer, perhaps over a part of the target's ids, as it is stored."""

    make: ClassVar[type]  # the class of its network, made of an architecture for a target of so many ids
    name: str  # where it is from, for messages
    layout: Layout
    architecture: Any
    layer_ids: tuple[int, ...]  # the layer ids that its config names, as the layout means them; () where it names none
    weights: Mapping[str, Tensor]  # its tensors, by the names of the network
    ignored: tuple[str, ...]  # its keys that are not used

    def network(self, vocab: int) -> Any:
        """The head for a target of so many ids."""
        a, what, d2t = self.architecture, f"the head {self.name!r}", self.weights.get("d2t")
        if not a.own_output and a.draft_vocab not in (vocab, a.vocab):
            raise ValueError(
                f"{what} scores {a.draft_vocab} ids (draft_vocab_size, vocab_size), and has no lm_head.weight for them"
            )
        if not a.own_output and d2t is not None and bool(d2t.any()):
            raise ValueError(f"{what} has a map of ids (d2t), and no lm_head.weight for them")
        drafted = min(a.draft_vocab, vocab) if d2t is None else a.draft_vocab
        if not a.own_output and a.hidden != a.target_hidden:
            raise ValueError(
                f"{what} has states of {a.hidden} numbers and no lm_head.weight, and the target's output layer reads "
                f"{a.target_hidden}"
            )
        ids = mapped_ids(d2t, self.weights.get("t2d"), drafted, vocab, what)
        with torch.device("meta"):
            network = self.make(a, vocab)
        network = fitted(network, self.weights, what, self.layout.name)
        network.register_buffer("ids", ids, persistent=False)
        return network

    @property
    def length(self) -> int | None:
        """Units for which it was trained; None where it does not say."""
        return None

    @property
    def taken(self) -> tuple[str, ...]:
        """Its keys that are used."""
        return tuple(sorted(self.weights))

    @property
    def shared(self) -> tuple[str, ...]:
        """The parts that are the target's."""
        a = self.architecture
        parts = (("embed_tokens.weight", a.own_embedding), ("lm_head.weight", a.own_output))
        return tuple(key for key, own in parts if not own)


@dataclass(frozen=True)
class Stored:
    """A head's files."""

    what: str  # the head in messages
    kind: str  # the kind of head that it is read as, with its article
    files: tuple[Path, ...]  # the files of weights
    config: Mapping[str, Any]  # the entries of `config.json`.
    keys: tuple[str, ...]  # all keys in the files
    names: Mapping[str, str]  # what keys are called here, but for those that are left over
    headers: Mapping[str, StoredTensor]  # the tensors' headers, by these names

    def matrix(self, key: str) -> tuple[int, int]:
        """Rows and columns of a matrix."""
        shape = self.headers[key].shape if key in self.headers else None
        if shape is None:
            raise ValueError(f"{self.what} has no {key}")
        if len(shape) != 2:
            raise ValueError(f"{self.what}: {key} has the shape {list(shape)}, and is no matrix")
        return shape[0], shape[1]

    def rows(self, *names: str) -> dict[str, int]:
        """The rows of the matrices of these names that there are."""
        return {name: self.headers[f"{name}.weight"].shape[0] for name in names if f"{name}.weight" in self.headers}

    def own_rows(self, given: Mapping[str, Any]) -> dict[str, int]:
        """As `rows`, of the head's embedding and output layer, which the config may say are one."""
        own = self.rows("embed_tokens", "lm_head")
        if given.get("tie_word_embeddings") and "embed_tokens" in own:
            own.setdefault("lm_head", own["embed_tokens"])
        return own

    def without(self, key: str) -> "Stored":
        """The same, where a tensor is left over."""
        names = {old: new for old, new in self.names.items() if new != key}
        return replace(self, names=names, headers={new: self.headers[new] for new in names.values()})

    def target_hidden(self, given: Mapping[str, Any], hidden: int) -> int:
        """Numbers of the target's states: what the config says, or as many as the head's own have."""
        return positive(given, "target_hidden_size", self.what) if given.get("target_hidden_size") else hidden

    def weights(
        self, wanted: Collection[str], copies: Mapping[str, str] | None = None
    ) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """The tensors of these names, as far as there are any; and the keys in the files that are not used.

        `copies` names tensors that may be stored again, none of them wanted, and of which wanted ones.
        """
        copies = copies or {}
        known_names = {*wanted, *copies}
        unread = [old for old, new in self.names.items() if new not in known_names and not self.headers[new].is_integer]
        if unread:
            known = sorted({kind for part, kind in OTHERS.items() if any(part in key for key in unread)})
            raise ValueError(
                f"{self.what} is not read whole as {self.kind} head, and so not at all: "
                f"{differences(that_nothing_reads=unread)}, as of {' and '.join(known) or 'another kind of head'}"
            )
        taken: dict[str, Tensor] = {}
        for path in self.files:  # a file may hold the whole target, too
            found = read_tensors(path, {key for key, name in self.names.items() if name in wanted})
            taken |= {self.names[key]: value for key, value in found.items()}
        if "lm_head.weight" in wanted and "embed_tokens.weight" in taken:
            taken.setdefault("lm_head.weight", taken["embed_tokens.weight"])
        for key, path in ((key, path) for key, name in self.names.items() if name in copies for path in self.files):
            original = taken.get(copies[self.names[key]])  # if there is none, `fitted` says so
            for copy in read_tensors(path, {key}).values():
                if original is not None and not torch.equal(copy, original):
                    raise ValueError(f"{self.what} has one tensor for all depths, and {shown(key)} is another one")
        return taken, tuple(sorted(key for key in self.keys if self.names.get(key) not in wanted))

    def compare(self, embedding: nn.Module, output: nn.Module) -> None:
        """Compare copies of the target's weights beside the head's with these modules' weights."""
        for key in sorted({*self.keys} - {*self.names}):
            module = next(
                (of for end, of in zip(COPIES, (output, embedding, embedding), strict=True) if key.endswith(end)), None
            )
            weight: Any = None if module is None else module.weight
            if weight is None or weight.is_meta or not weight.is_floating_point():
                continue
            (copy,) = (copy for path in self.files for copy in read_tensors(path, {key}).values())
            theirs, pair = weight.detach().to(copy.device), {copy.dtype, weight.dtype}
            if copy.shape != theirs.shape or not any(torch.equal(copy.to(to), theirs.to(to)) for to in pair):
                raise ValueError(f"{self.what}: {shown(key)} is unlike the target's, which is used in its place")

    def no_layout(self, forms: Mapping[str, Sequence[str]], keys: Collection[str] | None = None) -> ValueError:
        """The error for a checkpoint in no known layout.

        `forms` are the keys by which each layout is known, `keys` the head's as they are called there; by default as
        they are called here.
        """
        keys = self.headers.keys() if keys is None else keys
        lacking = {form: [key for key in named if key not in keys] for form, named in forms.items()}
        nearest, missing = min(lacking.items(), key=lambda item: len(item[1]) / len(forms[item[0]]))
        there = shown(", ".join(sorted(self.keys)[:4])) or "none"
        return ValueError(
            f"{self.what} has no layout of {self.kind} head; {nearest} is the nearest, and {', '.join(missing[:3])} is "
            f"missing. Its keys are {there}, …"
        )


def stored_head(
    name: str,
    kind: str,
    renamed: Callable[[str], str],
    leftovers: Sequence[str] = (),
    stems: Sequence[str] = (),
    integers: Collection[str] = MAPS,
    inside: Sequence[str] = (),
) -> Stored:
    """The headers of a head's files, safetensors or pickles (`weights_only=True`), unquantised.

    `renamed` says what a key is called here. `leftovers` are parts of the keys of what published files carry beside a
    head (constants, copies, the target's), `stems` file names of weights that are looked for before the usual ones, and
    `inside` beginnings of a head's keys where it is stored in one file with its target, whose keys have none.
    """
    what, files = f"the head {name!r}", file_names((*stems, "model"))
    folder = fetched(locate(name, pickles=True), files)
    config = read_json(folder / CONFIG)
    raw = stored_tensors(folder, files)
    if not raw:
        raise ValueError(f"{what} has no weights in {folder}; they are in one of {', '.join(files)}")
    own = [key for key in raw if key.startswith(tuple(inside))] or list(raw)
    names = {key: renamed(key) for key in own if not any(part in key for part in leftovers)}
    first: dict[str, str] = {}
    for old, new in names.items():
        if new in first:
            raise ValueError(f"{what}: {shown(first[new])} and {shown(old)} are the same part ({shown(new)})")
        first[new] = old
    headers = {new: raw[old] for new, old in first.items()}
    for key, dtype in ((key, tensor.dtype) for key, tensor in headers.items() if key not in integers):
        if headers[key].is_integer or dtype.startswith(("F8", "F4")):
            raise ValueError(f"{what} is quantised ({shown(key)} is {dtype}); name its weights in full precision")
    return Stored(what, kind, tuple(weight_files(folder, files)), config, tuple(raw), names, headers)


def keys_of(make: Callable[[Any, int], nn.Module], sizes: Any) -> set[str]:
    """The names of a network's tensors, of which none is made."""
    with torch.device("meta"):
        return {*make(sizes, 1).state_dict()}


def fitted(network: Network, weights: Mapping[str, Tensor], what: str, layout: str) -> Network:
    """A network that was built on the device `meta`, with its weights."""
    expected = {key: tuple(value.shape) for key, value in network.state_dict().items()}
    here = {key: value for key, value in weights.items() if key not in MAPS}
    other = [
        f"{key}: {list(here[key].shape)}, not {list(shape)}"
        for key, shape in expected.items()
        if key in here and tuple(here[key].shape) != shape
    ]
    missing, placeless = expected.keys() - here.keys(), here.keys() - expected.keys()
    if wrong := differences(missing=missing, of_another_shape=other, without_a_place=placeless):
        raise ValueError(f"the weights of {what} (layout {layout}) do not fit: {wrong}")
    network.load_state_dict(here, assign=True)
    return network.eval().requires_grad_(False)
