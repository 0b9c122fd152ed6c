"""The method that pays for a language model on this machine and these prompts: the ways that race, and what is kept.

A method is kept only if it is faster, beyond doubt, than what `auto` takes without it: in every round that decides, and
in an interval over prompts. Else `auto` stays as it was.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from mmspec.api.build import decoder_for
from mmspec.api.plan import AUTO, known_name
from mmspec.api.tuned import Tuned, key_of
from mmspec.bench.generate import GenerateCall, PeerGenerate
from mmspec.bench.methods import decoder_arguments
from mmspec.bench.race import Contestant
from mmspec.hosts.loading import PREFIX
from mmspec.kits.text.bench.contestants import OurMethod
from mmspec.kits.text.knockout import JUDGED, Race, Racer
from mmspec.report.result import PLAIN
from mmspec.shipped import heads_of

NOW = "auto, as it is"  # the way that the others are compared with, since it is what they would replace
CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"method": PLAIN},
    "prompt-lookup, k=5": {"method": "prompt-lookup", "k": 5},
    "prompt-lookup, k=10": {"method": "prompt-lookup", "k": 10},
    "suffix, k=5": {"method": "suffix", "k": 5},
    "suffix, k=10, payoff": {"method": "suffix", "k": 10, "policy": "payoff"},
    "token-recycling, 8 nodes": {"method": "token-recycling", "k": 5, "nodes": 8},
    "token-recycling, 16 nodes": {"method": "token-recycling", "k": 5, "nodes": 16},
    "token-recycling, 32 nodes": {"method": "token-recycling", "k": 6, "nodes": 32},
}
"""The ways that need neither a head nor a draft model, with the arguments of `enable`."""
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "chains of 2": {"k": 2, "width": 1, "nodes": 2},
    "chains of 3": {"k": 3, "width": 1, "nodes": 3},
    "7 nodes": {"k": 3, "width": 3, "nodes": 7},
}
"""The drafts of heads."""
COMPILED = (PLAIN, "prompt-lookup, k=5", "token-recycling, 8 nodes")
"""Candidates that are tried compiled, too, where that is asked for."""
PEERS: Mapping[str, Mapping[str, Any]] = {
    "generate": {},
    "generate, prompt lookup 3": {"prompt_lookup_num_tokens": 3},
    "generate, prompt lookup 10": {"prompt_lookup_num_tokens": 10},
}
"""transformers' own ways: `auto` cannot take one, and the fastest is named where it wins."""
PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring and an example.",
    "Summarise in two sentences: The printing press spread through Europe within decades. Books became cheap, so that "
    "more people learnt to read, and ideas that a few scholars had kept to themselves were argued about in taverns.",
    "Tom has 3 boxes of 12 pencils and gives 7 pencils away. How many pencils are left? Explain step by step.",
    "Translate into French: Good morning, my friends. Where is the next train station?",
    "Rewrite this with better names: def f(a, b):\n    c = []\n    for d in a:\n        if d not in b:\n"
    "            c.append(d)\n    return c",
)
"""Prompts where the user has no file."""
GAIN = 0.03  # a method that is not faster than another one by this share is not worth a change


def contestants(model: Any, compiled: bool) -> tuple[dict[str, Racer], dict[str, Mapping[str, Any]]]:
    """The racers, and the arguments of `enable` of those that can be chosen; methods that do not fit are left out."""
    heads = heads_for(model)
    chosen = {**CANDIDATES, **heads}
    if compiled:
        chosen |= {f"{name}, compiled": {**chosen[name], "compile": True} for name in (*COMPILED, *heads)}

    def ours(how: Mapping[str, Any], temperature: float, new: int) -> Contestant:
        return OurMethod(GenerateCall(model, new, temperature, 0), how)

    def theirs(more: Mapping[str, Any], temperature: float, new: int) -> Contestant:
        return PeerGenerate(GenerateCall(model, new, temperature, 0), more)

    racers = {NOW: Racer(partial(ours, {"method": AUTO}), stays=True)}
    for name, how in list(chosen.items()):
        try:
            decoder_for(model, **decoder_arguments(how))
        except ValueError:
            if name == PLAIN:  # then nothing fits, and the error says why
                raise
            del chosen[name]
            continue
        racers[name] = Racer(partial(ours, how), stays=name == PLAIN, compiles=how.get("compile", False))
    return racers | {name: Racer(partial(theirs, more)) for name, more in PEERS.items()}, chosen


