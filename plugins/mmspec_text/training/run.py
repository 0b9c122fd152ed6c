"""A run of training: the target's own text, the drafter, and the folder that is written at the end.

A run resumes where it stopped: what the target wrote is kept in the work folder, and so are the last weights. The
drafter's folder is written, whole, when its training is complete.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard, ModelCardData
from transformers import PreTrainedTokenizerBase

from mmspec.bench.generate import GenerateCall
from mmspec.bench.race import race
from mmspec.files import save_sealed
from mmspec.hosts.draft_models import own_target
from mmspec.hosts.fingerprint import identity
from mmspec.hosts.loading import load_model
from mmspec.kits.text.bench.contestants import OurMethod
from mmspec.kits.text.tuning import GAIN
from mmspec.registry.printable import printable
from mmspec.registry.warn import warn
from mmspec.report.result import PLAIN
from mmspec.training.work import claimed, digest
from mmspec_text.training.blocks import begun_pard, begun_ppd
from mmspec_text.training.chats import Chat
from mmspec_text.training.data import Data, halves, held_apart
from mmspec_text.training.draft_model import begun_model, loaded, trained_model
from mmspec_text.training.eagle import begun_eagle, begun_first
from mmspec_text.training.exits import begun_layer_skip, begun_sorted, trained_layer_skip, trained_sorted
from mmspec_text.training.gated import begun_gated
from mmspec_text.training.heads import drafted_ids, trained_head
from mmspec_text.training.new_head import Begin
from mmspec_text.training.new_heads import begun_clover, begun_dflash, begun_medusa, begun_mtp
from mmspec_text.training.recipe import DrafterKind, DrafterRecipe
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.texts import Answers, Batch, Source, Stream, Texts
from mmspec_text.training.trained import Trained, Training
from mmspec_text.training.written import CONTINUED, answered, questions

OWN = "what the target wrote"
OFTEN = 20
"""The number of times that a token may be seen in training without a warning."""
WRITES = {"text": "texts", "answers": "answers", "questions": "questions, and then their answers"}
HEADS: Mapping[str, Begin] = {
    **{kind: partial(begun_first, kind) for kind in ("eagle", "fspad", "falcon")},
    "eagle3": begun_eagle,
    "mtp": begun_mtp,
    "medusa": begun_medusa,
    "clover": begun_clover,
    "dflash": begun_dflash,
    "ppd": begun_ppd,
    "gated-lora": begun_gated,
}
"""The kinds of head; what begins a draft model that fills in masks, `begun_pard`, wants a tokenizer, too."""
MODELS: Mapping[str, tuple[Callable[[Any, DrafterRecipe], Any], Callable[[Training], Trained]]] = {
    "model": (begun_model, trained_model),
    "sorted": (begun_sorted, trained_sorted),
    "layer-skip": (begun_layer_skip, trained_layer_skip),
}
"""The kinds of model: how they begin, and how they are trained."""
KINDS: Mapping[DrafterKind, tuple[str, str]] = {
    "eagle": ("eagle", "An EAGLE-1 head in its authors' layout."),
    "fspad": ("eagle", "An FSPAD head in its authors' layout."),
    "falcon": ("falcon", "A head of Falcon in its authors' layout."),
    "eagle3": ("eagle", "An EAGLE-3 head in the format of speculators, which vLLM reads, too."),
    "mtp": ("mtp", "A layer for multi-token prediction, under DeepSeek-V3's keys."),
    "medusa": ("medusa", ""),
    "clover": ("clover", "A Clover head in mmspec's layout."),
    "dflash": ("dflash", "A DFlash head in its authors' layout."),
    "ppd": ("ppd", "Prompt tokens in their authors' layout."),
    "gated-lora": ("gated-lora", "Masks, a gated LoRA and a sampler in mmspec's layout, over PEFT's keys."),
    "pard": ("pard", "A draft model that fills in masks, as transformers stores a model."),
    "model": ("draft-model", "A draft model, as transformers stores one."),
    "sorted": ("s2d", "A draft model with several exits, as transformers stores one."),
    "layer-skip": ("layer-skip", "The target, trained so that its first layers draft, as transformers stores it."),
}
"""The method that drafts with each kind, and what its folder is."""
MEDUSA = (
    "Medusa heads in their authors' layout; vLLM's has no output layers of the heads' own (--no-own-output).",
    "Medusa heads over the target's output layer, in vLLM's layout.",
)
"""The sentence for `medusa`: heads with output layers of their own, and without."""


def train_drafter(
    kind: DrafterKind,
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    *,
    recipe: DrafterRecipe,
    folder: Path,
    work: Path,
    name: str,
    say: Callable[[str], None] = print,
) -> None:
    """Run a recipe, or the rest of it; refuses a recipe that the kind of drafter has not, and work that is another
    run's.

    The target's weights are frozen, those that a head shares among them; the drafter learns in float32 under bfloat16
    autocast. `folder` receives the finished drafter, and replaces one that is as a run left it; `work` has the
    checkpoints: delete it to start anew.
    """
    recipe.refuse_for(kind, bool(data.sources), len(data.prompts) > 0)
    model.requires_grad_(False)
    begin = partial(begun_pard, tokenizer) if kind == "pard" else HEADS.get(kind)
    if begin is not None:  # what cannot begin is refused before the target writes for hours
        head = begin(model, recipe, name, drafted_ids((), recipe.draft_vocab, model, tokenizer))
        Teacher(model, head.boundaries)
    else:
        MODELS[kind][0](model, recipe)
        if recipe.reference is not None:
            loaded(recipe.reference, model)
    reach = own_target(model).context
    if reach is not None and recipe.context > reach:
        raise ValueError(f"the target reads {reach} tokens, and a sequence has {recipe.context} (context)")
    held_parts = [part for batch in data.held.values() for part in (batch.ids, batch.counted)]
    of = digest([*(part for source in data.sources for part in source.parts), *held_parts, data.prompts])
    template = {"template": dict(data.template)} if data.template else {}
    own = {"kind": kind, "target": name, "weights": identity(model), "dtype": str(model.dtype), "data": of}
    with claimed(work, recipe.of(kind) | own | {"template": None, **template}):
        sources, held = with_own(model, tokenizer, data, recipe, reach, work, say)
        texts = Texts(sources, recipe.batch, recipe.context, recipe.seed, model.device)
        often = recipe.steps * recipe.batches / texts.epoch
        say(f"training on {sum(map(len, sources)):,} tokens, each about {often:.2g} times")
        if often > OFTEN:
            warn(
                f"each token is seen about {often:.0f} times in {recipe.steps} steps, so that the drafter will know "
                "them by heart: give more text (--data, --self-generated), or fewer --steps"
            )
        training = Training(model, tokenizer, name, texts, held, recipe, work / "drafter", say)
        done = MODELS[kind][1](training) if begin is None else trained_head(begin, training)
        facts = {"kind": kind, "target": name, **done.facts, "recipe": recipe.of(kind), **template}

        def write(side: Path) -> None:
            done.write(side)
            (side / "training.json").write_text(json.dumps(facts, indent=2) + "\n")
            readme(kind, recipe, name, facts).save(side / "README.md")

        save_sealed(folder, write)
        say(layout_of(kind, recipe))
        say(f"{folder.name}: {facts['parameters']:,} parameters; held out: {json.dumps(facts['held_out'])}")
        method, live, drafter = KINDS[kind][0], model, {"drafter": str(folder)}
        asked = f"--model {name} --method {method} --drafter {folder}"
        if kind == "layer-skip":  # the folder is a target that drafts for itself
            live, drafter = load_model(str(folder), str(model.device), model.dtype), {}
            asked = f"--model {folder} --method {method}"
        say(whether_it_pays(live, method, drafter, held))
        say(f"Next: mmspec generate text {asked} 'a prompt'")


def whether_it_pays(model: Any, method: str, drafter: Mapping[str, str], held: Mapping[str, Batch]) -> str:
    """A sentence on a trained drafter against plain decoding, greedily, behind two beginnings of held-out text."""
    call = GenerateCall(model, new=48, temperature=0.0, seed=0)
    ways = {PLAIN: OurMethod(call, {"method": PLAIN})}
    ways[method] = OurMethod(call, {"method": method, **drafter})
    pairs = [pair for of in held.values() for pair in zip(of.ids, of.counted, strict=True)]
    rows = [ids[: min(32, int(counted.nonzero().max()) + 1)].to(model.device) for ids, counted in pairs]
    tasks = [{"input_ids": row[None], "attention_mask": torch.ones_like(row[None])} for row in rows[:2]]
    plain, ours = race(ways, tasks, 2, optional=ways).values()
    if failure := plain.failure or ours.failure:
        return f"Whether it pays here was not tried: {failure}"
    faster, passes = (
        min(plain.repeats_s) / min(ours.repeats_s),
        sum(run.report.rounds for run in ours.median if run.report),
    )
    return (
        f"Tried here on two held-out beginnings: {len(tasks) * call.new} tokens in {passes} passes, {faster:.2f} times "
        f"as fast as plain decoding. It {'pays' if faster > 1 + GAIN else 'does not pay'} here"
    )


def with_own(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    recipe: DrafterRecipe,
    reach: int | None,
    work: Path,
    say: Callable[[str], None],
) -> tuple[list[Source], Mapping[str, Batch]]:
    """The sources, with what the target writes; and the held-out sequences, which are of that if there are no others.

    `reach` counts the units that the target reads at most, or is None.
    """
    if not len(data.prompts):
        return list(data.sources), data.held
    say(f"the target writes {len(data.prompts):,} {WRITES[data.writes]}")
    others, mixed = sum(source.share for source in data.sources), recipe.own_share < 1
    share = recipe.own_share * others / (1 - recipe.own_share) if others and mixed else 1.0
    prompts, folder, held = data.prompts, work / "written", data.held
    how: dict[str, Any] = {"temperature": recipe.temperature, "seed": recipe.seed, "say": say}

    def room() -> int:
        return CONTINUED if reach is None else min(CONTINUED, reach - prompts.shape[1])

    if data.writes == "questions":
        new, most = room() // 4, None if reach is None else reach // 2
        chat, at = Chat(tokenizer, data.template), work / "questions"
        prompts = questions(model, chat, prompts, most, new=new, folder=at, **how)
    rows = answered(model, prompts, new=room(), folder=folder, **how)
    own: Source
    if data.writes == "text":
        units = torch.cat([row.ids for row in rows])
        if not held:
            units, windows = halves(units, recipe.context, OWN)
            held = {"own": Batch.whole(windows)}
        own = Stream(units, share)
    else:
        if not held:
            rows, last = held_apart([[row] for row in rows], recipe.context, OWN)
            held = {"own": last}
        own = Answers(rows, share)
    return ([*data.sources, own] if mixed else [own]), held


def layout_of(kind: DrafterKind, recipe: DrafterRecipe) -> str:
    """A sentence about the folder of a trained drafter."""
    return KINDS[kind][1] or MEDUSA[not recipe.own_output]


def readme(kind: DrafterKind, recipe: DrafterRecipe, target: str, facts: Mapping[str, Any]) -> ModelCard:
    """The README of a drafter; `facts` are those of its `training.json`."""
    public = None if Path(target).exists() else target  # a folder of this machine is nobody else's
    data = ModelCardData(library_name="mmspec", tags=["speculative-decoding"], base_model=public)
    method = KINDS[kind][0]
    how, what = f'"{method}", drafter="FOLDER"', "this folder, or its name on the hub"
    if kind == "layer-skip":
        how, what = f'"{method}"', "the model of this folder"
    held = "\n".join(f"- {printable(name)}: `{json.dumps(counted)}`" for name, counted in facts["held_out"].items())
    return ModelCard(
        f"---\n{data.to_yaml()}\n---\n\n# A drafter for {printable(target)}\n\n"
        f"{layout_of(kind, recipe)} It has {facts['parameters']:,} parameters. `mmspec train drafter --kind {kind}` "
        "made it, by the recipe in `training.json`.\n\n"
        f"    with mmspec.enable(model, {how}):  # {what}\n"
        "        model.generate(...)\n\n"
        f"Counted on held-out text, which is no benchmark (`mmspec bench text --help`):\n\n{held}\n"
    )
