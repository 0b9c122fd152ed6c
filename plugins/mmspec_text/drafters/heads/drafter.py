"""The common part of drafters with a trained head: rounds, options, the fit of head and target, a trial on a prompt."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.core.drafters.growing import grown
from mmspec.core.hidden import FINAL, Lends
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.hosts.linear import Kernels, kernels, narrow, renew
from mmspec.hosts.target import TransformersTarget
from mmspec.kits.text.tree_form import TreeForm
from mmspec.registry.options import option
from mmspec.registry.warn import warn
from mmspec_text.drafters.heads.features import Features
from mmspec_text.drafters.heads.trial import Loaded, Trial, report, trial_ids, try_head
from mmspec_text.drafters.heads.vocabulary import Trimmed, TrimOptions


class GrowingDrafter:
    """A drafter that grows drafts level by level from features of the target; the form is an option.

    The memory of a call says how a draft begins (`opened`), and takes what a round emitted (`observe`). A drafter that
    has `inside`, too, drafts inside of captured rounds.
    """

    everywhere = True

    def __init__(self, options: TreeForm) -> None:
        self.options: Any = options
        self.shape, self.advice = options.build_shape(), options.advice
        self.offers, self.needs = self.shape.offers, self.shape.needs | {"hidden", "discrete"}

    def width(self, k: int) -> int:
        return self.shape.width(self.depth(k))

    def depth(self, k: int) -> int:
        """The depth of a draft of budget `k`."""
        return k

    @torch.no_grad()
    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        depth = self.depth(k)
        levels = self.shape.levels(depth)
        if levels < 1:
            return Draft.empty(state.root)
        output, feed = state.memory.opened(state)
        return grown(self.shape, state, depth, levels, noise, output, feed=feed)[0]

    def observe(self, state: State, step: Step) -> None:
        state.memory.observe(state, step)

    def fits_inside(self, state: State) -> bool:
        return True


@dataclass(frozen=True)
class HeadOptions(TreeForm):
    """The head, and the form of its drafts."""

    model: Any = option(None, "the head: a folder or a hub name")
    probe: bool = option(True, "whether the first call tries the head on its prompt")


class HeadDrafter(GrowingDrafter):
    """A drafter with a trained head. A kind of head is a class of these.

    `loaded` says what was read, and how the head did on the first prompt.
    """

    kind: ClassVar[str]  # the method's name, for messages
    read: ClassVar[Any]  # reads a head from a folder or the hub, by its name
    stored: ClassVar[type[Any]]  # the class of its heads
    named_by: str = ""  # the entry of a config that names the target's layers; "" if there is none
    lenders: ClassVar[type] = TransformersTarget  # the targets that it drafts for

    def __init__(self, options: HeadOptions = HeadOptions()) -> None:
        super().__init__(options)
        if options.model is None:
            raise ValueError(f"{self.kind} needs a head: drafter=<folder or hub name>, or the option model=")
        found = self.checkpoint = self.read(options.model) if isinstance(options.model, str) else options.model
        if not isinstance(found, self.stored):
            raise TypeError(f"the head is a folder or a hub name, not {type(found).__name__}")
        layout = found.layout if isinstance(found.layout, str) else found.layout.name
        self.loaded = Loaded(found.name, layout, found.taken, found.shared, found.ignored)
        self._tried: Any = None  # the model of the trial
        self._trial: Trial | None = None

    @property
    def own_length(self) -> int | None:
        """Units for which the head was trained."""
        return self.checkpoint.length

    def wrap(self, target: Target) -> Target:
        """The target, with the hidden states that the head reads."""
        if not isinstance(target, self.lenders):
            others = "" if self.lenders is TransformersTarget else " and LlamaGen"
            raise ValueError(
                f"the head {self.checkpoint.name!r} reads hidden states and embeddings of its target, which "
                f"{type(target).__name__} does not lend; models of transformers{others} do"
            )
        assert isinstance(target, Lends)
        own = self.checkpoint.architecture.target_hidden
        if own != target.hidden_size:
            raise ValueError(
                f"the head {self.checkpoint.name!r} reads states of {own} numbers, and those of the target have "
                f"{target.hidden_size}: it is a head of another target"
            )
        self._features = self._features_of(target)
        return target.with_hidden(self._features.boundaries)

    def bind(self, target: Target) -> None:
        assert isinstance(target, Lends) and target.vocab is not None
        name, a = self.checkpoint.name, self.checkpoint.architecture
        width = target.lend().embedding.weight.shape[-1]
        if not a.own_embedding and width != a.hidden:
            raise ValueError(
                f"the head {name!r} has no embed_tokens.weight, and the target's embeddings have {width} numbers, not "
                f"its {a.hidden}"
            )
        if a.vocab < target.vocab:
            raise ValueError(
                f"the head {name!r} was made for {a.vocab} ids, and the target has {target.vocab}: it is a head of "
                "another target"
            )
        if self.shape.widest > a.draft_vocab:
            raise ValueError(f"{self.shape} wants {self.shape.widest} siblings, and the head scores {a.draft_vocab}")
        self.network = self.checkpoint.network(target.vocab)
        kept = self.options.kept(target) if isinstance(self.options, TrimOptions) else None
        if kept is not None:
            self.network.trimmed = Trimmed(kept, self.network.ids, self.network.lm_head)
        self._target = target
        if target.model is not self._tried:  # a decoder may be put together anew for the same model
            self._tried, self._trial = target.model, None

    def join(self, state: State, inputs: Any) -> None:
        """Let the head go where its target is, and try it on the first prompt that is long enough.

        Positions beyond those of its training bring a warning: drafts are worse there, and the output is the same.
        """
        context, most = self.checkpoint.architecture.context, state.prompt_length + state.limit
        if context is not None and most > context:
            warn(
                f"the head {self.checkpoint.name!r} was trained for texts of {context:,} tokens, and this one may have "
                f"{most:,}: drafts of the last {most - context:,} are worse"
            )
        lent = self._target.lend()  # the model may have been moved or cast since the last call
        self.network.join(lent.embedding, lent.output, lent.device, lent.dtype)
        found = kernels(self.network)
        self._kernels = Kernels() if found.single else found  # in float32 a packed product rounds otherwise
        renew(self._kernels)
        if self.options.probe and self._trial is None and (ids := trial_ids(state, inputs)) is not None:
            self._try(ids)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        with narrow(self._kernels, state.rows):
            return super().propose(state, k, noise)

    def fits_inside(self, state: State) -> bool:
        return not self.network.turns_by_length

    def _try(self, ids: Tensor) -> None:
        assert isinstance(self._target, TransformersTarget), "prompts of pictures hold no units"
        self._trial = try_head(self.network, self._target, self._features, ids)
        self.loaded = replace(self.loaded, trial=self._trial)
        guess = next(iter(self._features.choices))
        report(self._trial, self.checkpoint.name, guess, self.checkpoint.layer_ids, self.named_by)

    def _features_of(self, target: Lends) -> Features:
        """The features that the head reads: by default the state that the target's output layer reads."""
        return Features({"boundary": (FINAL,)})