def heads_for(model: Any) -> dict[str, Mapping[str, Any]]:
    """The shipped heads of a live model, each as chains and as small trees, with arguments of `enable`."""
    return {
        f"{method}, {shape}, {head}": {"method": method, "drafter": PREFIX + head, **how}
        for head, method in heads_of(known_name(model)).items()
        for shape, how in SHAPES.items()
    }


def tune(
    model: Any,
    tasks: Sequence[Mapping[str, Tensor]],
    minutes: float,
    new: int,
    compiled: bool,
    say: Callable[[str], None] = print,
) -> tuple[Tuned | None, str, Race]:
    """The method to keep for a live model, or None; the verdict in words; and the whole race.

    Methods are enabled on the model by turns, over prompts of one row each and outputs of `new` tokens at most, for
    about so many `minutes`; with `compiled`, compiled rounds race, too. `say` receives lines of progress.
    """
    racers, chosen = contestants(model, compiled)
    race = Race(racers, tasks, (list(chosen), list(PEERS)), say)
    race.run(minutes, new)
    best, said = verdict(race, chosen)
    if best is None:
        return None, said, race
    how = dict(chosen[best])
    own = {name: how.pop(name, None) for name in ("method", "drafter", "k", "policy")}
    speedup = 1.0 if best == PLAIN else round(race.over(best, PLAIN).middle, 3)
    return Tuned(key_of(model), compile=how.pop("compile", False), options=how, speedup=speedup, **own), said, race


def verdict(race: Race, chosen: Mapping[str, Mapping[str, Any]]) -> tuple[str | None, str]:
    """The one of `chosen` that is kept after a race, or None, and the reason, in words."""
    if not race.rounds:
        least = race.needed / 60 * (2 + JUDGED)
        return None, f"Too little time to say: auto stays as it was. It takes about --minutes {max(1, least):.0f} here."
    best = min((name for name in race.left if name in chosen), key=lambda name: race.racers[name].total)
    kept = best if race.clearly(best, NOW, GAIN) else None
    if kept is None:
        said = f"Too close to say: auto stays as it was ({best} is {race.over(best, NOW)} as fast)."
    elif kept == PLAIN:
        said = f"Nothing pays here: auto decodes plainly now, {race.over(PLAIN, NOW)} as fast as before."
    else:
        said = f"auto takes {chosen[kept]['method']} now: {kept}, {race.over(kept, NOW)} as fast as before."
    for peer in PEERS:
        if peer in race.left and race.clearly(peer, kept or NOW, 0.0):
            said += f" transformers' own {peer} is faster still: {race.over(peer, kept or NOW)}."
    return kept, said


def ranked(race: Race) -> Iterator[tuple[str, str, str, str]]:
    """Rows for a table, the fastest first: name, speed over plain, its range, acceptance length, prompts decoded."""
    ran = {name: race.over(name, PLAIN) for name, racer in race.racers.items() if racer.seconds}
    for name in sorted(race.racers, key=lambda name: -ran[name].middle if name in ran else 0.0):
        racer = race.racers[name]
        length = f"{sum(racer.lengths) / len(racer.lengths):.2f}" if racer.lengths else ""
        went = "" if name in race.left else ", then it left"
        yield name, str(ran.get(name, "")), length, racer.failure or f"{len(racer.seconds)}{went}"
