"""Drafts from the layers for multi-token prediction that a target's own checkpoint holds, and that it does not load.

Gloeckle et al., arXiv 2404.19737; DeepSeek-V3, arXiv 2412.19437, eq. 21 to 23: a layer beside the target's reads its
last state and the embedding of the next token, and predicts the token behind it (`heads.mtp.family` has the equation,
and the families whose layers are read). A checkpoint must hold the layer's projection, norms and block in the keys of
one of them; embedding and output layer are the target's. A single layer is recycled to any depth.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. Layers of another target are lossless too, and slow: the first call tries them on the prompt and warns.
Knobs: `form` is the shape of the draft; a larger `width` and more `nodes` find more, and every node costs. `keep` and
`corpus` cut the output layer to the ids that are frequent (VocabTrim, 2506.22694).
"""

from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from mmspec.core.hidden import FINAL
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.target import TransformersTarget
from mmspec.kits.text.tree_form import TreeForm
from mmspec.registry.options import option
from mmspec.registry.warn import warn
from mmspec_text.drafters.heads.drafter import GrowingDrafter
from mmspec_text.drafters.heads.features import Features
from mmspec_text.drafters.heads.inside import RowsInside
from mmspec_text.drafters.heads.memory import HeadMemory, begun
from mmspec_text.drafters.heads.mtp.checkpoint import MtpCheckpoint, read_checkpoint
from mmspec_text.drafters.heads.mtp.network import MtpNetwork
from mmspec_text.drafters.heads.trial import LOW, Loaded, trial_ids, try_head
from mmspec_text.drafters.heads.vocabulary import Trimmed, TrimOptions


@dataclass
class Layers:
    """Multi-token layers for a target."""

    network: MtpNetwork  # the layers
    report: Loaded  # what was read, and how it did on the first prompt that was long enough


_known: "WeakKeyDictionary[nn.Module, dict[str, Layers]]" = WeakKeyDictionary()


def layers_of(model_info: ModelInfo, source: str | MtpCheckpoint | None) -> Layers:
    """The multi-token layers for a target, from a folder or the hub, where the target is from (None), or as they were
    read.
    """
    if isinstance(source, MtpCheckpoint):
        return _built(source, model_info)
    name, revision = (source, None) if source else _origin(model_info.model)
    known = _known.setdefault(model_info.model, {})
    if name not in known:
        known[name] = _built(read_checkpoint(name, model_info, revision), model_info)
    return known[name]


def _built(checkpoint: MtpCheckpoint, model_info: ModelInfo) -> Layers:
    shared = ("embed_tokens.weight", "lm_head.weight")
    report = Loaded(checkpoint.name, checkpoint.family.name, checkpoint.taken, shared, checkpoint.ignored)
    return Layers(MtpNetwork(checkpoint, model_info), report)


def _origin(model: Any) -> tuple[str, str | None]:
    """The folder or hub name that a model was loaded from, and the commit."""
    name = model.config.name_or_path
    if not isinstance(name, str) or not name:
        raise ValueError(
            "the target was not loaded from a checkpoint, where its multi-token layers would be; name one, as in "
            "drafter=<folder or hub name>"
        )
    return name, getattr(model.config, "_commit_hash", None)  # transformers sets it where it knows one


@dataclass(frozen=True)
class MtpOptions(TreeForm, TrimOptions):
    """Options of `mtp`."""

    model: Any = field(
        default=None,
        metadata={
            "help": "the checkpoint with the layers: a folder or a hub name; default: the target's",
            "optional": True,
        },
    )
    probe: bool = option(True, "whether the first call tries the layers on its prompt")


class Mtp(GrowingDrafter):
    """Drafts with a target's layers for multi-token prediction."""

    def __init__(self, options: MtpOptions = MtpOptions()) -> None:
        if options.model is not None and not isinstance(options.model, str | MtpCheckpoint):
            raise TypeError(f"the checkpoint is a folder or a hub name, not {type(options.model).__name__}")
        super().__init__(options)
        self._layers: Layers | None = None
        self._model: Any = None
        self._trimmed: Trimmed | None = None

    @property
    def loaded(self) -> Loaded | None:
        """A report of what was read and how it did on the first long prompt; None before a target is bound."""
        return None if self._layers is None else self._layers.report

    def wrap(self, target: Target) -> Target:
        """The target, with the states that the layers read: those behind its final norm."""
        if not isinstance(target, TransformersTarget):
            raise ValueError(
                f"multi-token layers draft for a model of transformers, and not for {type(target).__name__}"
            )
        return target.with_hidden((FINAL,))

    def bind(self, target: Target) -> None:
        assert isinstance(target, TransformersTarget) and target.vocab is not None
        if self.shape.widest > target.vocab:
            raise ValueError(f"{self.shape} wants {self.shape.widest} siblings, and there are {target.vocab} ids")
        self._target = target
        if target.model is not self._model:  # a decoder may be put together anew for the same model
            self._layers, self._model = layers_of(target.model_info, self.options.model), target.model
            kept = self.options.kept(target)
            self._trimmed = None if kept is None else Trimmed(kept)

    def start(self, state: State, inputs: Any) -> HeadMemory:
        assert self._layers is not None
        network = self._layers.network
        network.trimmed = self._trimmed  # others may draft with the same layers
        network.join_model(self._target.model_info)  # which may have been moved or cast since the last call
        if self.options.probe and self._layers.report.trial is None and (ids := trial_ids(state, inputs)) is not None:
            self._try(ids, self._layers)
        return begun(network, state, self.shape.fed(state.budget.k))

    def inside(self, k: int, state: State) -> RowsInside:
        assert self._layers is not None
        kept = None if self._trimmed is None else tuple(self._trimmed.ids.tolist())
        return RowsInside(self._layers.network, self.shape, k, state, kept)

    def _try(self, ids: Tensor, layers: Layers) -> None:
        trial = try_head(layers.network, self._target, Features({"boundary": (FINAL,)}), ids)
        layers.report = replace(layers.report, trial=trial)
        best = trial.right[trial.chosen]
        if best < LOW:
            warn(
                f"the multi-token layers of {layers.report.name!r} guess {best:.0%} of this prompt ({trial.units} "
                "tokens) as the target continues it. They may be of another checkpoint, or the target may have been "
                "trained further without them"
            )
