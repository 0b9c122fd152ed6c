"""Cases for the logical device: methods of the text, image and recurrent plugins on tiny models.

Imported after the device has replaced functions of torch. On latents and frames: `tests.support.device_latents`.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE
from torch import Tensor, nn
from transformers import LlamaConfig, MambaConfig, PreTrainedTokenizerFast
from transformers.generation import (
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StopStringCriteria,
)

from mmspec.api.build import decoder_for
from mmspec.api.stopping import StoppingMonitor
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.policies import Confidence
from mmspec.core.report import Report
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.translated import TranslatedTarget
from mmspec.hosts.vocabulary import VocabularyMap
from mmspec.kits.pictures.conditions import Condition
from mmspec.testing import tiny_models
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from mmspec_text.head_specs import HEAD_METHODS
from tests.support import lantern_heads, random_models
from tests.support.examples import EXAMPLES, image, ssm, zoo
from tests.support.examples import written as grids
from tests.support.examples.heads import random_checkpoint
from tests.support.examples.text import masked

LIMIT = 10
CORPUS = [[(start * start * step + start // 7) % 7 for start in range(90)] for step in range(9)]

Place, Send = Callable[[nn.Module], nn.Module], Callable[[Any], Any]
"""Move a model, and inputs, to where a case runs."""


class Call(Protocol):
    """A call under way, one round at a time."""

    @property
    def finished(self) -> bool:
        """True if no round is left."""
        ...

    @property
    def report(self) -> Report:
        """Counts and times."""
        ...

    def advance(self) -> None:
        """One round."""
        ...

    def output(self) -> list[Tensor]:
        """The units of every row, or the frames."""
        ...


class Runnable(Protocol):
    """A case."""

    def begin(self, place: Place, send: Send) -> Call:
        """Begin a call over copies of the models."""
        ...


AS_ON_A_CPU: dict[str, dict[str, Any]] = {
    "token-recycling": {"nodes": 8},
    "lookahead": {"n": 4, "guesses": 4},
    "rest": {"nodes": 16},
    "eagle": {"width": 3, "nodes": 7},
    "mtp": {"width": 3, "nodes": 7},
}
"""Sizes of methods that are larger elsewhere: the same rounds on both devices are compared."""


@dataclass(frozen=True)
class Case:
    """A method on a tiny model."""

    model: nn.Module  # the target's model
    prompt: Any  # the inputs of two rows, of several lengths
    method: str
    k: int = 4  # units to draft
    options: dict[str, Any] = field(default_factory=dict)  # its options; models among them are moved, too
    # makes a drafter instead of the method's, and moves its models
    drafter: Callable[[Place], Any] = lambda place: None
    warp: Warp = field(default_factory=lambda: Warp.sampling(0.8, top_k=5))  # how scores become a distribution
    criterion: StoppingCriteria | None = None  # a stopping criterion
    limit: int = LIMIT  # units wanted
    policy: Any = "fixed"  # how many units are drafted
    rule: str | None = None  # a rule instead of the method's

    def begin(self, place: Place, send: Send) -> "Units":
        return Units(self.decoder(place), send(self.prompt), self)

    def decoder(self, place: Place) -> Decoder:
        """The decoder over copies of the models."""
        options = {**AS_ON_A_CPU.get(self.method, {}), **self.options}
        options = {name: copied(value, place) for name, value in options.items()}
        return decoder_for(
            copied(self.model, place),
            self.method,
            k=self.k,
            drafter=self.drafter(place),
            policy=self.policy,
            rule=self.rule,
            options=options,
        )


class Units:
    """A call of a decoder."""

    def __init__(self, decoder: Decoder, prompt: Any, case: Case) -> None:
        self.decoder = decoder
        self.state = decoder.start(prompt, case.limit, seed=3, warp=case.warp)
        criteria = [] if case.criterion is None else [case.criterion]
        self._monitor = StoppingMonitor(criteria, self.state.rows, 0, None)

    @property
    def finished(self) -> bool:
        """True if all rows are done."""
        return self.state.finished

    @property
    def report(self) -> Report:
        """The call's."""
        return self.state.report

    def advance(self) -> None:
        """One round, and the criterion for its units."""
        self.decoder.advance(self.state)
        self._monitor.step(self.state)

    def output(self) -> list[Tensor]:
        """The units of every row."""
        return self.state.output()


class Allowed:
    """A constraint that tells rows apart: a row may not use its own number."""

    speculative = "history"

    def __call__(self, row: int, ids: Tensor) -> list[int]:
        """The ids that may follow."""
        return [each for each in range(tiny_models.VOCAB) if each != row]


class Repeats:
    """A drafter in plain Python: the text goes on as it began."""

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        """The first units of every row."""
        return [row[: k - b] for b, row in enumerate(tokens)]


