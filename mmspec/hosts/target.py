"""A decoder-only model of transformers as a target: prefill, tree pass, commit.

It takes any decoder with key-value attention, and recurrent layers for which a plugin brings tree operations. The
attention pattern of a model comes from transformers' masks, and the self-check finds out on first use whether a tree
goes through the model exactly.
"""

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from mmspec.core.hidden import Lent
from mmspec.core.live import bucket
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts import prefill
from mmspec.hosts.buffer_cache import BufferCache, captured_shape
from mmspec.hosts.call_prefill import CallPrefill
from mmspec.hosts.conditioned import Condition, begun_behind
from mmspec.hosts.devices import device_of, half_on_gpu, hooks_of, tensor_parallel_group
from mmspec.hosts.experts import one_by_one
from mmspec.hosts.export import exported
from mmspec.hosts.features import Reading, checked_boundaries
from mmspec.hosts.linear import renew
from mmspec.hosts.memory import Memory
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.offers import ATTENTION, RECURRENT
from mmspec.hosts.passes import warned_of_limits
from mmspec.hosts.self_check import checked
from mmspec.hosts.stock_generate import StockGenerate
from mmspec.hosts.target_cache import TransformersTargetCache
from mmspec.hosts.train_mode import refuse_training
from mmspec.hosts.tree_op import TreeOp

Resume = Callable[[TransformersTargetCache, Draft], TargetOutput | None]
"""The scores of a rooted draft from what drafting passes have left of it; None: all layers have to run."""


