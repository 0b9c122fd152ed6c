"""Calls that share passes: each one's units are those that it has alone, whoever comes, goes, or fails beside it."""

import copy
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.guided import NULL_INPUTS
from mmspec.core.rules import Match, Rejection, Rule
from mmspec.core.sharing import SharingDecoder
from mmspec.core.state import State
from mmspec.core.threads import Caller
from mmspec.core.warp import Warp
from mmspec.hosts import target as target_module
from mmspec.hosts.target import TransformersTarget
from mmspec.testing import tiny_models
from mmspec_text.drafters.suffix import Suffix, SuffixTree
from mmspec_text.drafters.token_recycling import TokenRecycling
from tests.captured.test_every_method import PAIRS, parts_of
from tests.support.laws import assert_follows

OF_ONE_CALL_TOO = ("continuous-ar", "xlnet", "token-frames")
"""Targets whose passes are over one call's rows."""
OF_ONE_CALL = (
    *("zoo:mirror-sd", "zoo:rapid", "zoo:specmemo"),
    *("text:cascade", "text:triforce", "text:ppd", "text:gated-lora"),
)
"""Methods whose drafter acts in the target's passes, or whose target reads more than the call's rows."""
FAST = {
    *(("text:suffix", "transformers"), ("text:token-recycling", "recurrent"), ("zoo:mirror-sd", "transformers")),
    *(("image:gs-sjd", "llamagen"), ("image:sjd", "janus"), ("continuous:reflection", "continuous-ar")),
}
LAWS = (
    Warp.sampling(0.0),
    Warp.sampling(0.8),
    Warp.sampling(1.0, top_k=3),
    Warp([RepetitionPenaltyLogitsProcessor(1.3)], sample=True),
)


class Gone(Exception):
    """A client has gone."""


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of calls, each in a thread of its own; an exception is its result."""

    def result(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        running = [threads.submit(result, call) for call in calls]
        return [each.result() for each in running]


def queued(decoder: SharingDecoder, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The same; none begins before all wait."""
    with ThreadPoolExecutor(len(calls)) as threads:
        with decoder.shared._turn:
            running = [threads.submit(call) for call in calls]
            while decoder.shared.waiting() < len(calls):
                time.sleep(0.001)
        return [each.result() for each in running]


def assert_idle(decoder: SharingDecoder) -> None:
    assert decoder.shared.running() == decoder.shared.waiting() == 0
    assert not decoder.shared._batches


