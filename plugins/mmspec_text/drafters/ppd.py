"""Drafts by trained prompt tokens inside the target's own pass: parallel prompt decoding.

Chen et al., arXiv 2405.18628. A few embeddings are trained, and nothing else: prompt token i, behind a unit, scores the
unit i + 2 places behind it. A pass carries them behind each of its nodes, so that wherever it stops, the next draft is
there; there is no draft model, and no pass of one. A draft is a product of the prompt tokens' distributions.
A checkpoint is an adapter of PEFT as the authors' code writes it: `prompt_embeddings` `[prompt tokens, hidden]` in
`adapter_model.safetensors`; `adapter_config.json` says how many there are, and which variants were trained. The
authors' decoding takes one embedding for each prompt token, and so does ours; more of them
(`virtual_tokens_per_special_token`) are refused, and so are an output layer of their own, a trained prefix, prompt
tokens that do not see one another, and states that are means of several layers.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. The scores of nodes do not depend on prompt tokens, which no node sees.
In the form `sparse`, the paper's, a node carries as many prompt tokens as pay, and the draft has a tree for the number
of them behind the last accepted node (`mmspec_text.drafters.heads.prompt_trees`); in all others, which are ours, every
node carries all prompt tokens. The first round of a call has no draft; the published code drafts from the prompt's end.
Knobs: `nodes` and `width` as in every tree; a node costs the target 1 + (number of prompt tokens) nodes. Of `sparse`:
`budget` (more are accepted, and each costs), `rates` (measured on the texts at hand they give better trees), and
`step_costs` (measured on the device, they say how much of the budget pays).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from transformers.utils import cached_file

from mmspec.core.drafters.shapes import Shape
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.step_costs import StepCosts
from mmspec.core.types import Draft, Step
from mmspec.hosts.loading import PREFIX
from mmspec.hosts.pickles import PICKLED
from mmspec.hosts.remote_code import refusing_code
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.weight_files import ADAPTER, SAFE, differences, read_tensors, stored_tensors, weight_files
from mmspec.kits.text.tree_form import TreeForm
from mmspec.registry.options import option
from mmspec.registry.printable import shown
from mmspec.shipped import asset
from mmspec.untrusted import read_json
from mmspec_text.drafters.heads.block import Block, Scored, drafted
from mmspec_text.drafters.heads.entries import positive
from mmspec_text.drafters.heads.probes import ProbedTarget, behind_root
from mmspec_text.drafters.heads.prompt_trees import ByState, PromptTrees, best_trees

KEY = "prompt_embeddings"
FILES = tuple(f"adapter_model{end}" for end in (SAFE, PICKLED[0]))
"""File names of an adapter's weights, as PEFT has them."""
VARIANTS: Mapping[str, object] = {
    "virtual_tokens_per_special_token": 1,
    "num_exits": 1,
    "use_custom_lm_head": False,
    "use_prefix_tuning": False,
    "vt_attention_type": "decoder",
}
"""Entries of the config for what is computed here; others are refused."""


@dataclass(frozen=True)
class Prompts:
    """Trained prompt tokens."""

    name: str  # where they are from, for messages
    embeddings: Tensor  # `[prompt token, hidden]`: number i, behind a unit, scores the unit i + 2 places behind it


def read_prompts(name: str) -> Prompts:
    """Read prompt tokens from a folder or the hub."""
    what = f"the prompt tokens {name!r}"
    config, tensors = read_adapter(name, what)
    found = [key for key in tensors if key.split(".")[-1] == KEY]
    if len(found) != 1 or tensors[found[0]].dim() != 2:
        there = ", ".join(sorted(tensors)[:3]) or "none"
        raise ValueError(f"{what} have no matrix {KEY}: it is no adapter of prompt tokens. Its keys are {shown(there)}")
    if wrong := differences(that_nothing_reads={*tensors} - {*found}):
        raise ValueError(f"{what}: not all of it is read: {wrong}; it is an adapter of another kind")
    for entry, value in VARIANTS.items():
        if config.get(entry) not in (None, value):
            given = shown(repr(config[entry]))
            raise ValueError(f"{what} were trained with {entry} = {given}; {value!r} is what is computed")
    count = positive(config, "num_special_tokens", what)
    if len(tensors[found[0]]) != count:
        raise ValueError(f"{what}: num_special_tokens is {count}, and there are {len(tensors[found[0]])} embeddings")
    return Prompts(name, tensors[found[0]])