class Long(StoppingCriteria):
    """Ends rows whose text is long."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Which rows end: `[batch]` bool."""
        return torch.full_like(input_ids[:, 0], input_ids.shape[1] >= LIMIT + 6, dtype=torch.bool)


def letters() -> PreTrainedTokenizerFast:
    """A tokenizer whose token ids stand for letters."""
    vocabulary = {letter: number for number, letter in enumerate("abcdefg")}
    made = Tokenizer(BPE(vocabulary, []))
    made.decoder = ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def copied(value: Any, place: Place) -> Any:
    """A copy of a model, moved; anything else as it is."""
    return place(copy.deepcopy(value)) if isinstance(value, nn.Module) else value


def text() -> dict[str, Runnable]:
    """The methods of the text plugin, history processors, a criterion."""
    llama, small, prompt = tiny_models.llama(), random_models.small(), tiny_models.prompt([0, 1])
    methods: dict[str, dict[str, Any]] = {
        "auto": {},
        "plain": {},
        "prompt-lookup": {},
        "suffix": {},
        "suffix-tree": {},
        "grammar": {},
        "jacobi-text": {},
        "token-recycling": {},
        "draft-model": {"model": small},
        "pard": {"model": masked()},
        "ppd-model": vars(EXAMPLES["text:ppd-model"]().options),
        "draft-tree": {"model": small, "nodes": 8},
        "rest": {"corpus": CORPUS, "nodes": 8},
        "rasd": {"corpus": CORPUS, "model": small, "nodes": 6},
        "united": {"model": small, "first": "draft-tree", "beside": "prompt-lookup", "nodes": 8},
        "dyspec": {"model": small, "nodes": 8},
        "sequoia": {"model": small, "nodes": 8},
        "bild": {"model": small, "sure": 0.3},
        "fly": {"model": small, "window": 2, "entropy": 0.1},
        "rsd": {"model": small},
        "pearl": {"model": small, "executor": "serial"},
        "saguaro": {"model": small, "executor": "serial", "branches": 4},
        "mirror-sd": {"model": small, "executor": "serial"},
        "lookahead": {},
        "llmcad": {"model": small, "nodes": 8},
        "s2d": {"model": small, "exits": (1, 2), "sure": 0.3, "stop": 0.18},
        "ambedkar": {"model": small, "condition": [2, 5, 1], "behind": 1},
        "judge": {"model": small, "head": zoo.judge().options.head},
        "vocab-trim": {"model": small, "keep": 5, "corpus": CORPUS},
        "specmemo": {"model": small, "width": 3, "nodes": 8, "memory_budget": 2**20},
        "cascade": {"budget": 16, "sinks": 2},
        "triforce": {"budget": 16, "chunk": 4},
        "layer-skip": {},
    }
    part = {"first": 1, "chunk": 2, "chunks": 1, "end": 3}
    methods["rapid"] = part
    cases: dict[str, Runnable] = {name: Case(llama, prompt, name, options=given) for name, given in methods.items()}
    cases["rapid, mixed"] = Case(llama, prompt, "rapid", options={**part, "model": small, "eta": 2.0})
    deeper = zoo.deeper()
    cases["swift"] = Case(deeper, prompt, "swift", options={"window": 4, "nodes": 8})
    cases["del"] = Case(deeper, prompt, "del", options={"latest": 3})
    cases["suffix, samples"] = Case(llama, tiny_models.prompt([0, 1, 0]), "suffix")
    options = {"model": small}
    blanks = zoo.infill_prompt([0, 1], blanks=12)
    cases["assd"] = Case(zoo.tiny_xlnet(), blanks, "assd")
    cases["assd, bigrams"] = Case(zoo.tiny_xlnet(), blanks, "assd", options={"draft": "bigram"})
    cases["draft-model, confidence"] = Case(llama, prompt, "draft-model", options=options, policy=Confidence(4, 0.3))
    for name, form in (("a tree", {}), ("a chain", {"form": "chain"})):
        cases[f"eagle, {name}"] = Case(llama, prompt, "eagle", options={"model": random_checkpoint(), **form})
    for method in HEAD_METHODS:
        if method.name != "eagle":
            _, example, *_ = EXAMPLES[f"text:{method.name}"]()
            its = llama if example.target is None else example.target.model
            cases[method.name] = Case(its, prompt, method.name, options=vars(example.options))
    sparse = EXAMPLES["text:ppd"]()[-1].options
    cases["ppd, sparse"] = Case(llama, prompt, "ppd", options=vars(sparse))
    cases["a drafter in Python"] = Case(llama, prompt, "auto", drafter=lambda place: Repeats())
    cases["draft-model, another vocabulary"] = Case(llama, prompt, "draft-model", drafter=translated)
    short = partial(translated, context=28)
    cases["draft-model, another vocabulary and a short context"] = Case(llama, prompt, "draft-model", drafter=short)
    own = {**methods["vocab-trim"], "corpus": None, "after": 4}
    cases["vocab-trim, its own output"] = Case(llama, prompt, "vocab-trim", options=own)
    cases["omnidraft"] = Case(llama, prompt, "omnidraft", options=vars(zoo.omnidraft().options))
    for name, criterion in (("a stopping criterion", Long()), ("stop strings", StopStringCriteria(letters(), ["bcd"]))):
        cases[f"prompt-lookup, {name}"] = Case(llama, prompt, "prompt-lookup", criterion=criterion)
    history = Warp([RepetitionPenaltyLogitsProcessor(1.3), NoRepeatNGramLogitsProcessor(3)])
    allowed = PrefixConstrainedLogitsProcessor(Allowed(), 1)
    cases["token-recycling, a constraint"] = Case(llama, prompt, "token-recycling", warp=Warp([allowed]))
    for name in ("prompt-lookup", "token-recycling", "auto"):
        cases[f"{name}, history processors"] = Case(llama, prompt, name, warp=history)
    return cases


