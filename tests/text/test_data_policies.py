"""The data of a drafter: the target's own answers, a drafter's own ends, chosen tokens, counted vocabularies."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import smooth_l1_loss

import mmspec
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.training.losses import DraftLoss, TokenFilter, draft_loss, largest
from mmspec_text.drafters.heads.unroll import along, unrolled
from mmspec_text.training import data, written
from mmspec_text.training import teacher as teachers
from mmspec_text.training.chats import Chat
from mmspec_text.training.command import train_drafter
from mmspec_text.training.data import NO_PROMPTS, Data, read_data
from mmspec_text.training.draft_model import begun_model, new_draft_model, rewritten
from mmspec_text.training.heads import depth_metrics, drafted_ids, head_loss, shaken
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.run import HEADS, with_own
from mmspec_text.training.teacher import Kept, Teacher
from mmspec_text.training.texts import Answer, Answers, Batch, Stream
from mmspec_text.training.written import answered, questions
from tests.support import byte_llama
from tests.text.test_train_drafter import small

SMALL: dict[str, Any] = dict(steps=3, batch=2, context=32, depth=2, intermediate=16)
RECIPE = DrafterRecipe(**SMALL)
LOSS = DraftLoss("kl", hard=0.2, decay=0.5, features=3.0)
GUESSING = ("eagle", "fspad")
BLOCKWISE = ("dflash", "ppd", "gated-lora")
"""Kinds that learn the target's features, too."""
UNROLLED = [kind for kind in HEADS if kind != "falcon"]
"""Kinds that learn every depth of a draft by itself (Falcon's loss: tests/heads/test_falcon.py)."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    template = byte_llama.CHAT.replace("[assistant]{%", "[assistant]{% if loud is true %}!{% endif %}{%")
    return byte_llama.save(tmp_path_factory.mktemp("target") / "tiny", template, reach=256)


@pytest.fixture
def model(tiny: Path) -> Any:
    return load_model(str(tiny)).float().requires_grad_(False)


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Any:
    return load_tokenizer(str(tiny))


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Conversations of two turns; no question has a capital letter, and every answer is some."""
    file, lines = tmp_path / "chats.jsonl", []
    for number in range(30):
        said = [("user", f"say {number}"), ("assistant", "ABCA"), ("user", "more"), ("assistant", "ABD" * (number % 7))]
        lines.append(json.dumps({"messages": [{"role": role, "content": text or "B"} for role, text in said]}))
    file.write_text("\n".join(lines))
    return file


@pytest.fixture
def train(tiny: Path, tmp_path: Path) -> Callable[..., Path]:
    def once(data: Path | None, kind: str, name: str = "drafter", **options: Any) -> Path:
        files = None if data is None else [data]
        how = {
            "out": tmp_path / name,
            "work": tmp_path / f"{name}-work",
            "data": files,
            **small(kind, SMALL),
            **options,
        }
        train_drafter(str(tiny), kind=kind, **how)
        return tmp_path / name

    return once


def some(counted_from: int = 4) -> Batch:
    """Two sequences, the second one shorter."""
    ids = torch.randint(1, 257, (2, 12), generator=torch.Generator().manual_seed(3))
    rows = [Answer(ids[0], counted_from), Answer(ids[1, :9], counted_from)]
    return Batch.padded([(row.ids, row.counted) for row in rows], seed=5)