@pytest.mark.parametrize(
    ("method", "target"),
    [pytest.param(*p, marks=[] if p in FAST else pytest.mark.slow) for p in PAIRS],
)
def test_a_method_shares_passes_or_says_why_not(method: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMSPEC_STRICT", "1")
    bench, drafter, rule = parts_of(method, target)
    decoder = Decoder(bench.target, drafter(), rule(), k=4, shape="any", compile=False)
    if method in OF_ONE_CALL or target in OF_ONE_CALL_TOO:
        with pytest.raises(ValueError, match="one call"):
            SharingDecoder(decoder)
        return
    prompts = [bench.prompt(rows) for rows in ((0,), (1,), (2,), (0, 2))]
    how = [{"seed": seed, "warp": bench.greedy if seed == 1 else bench.warp} for seed in range(len(prompts))]
    alone = [decoder.generate(ids, 12, **each) for ids, each in zip(prompts, how, strict=True)]
    sharing = SharingDecoder(decoder)
    runs = [partial(sharing.generate, ids, 12, **each) for ids, each in zip(prompts, how, strict=True)]
    for output, own in zip(at_once(runs), alone, strict=True):
        assert not isinstance(output, Exception), output
        if decoder.rule.exactness == "invariant":
            assert all(torch.equal(a, b) for a, b in zip(output.units, own.units, strict=True))
        assert output.report.emitted == own.report.emitted
    assert_idle(sharing)


def drafters() -> dict[str, Callable[[], Any]]:
    return {
        "plain": lambda: None,
        "suffix": Suffix,
        "suffix-tree": SuffixTree,
        "token-recycling": TokenRecycling,
        "draft-model": lambda: DraftModel(TransformersTarget(tiny_models.llama(), drafting=True)),
    }


@pytest.mark.parametrize("seed", range(10))
def test_drawn_calls_come_and_go(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, lengths, laws, guidance, ends and room are drawn; some clients leave early; of some prompts rows cannot be
    shared.
    """
    monkeypatch.setenv("MMSPEC_STRICT", "1")
    draw = random.Random(seed)
    decoder = Decoder(TransformersTarget(tiny_models.llama()), drafters()[draw.choice([*drafters()])](), k=5)
    calls = []
    for number in range(draw.randint(5, 9)):
        inputs = tiny_models.prompt([draw.randrange(9) for _ in range(draw.choice((1, 1, 2, 3)))])
        if draw.random() < 0.2:
            embedded = tiny_models.llama().get_input_embeddings()(inputs["input_ids"]).detach()
            inputs = {**inputs, "inputs_embeds": embedded}
        how = {"seed": number, "warp": draw.choice(LAWS), "ends": draw.choice((None, 3))}
        if "inputs_embeds" not in inputs and draw.random() < 0.4:
            away = tiny_models.prompt([draw.randrange(9) for _ in inputs["input_ids"]])
            inputs, how["warp"] = {**inputs, NULL_INPUTS: away}, replace(how["warp"], guidance=draw.choice((1.5, 3.0)))
        calls.append((inputs, draw.randint(1, 40), how, draw.randint(1, 9) if draw.random() < 0.3 else None))
    alone = [decoder.generate(inputs, limit, **how).units for inputs, limit, how, _ in calls]
    sharing = SharingDecoder(decoder, rows=draw.choice((3, 4, 8)), prompt=draw.choice((4, 64)))

    def run(inputs: Any, limit: int, how: dict[str, Any], leaves: int | None) -> list[Tensor]:
        rounds = 0

        def step(state: State) -> None:
            nonlocal rounds
            rounds += 1
            if rounds == leaves:
                raise Gone

        return sharing.generate(inputs, limit, on_step=step, **how).units

    for (*_, leaves), units, own in zip(calls, at_once([partial(run, *call) for call in calls]), alone, strict=True):
        if isinstance(units, Gone):
            assert leaves is not None
        else:
            assert not isinstance(units, Exception), units
            assert all(torch.equal(a, b) for a, b in zip(units, own, strict=True))
    assert_idle(sharing)


def test_no_pass_has_more_rows_than_were_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TransformersTarget(tiny_models.llama())
    sharing = SharingDecoder(Decoder(target, None), rows=3)
    widths, verify = list[int](), TransformersTarget.verify

    def counted(self: TransformersTarget, cache: Any, draft: Any, first: int = 0) -> Any:
        widths.append(len(draft.units))
        return verify(self, cache, draft, first)

    monkeypatch.setattr(TransformersTarget, "verify", counted)
    outputs = queued(sharing, [partial(sharing.generate, tiny_models.prompt([row]), 30, seed=row) for row in range(6)])
    assert all(output.report.emitted == 30 for output in outputs)
    assert max(widths) == 3 and len(widths) < 6 * 29 * 0.6


def test_a_pass_that_fails_ends_its_calls_and_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TransformersTarget(tiny_models.llama())
    sharing = SharingDecoder(Decoder(target, Suffix(), k=3))
    expected = Decoder(target, None).generate(tiny_models.prompt([0]), 9, seed=0).units[0]
    verify = TransformersTarget.verify

    def fails(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(TransformersTarget, "verify", fails)
    ended = at_once([partial(sharing.generate, tiny_models.prompt([row]), 9, seed=0) for row in range(3)])
    assert all(isinstance(error, torch.OutOfMemoryError) for error in ended)
    assert_idle(sharing)
    monkeypatch.setattr(TransformersTarget, "verify", verify)
    assert torch.equal(sharing.generate(tiny_models.prompt([0]), 9, seed=0).units[0], expected)


def test_passes_run_in_the_thread_that_waits_for_the_calls() -> None:
    caller, here, threads = Caller(), threading.get_ident(), torch.get_num_threads()
    sharing = SharingDecoder(Decoder(TransformersTarget(tiny_models.llama()), Suffix(), k=3), rows=2, thread=caller)
    where, units, verify = set[int](), dict[int, Tensor](), sharing.target.verify

    def watched(*args: Any) -> Any:
        where.add(threading.get_ident())
        return verify(*args)

    def call(row: int) -> None:
        units[row] = sharing.generate(tiny_models.prompt([row]), 9, seed=row).units[0]

    sharing.target.verify = watched
    caller.run([partial(call, row) for row in range(5)], 2)
    alone = [Decoder(sharing.target).generate(tiny_models.prompt([row]), 9, seed=row).units[0] for row in range(5)]
    assert where == {here} and all(torch.equal(units[row], own) for row, own in enumerate(alone))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("in_a_pass", [False, True])
def test_a_key_that_interrupts_ends_all_calls(in_a_pass: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = Caller()
    sharing = SharingDecoder(Decoder(TransformersTarget(tiny_models.llama())), rows=2, thread=caller)
    get, verify, rounds = caller._jobs.get, sharing.target.verify, iter(range(9))

    def interrupted(*args: Any) -> Any:
        if next(rounds, 0) == 4:
            raise KeyboardInterrupt
        return verify(*args) if in_a_pass else get()

    if in_a_pass:
        sharing.target.verify = interrupted
    else:
        monkeypatch.setattr(caller, "_jobs", SimpleNamespace(get=interrupted, put=caller._jobs.put))
    with pytest.raises(KeyboardInterrupt):
        caller.run([partial(sharing.generate, tiny_models.prompt([row]), 30, seed=row) for row in range(5)], 2)
    assert_idle(sharing)


def test_a_policy_sees_all_drafts_together_and_its_fault_ends_no_call() -> None:
    class Cutting:
        rows: ClassVar[list[int]] = []

        def budget(self) -> int:
            return 4

        def trim(self, draft: Any) -> Any:
            Cutting.rows.append(len(draft.valid))
            if len(Cutting.rows) > 3:
                raise RuntimeError("broken")
            return draft

        def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
            pass

    target = TransformersTarget(tiny_models.llama())
    sharing = SharingDecoder(Decoder(target, Suffix(), k=4, policy=Cutting()))
    calls = [partial(sharing.generate, tiny_models.prompt([row]), 30, seed=row) for row in range(4)]
    with pytest.warns(UserWarning, match="policy Cutting failed"):
        outputs = queued(sharing, calls)
    assert all(output.report.emitted == 30 for output in outputs) and max(Cutting.rows) > 1


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Match, Rejection])
def test_in_bfloat16_the_units_of_shared_passes_follow_the_models_law(rule: Callable[[], Rule]) -> None:
    """Passes of other shapes round otherwise, so that a text may be another one there; its law is the model's."""
    model, length = copy.deepcopy(tiny_models.llama()).to(torch.bfloat16), 3
    ids = tiny_models.prompt([1])["input_ids"]
    small = TransformersTarget(tiny_models.llama(), drafting=True)
    decoder = Decoder(TransformersTarget(model), DraftModel(small), rule(), k=2)
    sharing = SharingDecoder(decoder, rows=10**6)

    def sample(seed: int, rows: int) -> Tensor:
        parts = [range(rows)[first::4] for first in range(4)]
        calls = [
            partial(sharing.generate, ids.expand(len(part), -1), length, seed=[seed * rows + row for row in part])
            for part in parts
        ]
        return torch.cat([torch.stack(output.units) for output in queued(sharing, calls)])

    texts = torch.cartesian_prod(*[torch.arange(tiny_models.VOCAB)] * length)
    with torch.no_grad():
        logits = model(torch.cat([ids.expand(len(texts), -1), texts], 1)).logits[:, -length - 1 : -1].float()
    chances = logits.softmax(-1).gather(2, texts[..., None])[..., 0].prod(1)
    assert_follows(sample, chances.reshape([tiny_models.VOCAB] * length), rows=40_000)


def test_weights_are_read_again_when_nobody_runs_and_not_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call finds out about the model holds for those that begin beside it; the next one finds new weights."""
    model = copy.deepcopy(tiny_models.llama())
    sharing = SharingDecoder(Decoder(TransformersTarget(model)))
    renewed, renew = list[int](), target_module.renew
    monkeypatch.setattr(target_module, "renew", lambda kernels: renewed.append(1) or renew(kernels))
    calls = [partial(sharing.generate, tiny_models.prompt([row]), 9, seed=0) for row in range(4)]
    queued(sharing, calls)
    assert len(renewed) == 1
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    after = sharing.generate(tiny_models.prompt([0]), 9, seed=0).units[0]
    assert torch.equal(after, Decoder(TransformersTarget(model)).generate(tiny_models.prompt([0]), 9, seed=0).units[0])
    owning = SharingDecoder(Decoder(TransformersTarget(model)), owned=True)
    del renewed[:]
    for _ in range(3):
        owning.generate(tiny_models.prompt([0]), 9, seed=0)
    assert len(renewed) == 1
    model.train().config.attention_dropout = model.model.layers[0].self_attn.attention_dropout = 0.5
    with pytest.raises(ValueError, match=r"train\(\) mode"):
        sharing.generate(tiny_models.prompt([0]), 9, seed=0)