class TransformersTarget:
    """A decoder-only model of transformers, which is unchanged outside of passes; refuses one with which drafts cannot
    be verified.

    With `drafting`, the model drafts in another target's calls: it then reads the part of the prompt that it can, and
    does not fill the cache that came with the call. `ops` are the tree operations of recurrent layers, by the names of
    the functions that they replace. `model_info` has the facts about the model, where they are not those that its
    config says.
    """

    offers = ATTENTION
    boundaries: tuple[int, ...] = ()  # of layers, whose states outputs carry (`with_hidden`)
    condition: Condition | None = None  # units inside of every prompt (`with_condition`)
    memory: Memory | None = None  # a limit for the bytes of a call's cache (`with_memory`)
    resume: Resume | None = None  # verifies from what a drafter left in the cache (`with_resume`)
    known = False  # whether a call that runs has found the model as it is
    keep_all = False  # whether layers with a window keep all units of a call, and not the latest ones in a ring

    def __init__(
        self,
        model: PreTrainedModel,
        drafting: bool = False,
        ops: Mapping[str, TreeOp] | None = None,
        model_info: ModelInfo | None = None,
    ) -> None:
        self.model_info = ModelInfo.of(model, ops) if model_info is None else model_info
        self.group = tensor_parallel_group(self.model_info.model)
        self.drafting = drafting
        if self.model_info.ops:  # a state that took a unit in cannot forget it
            self.offers = RECURRENT
        self.vocab: int | None = self.model_info.vocab
        self._bound_ids = self.model_info.config.vocab_size  # drafters, rules and heads are bound to it, too
        ends = (self.model_info.context, self.model_info.reach if drafting else None)
        self.context: int | None = min((end for end in ends if end is not None), default=None)
        self.passes = checked(self.model_info)
        self.reading = Reading(self.model_info, ())

    @property
    def model(self) -> Any:
        return self.model_info.model

    def layers(self) -> int:
        return len(self.model_info.language.layers)

    @property
    def hidden_size(self) -> int:
        return int(self.model_info.config.hidden_size)

    def with_hidden(self, boundaries: Sequence[int]) -> "TransformersTarget":
        other = copy.copy(self)
        other.boundaries = checked_boundaries(self.model_info, boundaries)
        other.reading = Reading(self.model_info, other.boundaries)
        return other

    def with_condition(self, condition: Condition | None) -> "TransformersTarget":
        """This target behind a condition, which takes the place of the one that it has; None: behind none."""
        other = copy.copy(self)
        before = 0 if self.condition is None else len(self.condition)
        other.condition = None if condition is None or not len(condition) else condition.checked(self.vocab)
        if self.context is not None:
            other.context = self.context + before - (0 if other.condition is None else len(other.condition))
        return other

    def with_memory(self, memory: Memory) -> "TransformersTarget":
        """This target with a limit for the bytes of a call's cache, which is then allocated at once; refuses a model
        with states, whose copies no limit counts.
        """
        if self.model_info.ops:
            raise ValueError(f"a memory budget counts keys; {type(self.model).__name__} keeps recurrent states")
        other = copy.copy(self)
        other.memory = memory
        return other

    def with_resume(self, resume: Resume) -> "TransformersTarget":
        """This target, whose passes over whole drafts are asked of `resume` first."""
        other = copy.copy(self)
        other.resume = resume
        return other

    def lend(self) -> Lent:
        model = self.model
        return Lent(model.get_input_embeddings(), model.get_output_embeddings(), device_of(model), model.dtype)

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        """Prefill a prompt, for `limit` new units per row and drafts of `width` nodes, root included.

        Inputs are ids `[batch, prompt]`, padded on the left, or a mapping of arguments of the model's forward. Besides
        `input_ids` and `attention_mask` it may hold `inputs_embeds`, `position_ids`, `past_key_values` of an earlier
        turn, `pixel_values` and other inputs of vision models; the model's own prefill reads these. A mapping under
        `null_inputs` with ids and mask is what guidance leads away from, behind a prompt of ids. Refuses a prompt that
        does not fit, or cannot be continued exactly.
        """
        return self._begin(inputs, limit, width)

    def start_fixed(self, inputs: Any, limit: int, width: int) -> Prefill:
        prefill = self._begin(inputs, limit, width, fixed=True)
        limited = warned_of_limits(prefill.cache.passes, prefill.cache.slots, len(prefill.prompt) * width)
        ours = prefill.cache.passes.manner == "interface"  # only our attention sums in float64
        return replace(prefill, keeps_shape=not limited, keeps_trees=ours)

    @property
    def prefers_one_shape(self) -> bool:
        return half_on_gpu(self.model)

    def _begin(self, inputs: Any, limit: int, width: int, fixed: bool = False) -> Prefill:
        """`start`, with a cache whose passes have one shape if `fixed`."""
        if self.condition is not None:
            bare = self.with_condition(None)
            begin = partial(bare._begin, limit=limit, width=width, fixed=fixed)
            return begun_behind(self.condition, self.model_info.vocab, inputs, begin)
        role = "draft model" if self.drafting else "model"
        if not self.known:
            refuse_training(self.model, role)
            self._refuse_resized(role)
        ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
        passes = checked(self.model_info, rows=None if ids is None else len(ids))
        if not self.known:
            renew(passes.kernels)
        prefill = CallPrefill(self, passes, limit, width, fixed)(inputs)
        return replace(prefill, rounding=passes.quantised.warning, products=passes.kernels.named(fixed))

    def _refuse_resized(self, role: str) -> None:
        ids = self.model_info.config.vocab_size
        if ids != self._bound_ids:
            raise ValueError(
                f"the {role} has {ids} token ids now (resize_token_embeddings), and its decoder was made for "
                f"{self._bound_ids}: enable it again, mmspec.enable(model, …), or as a pipeline, pipe.use(…)"
            )

    def verify(self, cache: TransformersTargetCache, draft: Draft, first: int = 0) -> TargetOutput:
        slots = cache.slots
        assert draft.index.nodes <= slots.most_nodes, "a draft is wider than the call was begun for"
        if self.resume is not None and not first and (resumed := self.resume(cache, draft)) is not None:
            return resumed
        nodes = draft.nodes - (0 if slots.recurrent else first)
        # Inference mode is a tenth faster; quantised weights that move between devices do not know it.
        with torch.no_grad() if hooks_of(self.model) else torch.inference_mode(), self.ready(cache, nodes):
            return self.forward(cache, draft, first)

    @contextmanager
    def ready(self, cache: TransformersTargetCache, nodes: int) -> Iterator[None]:
        units = len(cache.slots.length) * nodes
        with cache.passes.ready(cache.slots, units, decoding=True), self.reading.listening():
            yield

    def forward(self, cache: TransformersTargetCache, draft: Draft, first: int = 0) -> TargetOutput:
        slots, guidance = cache.slots, cache.guidance
        if first and slots.recurrent:  # recurrent layers keep no state per node, so that all nodes run again
            whole = self.forward(cache, draft)
            return whole.take(torch.arange(first, draft.nodes, device=draft.units.device)[None])
        slots.scratch = not draft.index.is_chain
        valid = None if draft.index.nodes == 1 else guidance.physical(draft.valid[:, first:])
        units, index = guidance.physical(draft.units[:, first:]), guidance.index(draft.index)
        with self.reading.recording() as record:
            given, null = guidance.apart(cache.passes.run(slots, units, index, first, valid))
        hidden = record.states
        return TargetOutput(logits=given, null=null, hidden=None if hidden is None else hidden[: guidance.rows])

    def commit(self, cache: TransformersTargetCache, path: Tensor, count: Tensor) -> None:
        cache.guidance.commit(path, count)

    def capture_key(self, cache: TransformersTargetCache) -> Hashable:
        return captured_shape(self.model, cache.slots, bucket(cache.slots.most)), self.boundaries, cache.guided

    def held(self, cache: TransformersTargetCache, nodes: int) -> TransformersTargetCache:
        if looping := one_by_one(self.model):
            raise ValueError(f"{looping} runs one chosen expert after another, so that a pass has no fixed shape")
        if any(map(hooks_of, self.model.modules())):
            raise ValueError("the weights of the model move between devices, and what moves them cannot be traced")
        if cache.passes.rows is not None:
            raise ValueError("the model has hooks for the rows of this call alone, which would be traced in every call")
        if self.group is not None:
            raise ValueError("the model runs on several ranks, whose collectives are not captured")
        if self.memory is not None:
            raise ValueError("captured rounds keep a cache of their own, which a memory budget would have to count")
        most = bucket(cache.slots.most)
        slots = BufferCache.of_passes(cache.passes, self.model_info.layers(), cache.slots, most)
        return replace(cache, slots=slots, given=None, behind=0)

    def expect(self, cache: TransformersTargetCache, index: TreeIndex) -> None:
        assert isinstance(cache.slots, BufferCache)
        cache.slots.expect(index)

    def synced(self, cache: TransformersTargetCache, emitted: Sequence[int]) -> None:
        cache.guidance.synced(emitted)

    def to_share(self) -> "TransformersTarget":
        if self.group is not None or self.resume is not None or self.memory is not None:
            raise ValueError(
                "a model on several ranks, a drafter inside of the model and a memory budget are of one call"
            )
        other = copy.copy(self)
        other.keep_all = True  # rings of calls have lengths of their own
        return other

    def beside(self) -> "TransformersTarget":
        other = copy.copy(self)
        other.known = True
        return other

    def size(self, inputs: Any) -> tuple[int, int]:
        ids = inputs["input_ids"] if isinstance(inputs, Mapping) else inputs
        return len(ids), ids.numel()

    def kind(self, cache: TransformersTargetCache) -> Hashable:
        slots = cache.slots
        special = slots.holes is not None or slots.places is not None or slots.fixed or cache.passes.rows is not None
        theirs = getattr(cache.given, "_is_user_defined", False)  # transformers sets it on users' caches only
        return ("guided" if cache.guided else "plain") if cache.plain and not theirs and not special else None

    @torch.no_grad()
    def joined(self, caches: Sequence[TransformersTargetCache]) -> TransformersTargetCache:
        first, *others = caches
        cache = first.guidance.joined([other.guidance for other in others])
        return replace(first, prompts=cache.given if first.guided else None)

    @torch.no_grad()
    def taken(self, cache: TransformersTargetCache, rows: Sequence[int]) -> TransformersTargetCache:
        left = cache.guidance.taken(rows)
        return replace(cache, prompts=left.given if cache.guided else None)

    def truncate(self, cache: TransformersTargetCache, length: Tensor) -> None:
        if cache.slots.recurrent:
            raise NotImplementedError("a recurrent layer keeps its last state only; it cannot go back")
        length = length + (0 if self.condition is None else len(self.condition))
        guidance = cache.guidance  # of both halves, the units behind the prompts are the same
        cache.slots.roll_back(guidance.physical(length - guidance.given[: guidance.rows]) + guidance.given)

    def takes_null(self, inputs: Mapping[str, Any], null: Mapping[str, Any]) -> bool:
        padded = not bool(null["attention_mask"].all())
        if self.model_info.position_table and padded:
            return False  # stock guidance counts padding of the unconditional prompt as positions
        mask = inputs.get("attention_mask")
        mask = torch.ones_like(inputs["input_ids"]) if mask is None else mask.long()
        own = self.model_info.reads_both_ways  # the model's own prefill reads one prompt a row
        return not own and len(null["input_ids"]) == len(inputs["input_ids"]) and prefill.is_plain(inputs, mask)

    @torch.no_grad()
    def export(self, cache: TransformersTargetCache, sequences: Tensor, emitted: Tensor) -> Cache | None:
        if self.condition is not None:  # a later turn would have other columns than its ids
            return None
        return exported(self.model_info, cache, sequences, emitted)

    def places(self, stock: StockGenerate, inputs: Mapping[str, Any]) -> Tensor | None:
        """The positions of the new units of a call, `[axes, batch, unit]`; None: they go on by one. Refuses others than
        in `stock`, the model's own call behind the prompt.
        """
        return None