@pytest.mark.parametrize("kind", UNROLLED)
def test_the_loss_is_that_of_the_rows_that_count(kind: str, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written out row by row; and padding, whatever is in it, changes nothing."""
    monkeypatch.setattr(teachers, "TOP", 1000)  # the whole distribution
    head = HEADS[kind](model, RECIPE, "some")
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in head.network.parameters():
            weights.add_(0.3 * torch.randn_like(weights))
    teacher, batch = Teacher(model, head.boundaries), some()
    found = head_loss(teacher.said, LOSS, 2)(head.network, batch)
    total = 0.0
    for depth in range(2):
        rows = []
        for ids, length in ((batch.ids[0], 12), (batch.ids[1], 9)):
            features, logits = teacher(ids[None, :length])
            scored = list(along(head.network, features, ids[None, :length], 2))[depth][0]
            guesses = None
            filled = None
            if kind == "gated-lora":
                roots = torch.arange(1, len(scored) + 1)[None]
                filled = head.network.filled(ids[None, :length], roots, [len(scored)] * 2)
            if kind in GUESSING:
                guesses = list(unrolled(head.network, features, ids[None, :length], 2))[depth][0, :, -16:]
            for row in range(len(scored)):
                predicted = row + 2 + depth
                root = row + 1 if kind in BLOCKWISE else 4  # a block begins behind a unit that is learnt itself
                if min(root, predicted) >= 4 and predicted < length:
                    p = logits[0, predicted - 1].softmax(-1)
                    one = torch.tensor([True])
                    row_loss = draft_loss(scored[row][None], p[None], one, 0, LOSS, ids[predicted][None])
                    if guesses is not None:
                        row_loss = row_loss + 3 * smooth_l1_loss(guesses[row], features[0, predicted - 1])
                    if filled is not None:
                        plain, state = filled.plain[depth][0, row], filled.states[depth][0, row]
                        row_loss = row_loss + draft_loss(plain[None], p[None], one, 0, LOSS, ids[predicted][None])
                        row_loss = row_loss + 3 * (state - features[0, predicted - 1]).square().mean()
                    rows.append(float(row_loss.detach()))
        total += 0.5**depth * sum(rows) / len(rows)
    assert float(found.detach()) == pytest.approx(total / 1.5, rel=1e-4)
    more = torch.nn.functional.pad(batch.ids, (0, 5), value=77), torch.nn.functional.pad(batch.counted, (0, 5))
    assert float(head_loss(teacher.said, LOSS, 2)(head.network, Batch(*more)).detach()) == pytest.approx(
        float(found.detach()), rel=1e-5
    )
    one, other = (depth_metrics(head.network, teacher, text.apart(), 2) for text in (batch, Batch(*more)))
    assert one.length == pytest.approx(other.length) and one.accepted == pytest.approx(other.accepted, rel=1e-5)


@pytest.mark.parametrize("kind", ["eagle", "fspad", "eagle3"])
def test_noise_is_of_the_batch_and_for_heads_that_guess_features(kind: str, model: Any) -> None:
    head = HEADS[kind](model, RECIPE, "some")
    teacher, batch = Teacher(model, head.boundaries), some()
    plain, one, again = (head_loss(teacher.said, LOSS, 1, noise=noise)(head.network, batch) for noise in (0, 0.5, 0.5))
    assert torch.equal(one, again) and torch.equal(plain, one) == (kind == "eagle3")
    features = torch.zeros(2, 500, 4)
    off = shaken(features, batch, 0.5)
    assert 0.49 < float(off.abs().max()) <= 0.5 and abs(float(off.mean())) < 0.02
    assert not torch.equal(off, shaken(features, replace(batch, seed=6), 0.5))


def test_nothing_that_counts_is_no_loss(model: Any) -> None:
    head = HEADS["medusa"](model, RECIPE, "some")
    batch = some()
    loss = head_loss(Teacher(model, head.boundaries).said, LOSS, 2)(
        head.network, Batch(batch.ids, batch.counted & False)
    )
    loss.backward()
    assert float(loss.detach()) == 0 and all(
        bool((p.grad == 0).all()) for p in head.network.parameters() if p.grad is not None
    )


def test_the_target_answers_what_was_asked(chats: Path, model: Any, tokenizer: Any, tmp_path: Path) -> None:
    data = read_data([chats], 1200, model, tokenizer, RECIPE)
    assert data.writes == "answers" and len(data.prompts) == 3 and set(data.held) == {"chats"}
    (read,) = data.sources
    assert len(read.rows) == 58 and len(data.held["chats"].ids) == 2  # the last conversation is held out
    beginnings = {tuple(row.ids[: row.given].tolist()) for row in read.rows}
    assert all(tuple(row[row >= 0].tolist()) in beginnings for row in data.prompts)
    sources, held = with_own(model, tokenizer, data, replace(RECIPE, own_share=0.4), 64, tmp_path, str)
    wrote = sources[1]
    assert wrote.share / (wrote.share + read.share) == pytest.approx(0.4) and held is data.held
    assert [row.ids[: row.given].tolist() for row in wrote.rows] == [row[row >= 0].tolist() for row in data.prompts]
    (tmp_path / "alone").mkdir()
    alone, _ = with_own(model, tokenizer, data, replace(RECIPE, own_share=1.0), 64, tmp_path / "alone", str)
    assert len(alone) == 1 and torch.equal(alone[0].learnt, wrote.learnt)


def test_an_answer_in_a_batch_is_that_answer_alone(model: Any) -> None:
    """Prompts of different lengths, greedily: shorter ones have places before them that nobody sees."""
    prompts = torch.tensor([[-1, -1, 5, 6], [7, 8, 9, 10]])
    first, second = answered(model, prompts, new=6, temperature=0.0, seed=0)
    assert first.given == 2 and second.given == 4
    for row in (first, second):
        alone = model.generate(row.ids[None, : row.given], do_sample=False, max_new_tokens=6, pad_token_id=0)[0]
        assert row.ids.tolist() == alone[: len(row.ids)].tolist() and len(row.ids) > row.given


def test_the_target_asks_and_answers(model: Any, tokenizer: Any, train: Callable, tmp_path: Path) -> None:
    """Without any data, in its template."""
    data = read_data([], 1000, model, tokenizer, RECIPE)
    assert data.writes == "questions" and tokenizer.decode(data.prompts[0]) == "[user]" and len(data.prompts) == 2
    asked = [row[row >= 0] for row in questions(model, Chat(tokenizer), data.prompts, new=9, temperature=1.0, seed=0)]
    assert all(tokenizer.decode(row).startswith("[user]") for row in asked)
    assert all(tokenizer.decode(row).endswith("<end>\n[assistant]") for row in asked)
    loud = read_data([], 2500, model, tokenizer, RECIPE, {"loud": True})
    rows = with_own(model, tokenizer, loud, replace(RECIPE, seed=1), 256, tmp_path, str)[0][0].rows
    assert all(tokenizer.decode(row.ids[: row.given]).endswith("[assistant]!") for row in rows)
    facts = json.loads(
        (train(None, "medusa", self_generated=1800, template=["loud=true"]) / "training.json").read_text()
    )
    assert set(facts["held_out"]) == {"own"} and facts["template"] == {"loud": True}
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
    with pytest.raises(
        ValueError, match="writes no questions of a fitting length behind the beginning of a user's turn"
    ):
        questions(model, Chat(tokenizer), data.prompts, new=9, temperature=0.0, seed=0)  # likeliest is 0, the end


def test_a_head_of_a_few_ids_learns_conversations(
    chats: Path, train: Callable, model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train(chats, "eagle3", draft_vocab=8, self_generated=500)
    weights = load_file(folder / "model.safetensors")
    ids = (weights["d2t"] + torch.arange(8)).tolist()
    capitals = set(tokenizer("ABCD", add_special_tokens=False)["input_ids"])
    assert {0, *capitals} <= set(ids) and weights["lm_head.weight"].shape == (8, 16)
    prompt = tokenizer("[user]say 3<end>", return_tensors="pt", return_token_type_ids=False)
    plain = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    with mmspec.enable(model, "eagle", drafter=str(folder), k=2) as enabled:
        assert torch.equal(model.generate(**prompt, max_new_tokens=12, do_sample=False), plain)
    assert enabled.report.drafted > 0
    monkeypatch.setattr(written, "_written", lambda *arguments: pytest.fail("what the target wrote is kept"))
    train(chats, "eagle3", draft_vocab=8, self_generated=500)


def test_writing_goes_on_where_it_stopped(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is kept when it is finished, and draws by a seed of its own."""
    prompts, say = torch.arange(20).view(5, 4), []
    how: dict[str, Any] = {"new": 6, "temperature": 1.0, "seed": 3, "say": say.append}
    monkeypatch.setattr(written, "AT_ONCE", 2)
    whole = answered(model, prompts, **how)
    monkeypatch.setattr(model, "generate", stopping(model.generate, after=2))
    with pytest.raises(KeyboardInterrupt):
        answered(model, prompts, folder=tmp_path / "rows", **how)
    assert len(say) == 2 and say[-1].startswith("4 of 5 are written; the others take about")
    monkeypatch.undo()
    monkeypatch.setattr(written, "AT_ONCE", 2)
    resumed = answered(model, prompts, folder=tmp_path / "rows", **how)
    assert [row.ids.tolist() for row in resumed] == [row.ids.tolist() for row in whole]
    assert say[2:] == ["5 of 5 are written; the others take about 0 minutes"], "what was kept took no time"
    assert len({tuple(row.ids[4:].tolist()) for row in whole}) > 1


def stopping(generate: Callable[..., Any], after: int) -> Callable[..., Any]:
    """`generate`, which the user stops behind so many calls."""
    calls: list[None] = []

    def stopped(**how: Any) -> Any:
        calls.append(None)
        if len(calls) > after:
            raise KeyboardInterrupt
        return generate(**how)

    return stopped


def test_a_vocabulary_counts_what_is_learnt(model: Any, tokenizer: Any) -> None:
    """Not what is asked; equal counts by id; special ids are there whether they occur or not."""
    answers = Answers([Answer(torch.tensor([9, 9, 9, 9, 7, 7, 5]), 4)], 1.0)
    streams = [answers, Stream(torch.tensor([6, 5]), 1.0)]
    assert drafted_ids(streams, 3, model, tokenizer).tolist() == [0, 5, 7]
    assert drafted_ids(streams, 5, model, tokenizer).tolist() == [0, 1, 5, 6, 7]
    assert drafted_ids(streams, 257, model, tokenizer) is None
    more = copy.deepcopy(tokenizer)
    model.generation_config.eos_token_id = [0, 200]
    assert drafted_ids(streams, 3, model, more).tolist() == [0, 5, 200]
    with pytest.raises(ValueError, match=r"a vocabulary of 1 ids \(draft_vocab\) has no place for the 2 special ones"):
        drafted_ids(streams, 1, model, more)


def test_a_draft_model_ends_sequences_itself(model: Any) -> None:
    student, batch = new_draft_model(model, 0).eval(), some()
    same, units = rewritten(student, batch, 0.0, 0.0)
    assert same is batch and units is batch.ids
    new, units = rewritten(student, batch, 1.0, 0.0)
    for row, length in ((0, 12), (1, 12)):
        alone = student.generate(batch.ids[row : row + 1, :4], do_sample=False, max_new_tokens=8, pad_token_id=0)[0]
        wrote = alone[:length]
        assert new.ids[row, : len(wrote)].tolist() == wrote.tolist()
        assert new.counted[row].nonzero()[:, 0].tolist() == list(range(3, len(wrote) - 1))
        assert set(units[row, : len(wrote)].tolist()) == {-1}
    sampled, again = (rewritten(student, batch, 1.0, 1.0)[0] for _ in range(2))
    assert torch.equal(sampled.ids, again.ids) and not torch.equal(sampled.ids, new.ids)
    text = Batch.whole(torch.arange(1, 25).view(2, 12), seed=1)
    ended, _ = rewritten(student, text, 1.0, 0.0)
    assert torch.equal(ended.ids[:, :6], text.ids[:, :6]) and not torch.equal(ended.ids, text.ids)
    halves = [rewritten(student, replace(text, seed=seed), 0.5, 0.0)[0].counted.all(1) for seed in range(20)]
    assert 0.2 < float(torch.stack(halves).float().mean()) < 0.8 and len(torch.stack(halves).unique(dim=0)) > 2


def test_a_draft_model_that_exists_is_trained_further(
    chats: Path, train: Callable, model: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its own weights, by AdamW alone; the filter compares with a reference that is given, and trains none."""
    first = train(chats, "model", "first", loss="hard")
    further = replace(RECIPE, draft_model=str(first), loss="jsd", beta=0.1)
    assert (further.draft_loss.kind, further.draft_loss.beta) == ("jsd", 0.1)
    begun, stored = begun_model(model, further).state_dict(), load_model(str(first)).float().state_dict()
    assert all(torch.equal(value, stored[key]) for key, value in begun.items())
    seen: list[Any] = []
    how = {"keep_tokens": 0.4, "loss": "jsd", "beta": 0.1, "learning_rate": 1e-5}
    monkeypatch.setattr(
        TokenFilter, "kept", lambda self, *of, kept=TokenFilter.kept: seen.append(self) or kept(self, *of)
    )
    folder = train(chats, "model", "second", draft_model=str(first), reference=str(first), **how)
    assert len({id(one.reference) for one in seen}) == 1 and not (tmp_path / "second-work" / "reference").exists()
    held = seen[0].reference.state_dict()
    assert all(torch.equal(value, stored[key]) for key, value in held.items()), "nobody trains the reference"
    moved = [
        float((value - stored[key]).abs().max()) for key, value in load_model(str(folder)).float().state_dict().items()
    ]
    assert 0 < max(moved) < 1e-3
    prompt = tokenizer("[user]say 3<end>", return_tensors="pt", return_token_type_ids=False)
    plain = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    with mmspec.enable(model, "draft-model", drafter=str(folder), k=2) as enabled:
        assert torch.equal(model.generate(**prompt, max_new_tokens=12, do_sample=False), plain)
    assert enabled.report.drafted > 0


def test_policies_of_a_draft_model_run(chats: Path, train: Callable, tmp_path: Path) -> None:
    folder = train(chats, "model", drafter_share=0.5, keep_tokens=0.4)
    facts = json.loads((folder / "training.json").read_text())
    assert facts["recipe"]["drafter_share"] == 0.5 and facts["held_out"]["chats"]["nats_per_token"] > 0
    assert (tmp_path / "drafter-work" / "reference" / "checkpoint.pt").is_file()


def test_the_filter_keeps_the_share_of_all_tokens_that_count() -> None:
    values = torch.tensor([[5.0, 1.0, 4.0], [3.0, 9.0, 2.0]])
    mask = torch.tensor([[True, True, True], [True, False, True]])
    assert largest(values, mask, 0.4).tolist() == [[True, False, True], [False, False, False]]  # 2 of 5, rounded up
    assert largest(values, mask, 0.41).sum() == 3 and torch.equal(largest(values, mask, 1.0), mask)
    assert not largest(values, mask & False, 0.4).any()
    same = largest(torch.zeros(10), torch.ones(10, dtype=torch.bool), 0.3)
    assert same.sum() == 3  # of equal ones no more than the share


@pytest.mark.slow
def test_the_filter_has_no_limit_of_numbers() -> None:
    """As torch.quantile has, at 2 ** 24."""
    values = torch.rand(2**24 + 10)
    assert largest(values, torch.ones_like(values, dtype=torch.bool), 0.25).sum() == 2**22 + 3


@pytest.mark.parametrize("kind", UNROLLED)
def test_filtered_rows_are_those_where_most_is_to_be_learnt(
    kind: str, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Δ, written out; all tokens are plain distillation; and the reference gets no gradient."""
    monkeypatch.setattr(teachers, "TOP", 1000)
    head, other = (HEADS[kind](model, replace(RECIPE, seed=seed), "some") for seed in (0, 1))
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in other.network.parameters():
            weights.add_(0.3 * torch.randn_like(weights))
    teacher, batch = Teacher(model, head.boundaries), some()
    loss = DraftLoss("kl", decay=0.5)
    every = head_loss(teacher.said, loss, 2, TokenFilter(other.network, 1.0))(head.network, batch)
    assert torch.equal(every, head_loss(teacher.said, loss, 2)(head.network, batch))
    found = head_loss(teacher.said, loss, 2, TokenFilter(other.network, 0.4))(head.network, batch)
    features, logits = teacher(batch.ids)
    drafts = [list(along(network, features, batch.ids, 2)) for network in (head.network, other.network)]
    total = 0.0
    for depth in range(2):
        p = logits.softmax(-1)[:, depth + 1 : depth + 1 + drafts[0][depth].shape[1]]
        counted = batch.counted[:, depth + 1 : depth + 1 + p.shape[1]]
        counted = counted & batch.counted[:, : p.shape[1]] if kind in BLOCKWISE else counted
        mine, theirs = (
            torch.nn.functional.kl_div(of[depth].log_softmax(-1), p, reduction="none").sum(-1) for of in drafts
        )
        learnt = mine
        if kind == "gated-lora":  # whose rows are chosen by the sampler, and learnt by the output layer, too
            roots = torch.arange(1, p.shape[1] + 1).expand(2, -1)
            plain = head.network.filled(batch.ids, roots, [p.shape[1]] * 2).plain[depth]
            learnt = mine + torch.nn.functional.kl_div(plain.log_softmax(-1), p, reduction="none").sum(-1)
        rows = sorted(zip((mine - theirs)[counted].tolist(), learnt[counted].tolist(), strict=True), reverse=True)
        kept = rows[: -(-len(rows) * 4 // 10)]
        total += 0.5**depth * sum(one for _, one in kept) / len(kept)
    assert float(found.detach()) == pytest.approx(total / 1.5, rel=1e-4)
    found.backward()
    assert all(p.grad is None for p in other.network.parameters())


@pytest.mark.slow
def test_a_filtered_head_is_trained_anew_beside_its_reference(chats: Path, train: Callable, tmp_path: Path) -> None:
    """The reference has seen one epoch of forward KL; the head begins where it began."""
    train(chats, "eagle3", keep_tokens=0.5, loss="tv", hard=0.5, steps=40, name="filtered")
    work = tmp_path / "filtered-work"
    reference = torch.load(work / "reference" / "checkpoint.pt", weights_only=True)
    assert reference["step"] == 29  # 58 answers, two at a time
    train(chats, "eagle3", loss="kl", hard=0.0, steps=29, name="plain")
    plain = torch.load(tmp_path / "plain-work" / "drafter" / "checkpoint.pt", weights_only=True)
    assert all(torch.equal(value, reference["model"][key]) for key, value in plain["model"].items())
    head = torch.load(work / "drafter" / "checkpoint.pt", weights_only=True)
    assert head["step"] == 40 and not torch.equal(head["model"]["fc.weight"], reference["model"]["fc.weight"])


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (
            "eagle3",
            {"drafter_share": 0.5},
            "drafter_share is for --kind model, and not for eagle3: heads write no text",
        ),
        ("medusa", {"draft_vocab": 9}, "draft_vocab is for --kind eagle3, and not for medusa: others score all"),
        (
            "mtp",
            {"own_output": False},
            "own_output is for --kind medusa, and not for mtp: others score with the target",
        ),
        ("eagle3", {"keep_tokens": 0.0}, "keep_tokens is a share above 0 and up to 1, and not 0.0"),
        (
            "mtp",
            {"anchors": 9},
            "anchors is for --kind dflash or ppd or gated-lora or pard, and not for mtp: others learn",
        ),
        ("ppd", {"block_share": 0.5}, "block_share is for --kind pard, and not for ppd: others learn whole drafts"),
        ("mtp", {"draft_model": "x"}, "draft_model is for --kind pard or model, and not for mtp: heads begin anew"),
        ("model", {"draft_model": "x"}, "no model 'x'"),
        ("eagle3", {"reference": "x", "keep_tokens": 0.4}, "reference is for --kind model, and not for eagle3"),
        ("model", {"reference": "x"}, "reference is what the filter of tokens compares with: give its share"),
        ("model", {"reference": "x", "keep_tokens": 0.4}, "no model 'x'"),
        ("model", {"beta": 0.1}, r"beta is of the loss jsd, and this one is kl \(loss\)"),
        ("pard", {"block_share": 0.0}, "block_share is a share above 0 and up to 1, and not 0.0"),
        ("dflash", {"anchors": 513}, "anchors are from 1 to 512, and not 513"),
        ("model", {"drafter_share": 1.5}, r"drafter_share is a share in \[0, 1\], and not 1.5"),
    ],
)
def test_policies_that_there_are_not(
    kind: str, options: dict[str, Any], said: str, chats: Path, train: Callable, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        train(chats, kind, **options)
    assert not (tmp_path / "drafter").exists() and not (tmp_path / "drafter-work").exists()


def test_conversations_that_are_too_few_or_too_long(
    chats: Path, train: Callable, tmp_path: Path, model: Any, tokenizer: Any
) -> None:
    one = tmp_path / "one.jsonl"
    one.write_text(chats.read_text().splitlines()[0])
    with pytest.raises(ValueError, match="has one conversation; training holds one out, so that it takes two and more"):
        train(one, "eagle3")
    words = {"role": "user", "content": "long " * 30}, {"role": "assistant", "content": "A"}
    one.write_text("\n".join([json.dumps({"messages": words})] * 2))
    with pytest.raises(ValueError, match="no conversation leaves the target room for an answer: it reads 256 tokens"):
        train(one, "eagle3", self_generated=100)
    data = read_data([one], 0, model, tokenizer, RECIPE)
    assert isinstance(data, Data) and data.prompts is NO_PROMPTS and bool(data.held["one"].counted.any())


def test_conversations_of_another_target(chats: Path, model: Any, tokenizer: Any) -> None:
    """Their text is less likely than noise."""
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(60)
    with pytest.raises(ValueError, match=r"nats per token, and a uniform guess over its 257 ids has 5\.5"):
        read_data([chats], 0, model, tokenizer, RECIPE)


@pytest.mark.parametrize("kind", ["medusa", "dflash"])
def test_an_answer_of_one_unit_behind_a_long_question(
    kind: str, train: Callable, tmp_path: Path, model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is learnt and counted, at every depth, though the sequence is cut before it; padding is no text."""
    seen = []
    monkeypatch.setattr(data, "refuse_foreign", lambda logits, window, vocab: seen.append(window))
    words = {"role": "user", "content": "long " * 30}, {"role": "assistant", "content": "A"}
    file = tmp_path / "one.jsonl"
    file.write_text("\n".join([json.dumps({"messages": words})] * 3))
    facts = json.loads((train(file, kind, depth=7) / "training.json").read_text())
    assert facts["held_out"]["one"]["length"] >= 1 and tokenizer.decode(seen[0]).endswith("[assistant]A<end>")
    (source,) = read_data([file], 0, model, tokenizer, RECIPE).sources
    ids, counted = source.cut(32, torch.Generator())
    assert len(ids) == 32 and int(counted.nonzero().max()) < 32 - 7


@pytest.mark.parametrize("own", [None, torch.tensor([0, 3, 70, 200])])
def test_a_text_that_comes_again_is_read_once(
    own: torch.Tensor | None, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept of it is what the teacher says, in half precision; whatever it is padded to, beside other texts."""
    teacher, batch = Teacher(model, (0, 2)), some()
    kept, first = Kept(teacher, tmp_path, 3, 40), Teacher(model, (0, 2)).said(batch.ids, own)
    kept.said(batch.ids, own)
    other = torch.arange(30)[None]
    kept.said(other, own)
    monkeypatch.setattr(teacher, "said", lambda *_: pytest.fail("it is kept"))
    again = kept.said(torch.nn.functional.pad(batch.ids.flip(0), (0, 3)), own)
    for row, length in ((0, 12), (1, 9)):
        places = 1 - row, slice(length)
        assert torch.allclose(again.features[places].float(), first.features[row, :length], rtol=1e-2)
        assert torch.allclose(again.top.p[places], first.top.p[row, :length], atol=1e-3)
        assert torch.equal(again.top.ids[places], first.top.ids[row, :length])
    assert not list(tmp_path.iterdir())


def test_a_run_that_repeats_its_texts_reads_them_once(
    chats: Path, train: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    monkeypatch.setattr(Teacher, "said", lambda *given, said=Teacher.said: read.append(len(given[1])) or said(*given))
    train(chats, "eagle3", steps=200)
    assert "the target reads every text once" in capsys.readouterr().out and sum(read) < 200
    train(chats, "eagle3", "once")
    assert "the target reads every text once" not in capsys.readouterr().out
    monkeypatch.setattr(teachers, "SPARE", 1 << 60)
    read.clear()
    train(chats, "eagle3", "full", steps=200)
    assert sum(read) == 400, "no room on the disk"


def test_a_long_answer_is_learnt_in_pieces() -> None:
    """The same ones each time, so that they can be kept; every unit is in one."""
    row = Answer(torch.arange(100), 10)
    assert row.starts(32) == [0, 15, 30, 45, 60, 75, 84] and Answer(torch.arange(12), 4).starts(32) == [0]
    learnt = [ids[counted] for ids, counted in (row.piece(start, 32) for start in row.starts(32))]
    assert torch.cat(learnt).unique().tolist() == [*range(9, 99)]
    assert Answers([row], 1.0).pieces(32) == 7