def read_adapter(name: str, what: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors of an adapter, in a safetensors file or a pickle (`weights_only=True`); none of it is run."""
    folder = _fetched(name, what)
    config = read_json(folder / ADAPTER)
    try:
        (weights,) = weight_files(folder, FILES)
        return config, read_tensors(weights, stored_tensors(folder, FILES).keys())
    except ValueError as error:
        raise ValueError(f"{what} cannot be read: {shown(error)}") from error


def _fetched(name: str, what: str) -> Path:
    folder = asset(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else Path(name)
    if folder.is_dir():
        for files in ((ADAPTER,), FILES):
            if not any((folder / file).is_file() for file in files):
                raise ValueError(f"{what} has no {' and no '.join(files)}: {name!r} is no adapter")
        return folder
    with refusing_code(what):
        try:
            weights = [cached_file(name, file, _raise_exceptions_for_missing_entries=False) for file in FILES]
            if not any(weights):
                raise ValueError(f"there is no {' and no '.join(FILES)}")
            return Path(cached_file(name, ADAPTER)).parent
        except (OSError, ValueError) as error:
            raise ValueError(f"{what} is neither a folder here nor to be had from the hub") from error


RATES = (
    (0.483, 0.143, 0.074, 0.045, 0.031, 0.022, 0.017, 0.013, 0.009, 0.008),
    (0.263, 0.146, 0.081, 0.058, 0.043, 0.032, 0.026, 0.022, 0.019, 0.015),
    (0.164, 0.118, 0.081, 0.058),
)
"""The authors' measurements for Vicuna 7B, as the trees in their repository have it."""


@dataclass(frozen=True)
class PPDOptions(TreeForm):
    """Options of `ppd`."""

    form: Literal["chain", "rerank", "greedy", "heap", "branching", "beam", "sparse"] = option(  # type: ignore[assignment]
        "rerank", "which nodes to draft; rerank, greedy, sparse: rules match and relaxed, the others: any"
    )
    budget: Annotated[int, Field(ge=2, le=512)] = option(
        32, "sparse: candidates and prompt tokens behind them in a pass"
    )
    rates: tuple[tuple[Annotated[float, Field(ge=0, le=1)], ...], ...] = option(
        RATES, "sparse: chance of the unit of each rank, by depth, below an accepted one"
    )
    step_costs: str = option("", "sparse: file of measured rounds, by which less of the budget may be used")
    width: Annotated[int, Field(ge=1, le=64)] = option(
        4, "rerank: nodes expanded per level, and children of each; beam: nodes per level"
    )
    nodes: Annotated[int, Field(ge=1, le=512)] = option(
        8, "rerank: nodes that are verified, each of them with all prompt tokens"
    )
    model: Any = option(None, "the prompt tokens: a folder or a hub name")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rates or any(not level or sum(level) > 1 for level in self.rates):
            raise ValueError(f"rates are chances of siblings, by depth, at most 1 together; got {self.rates}")

    def trees(self, prompts: int) -> PromptTrees | None:
        """The trees of so many prompt tokens; None in forms in which every node carries all of them."""
        if self.form != "sparse":
            return None
        costs = StepCosts.read(Path(self.step_costs)) if self.step_costs else None
        return best_trees(self.rates, prompts, self.budget, costs)


class ProbeDrafter:
    """Drafts what probes of the last pass hold; by default, what prompt tokens scored.

    The memory of a call is what the probes behind the last accepted node hold: the logits of the units behind the root,
    `[batch, prompt token, vocab]`; None before the first pass.
    """

    kind: ClassVar[str] = "ppd"
    called: ClassVar[str] = "prompt tokens"
    stored: ClassVar[Any] = Prompts
    read: ClassVar[Any] = staticmethod(read_prompts)

    def __init__(self, options: Any) -> None:
        if options.model is None:
            raise ValueError(f"{self.kind} needs {self.called}: drafter=<folder or hub name>, or the option model=")
        self.options, self.advice = options, options.advice
        read: Any = self.read(options.model) if isinstance(options.model, str) else options.model
        if not isinstance(read, self.stored):
            raise TypeError(f"the {self.called} are a folder or a hub name, not {type(read).__name__}")
        self.prompts: Any = read
        self.trees = options.trees(len(self.prompts.embeddings))
        self.shape: Shape = options.build_shape() if self.trees is None else ByState(self.trees)
        self.offers, self.needs = self.shape.offers, self.shape.needs | {"discrete", "tree"}

    def wrap(self, target: Target) -> Target:
        """The target, with prompt tokens in its passes."""
        if not isinstance(target, TransformersTarget):
            raise ValueError(f"{self.called} are for a model of transformers, and not for {type(target).__name__}")
        own, width = self.prompts.embeddings.shape[1], target.model.get_input_embeddings().weight.shape[-1]
        if own != width:
            raise ValueError(
                f"the {self.called} {self.prompts.name!r} have {own} numbers, and the target's embeddings {width}: "
                "they are those of another target"
            )
        return self.probed(target, None if self.trees is None else self.trees.counts)

    def probed(self, target: TransformersTarget, counts: Sequence[Sequence[int]] | None) -> ProbedTarget:
        """The target with probes behind its nodes, as many as `counts` says, or all."""
        return ProbedTarget(target, self.prompts.embeddings, counts)

    def block(self, found: Tensor) -> Block:
        """A draft of what the probes behind the last accepted node hold, `[batch, prompt token, …]`."""
        return Block(Scored(found.shape[-1]), found)

    def bind(self, target: Target) -> None:
        assert target.vocab is not None
        if self.shape.widest > target.vocab:
            form, most = self.options.form, self.shape.widest
            raise ValueError(f"the form {form} wants {most} siblings, and the target has {target.vocab} ids")

    def width(self, k: int) -> int:
        return self.shape.width(self._depth(k))

    def start(self, state: State, inputs: Any) -> Tensor | None:
        """The contents of the probes behind the prompt, where the prefill had some."""
        step = state.step
        return None if step is None or step.scores.auxiliary is None else behind_root(step)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        found, depth, shape = state.memory, self._depth(k), self.shape
        if found is None or shape.levels(depth) < 1:
            return Draft.empty(state.root)
        if self.trees is not None:
            missing = found.amax(-1) == -torch.inf
            shape = ByState(self.trees, (~missing).sum(1).clamp(max=shape.levels(depth)))
            found = found.masked_fill(missing[..., None], 0.0)  # of levels without nodes
        return drafted(self.block(found), shape, state, depth, noise)

    def observe(self, state: State, step: Step) -> None:
        state.memory = behind_root(step)

    @property
    def own_length(self) -> int:
        """As many units as there are probes."""
        return len(self.prompts.embeddings)

    def _depth(self, k: int) -> int:
        return min(k, self.own_length)


class PPD(ProbeDrafter):
    """Drafts what prompt tokens of the last pass scored."""

    def __init__(self, options: PPDOptions = PPDOptions()) -> None:
        super().__init__(options)