def translated(place: Place, context: int = 512) -> DraftModel:
    """A draft model that lacks two of the target's tokens, which it spells in one and two of its own."""
    sizes = {**tiny_models.SIZES, "vocab_size": 6, "max_position_embeddings": context}
    small = random_models.random_model(LlamaConfig(**sizes), seed=5, head=8.0)
    pieces = [[1], [2], [3, 4], [0], [4], [1], [5]]
    listed = torch.tensor([[*each, -1][:2] for each in pieces])
    lengths = torch.tensor([len(each) for each in pieces])
    table = VocabularyMap(torch.tensor([-1, 2, -1, 0, 4, 1, 5]), listed, lengths, 6)
    return DraftModel(TranslatedTarget(TransformersTarget(copied(small, place)), table))


def images() -> dict[str, Runnable]:
    """The methods of the image plugin on LlamaGen, and some on other models; Emu3 with guidance."""
    models = {
        "llamagen": image.llamagen(),
        "janus": image.janus(),
        "glm-image": grids.glm_image(),
        "emu3": replace(grids.emu3(), prompt=grids.guided),
        "chameleon": grids.chameleon(),
    }
    warp = Warp.sampling(1.0, top_k=5, guidance=2.0)
    windows = ("gs-sjd", "mc-sjd", "sjd", "gs-sjd-pac", "sjd-pac")
    methods = [("llamagen", name) for name in ("plain", *windows, "gsd", "lantern")]
    others = [("janus", "gs-sjd"), ("glm-image", "plain"), ("emu3", "token-recycling"), ("chameleon", "gs-sjd")]
    cases: dict[str, Runnable] = {
        f"{method}, {name}": Case(models[name].target.model, models[name].prompt([0, 1]), method, warp=warp)
        for name, method in [*methods, *others]
    }
    grid, condition = lantern_heads.target("c2i"), Condition(torch.tensor([0, 1]))
    with TemporaryDirectory() as folder:
        head = read_checkpoint(str(lantern_heads.save(Path(folder), "c2i")))
    options = {"model": head, "width": 3, "nodes": 8}
    cases["eagle, llamagen"] = Case(grid, condition, "eagle", options=options, warp=warp)
    cases["eagle, llamagen, relaxed"] = Case(grid, condition, "eagle", rule="relaxed", options=options, warp=warp)
    return cases


def recurrent() -> dict[str, Runnable]:
    """Methods on a hybrid with a Mamba-2 layer, and on a Mamba-1."""
    sizes = dict(vocab_size=tiny_models.VOCAB, hidden_size=16, state_size=4, num_hidden_layers=2, conv_kernel=3)
    mamba = random_models.random_model(MambaConfig(**sizes, pad_token_id=0, eos_token_id=None), gain=4.0, head=8.0)
    models = {"bamba": ssm.hybrid().target.model, "mamba": mamba}
    small, prompt = random_models.small(), tiny_models.prompt([0, 1])
    methods: dict[str, dict[str, Any]] = {
        "plain": {},
        "prompt-lookup": {},
        "token-recycling": {},
        "stree": {"model": small, "nodes": 7, "rates": (0.6, 0.2)},
    }
    cases: dict[str, Runnable] = {
        f"{method}, {name}": Case(model, prompt, method, options=options)
        for name, model in models.items()
        for method, options in methods.items()
    }
    cases["eagle, bamba"] = Case(models["bamba"], prompt, "eagle", options={"model": random_checkpoint()})
    return cases
