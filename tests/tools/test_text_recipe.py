"""Recipe `text` in miniature: what it writes, what it holds out; an interrupted run ends where a whole one does."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaForCausalLM

from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.training import loop
from mmspec.training.loop import LoopOptions
from mmspec.training.losses import next_token
from tools.train.text import corpus
from tools.train.text import llama as train
from tools.train.text.language import TrainingText, distillation_loss

SIZES = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
RECIPE = train.TextRecipe(vocab=300, context=16, batch=2, steps=4, whole_steps=3, drafter_steps=2)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A standard library of a few files; `heapq.py` and `json/encoder.py` are held out by name."""
    root = tmp_path / "library"
    files = {
        "first.py": "def first(x):\n    return x + 1\n" * 9,
        "json/decoder.py": "class Decoder:\n    pass\n" * 9,
        "heapq.py": "def zebra(zebra):\n    return zebra\n" * 9,
        "json/encoder.py": "class Zebra:\n    zebra = True\n" * 9,
        "test/test_first.py": "assert quokka\n" * 9,
        "site-packages/other.py": "import quokka\n" * 9,
        "large.py": "quokka = 1\n" * 40_000,
        "empty.py": "",
        "json/notes.txt": "quokka",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    play = "".join(f"KING {i}:\nTo be or not to be.\n\n" for i in range(200))
    (tmp_path / "play.txt").write_text(play + "THE ZEBRA:\nWho would hold a zebra out?\n" * 3)
    return tmp_path / "play.txt"


@pytest.fixture
def run(library: Path, prose: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`run(name, say)`: the whole recipe with tiny models, a checkpoint and a line after every step; returns `out`."""
    read = corpus.load
    monkeypatch.setattr(corpus, "load", lambda files: read(files, library))
    monkeypatch.setattr(train, "TARGET", SIZES)
    monkeypatch.setattr(train, "DRAFTER", {**SIZES, "hidden_size": 8})
    often = {"warmup": 1, "save_every": 1, "log_every": 1}
    monkeypatch.setattr(train, "LoopOptions", lambda steps, rate, **more: LoopOptions(steps, rate, **more | often))

    def once(name: str, say: Callable[[str], None] = lambda line: None) -> Path:
        train.train(tmp_path / name / "out", tmp_path / name / "work", [prose], RECIPE, say=say)
        return tmp_path / name / "out"

    return once


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def checkpoint(work: Path) -> dict[str, Any]:
    return torch.load(work / loop.CHECKPOINT, weights_only=True)


def test_both_models_are_written_whole_and_load(run: Callable[..., Path]) -> None:
    lines: list[str] = []
    out = run("whole", lines.append)
    assert sorted(p.name for p in out.iterdir()) == ["text-14m", "text-1m"]
    assert not list(out.parent.rglob("*.part*"))
    for name, folder, steps in (("text-14m", "target-whole", 3), ("text-1m", "drafter", 2)):
        half = load_file(out / name / "model.safetensors")
        assert {value.dtype for value in half.values()} == {torch.float16}
        trained = checkpoint(out.parent / "work" / folder)
        assert trained["step"] == steps
        assert all(torch.equal(value, trained["model"][key].half()) for key, value in half.items())
        tokenizer, model = load_tokenizer(str(out / name)), load_model(str(out / name))
        assert len(tokenizer) == model.config.vocab_size == 300 and tokenizer.padding_side == "left"
        assert (model.config.eos_token_id, model.config.pad_token_id) == (
            tokenizer.eos_token_id,
            tokenizer.pad_token_id,
        )
        text = 'def f(x):\n    return "naïve – 日本"\n'
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
        facts = json.loads((out / name / "training.json").read_text())
        assert facts["parameters"] == sum(p.numel() for p in LlamaForCausalLM(model.config).parameters())
        assert set(facts["held_out_nats_per_token"]) == {"code", "prose"} and facts["recipe"]["steps"] == 4
    log = (out.parent / "work" / "target" / loop.LOG).read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [1, 2, 3, 4]
    assert any("4/4" in line for line in lines)


def interrupt_at(*marks: str) -> Callable[[str], None]:
    def say(line: str) -> None:
        if any(mark in line for mark in marks):
            raise KeyboardInterrupt

    return say


def test_an_interrupted_run_ends_where_a_whole_one_does(run: Callable[..., Path]) -> None:
    whole = run("whole")
    for stop in ("step 2/4", "step 2/2"):  # in the target's stage, and in the drafter's
        with pytest.raises(KeyboardInterrupt):
            run("broken", interrupt_at(stop))
    work = whole.parent.parent / "broken" / "work"
    # Lines come before checkpoints: the interrupt keeps the step that it fell behind.
    assert checkpoint(work / "target")["step"] == 4 and checkpoint(work / "drafter")["step"] == 2
    lines: list[str] = []
    broken = run("broken", lines.append)
    assert not any(line.startswith("step") and "/4" in line for line in lines), "a finished stage was run again"
    assert not list(broken.parent.rglob("*.part*"))
    for name, folder in (("text-14m", "target-whole"), ("text-1m", "drafter")):
        assert same(load_file(whole / name / "model.safetensors"), load_file(broken / name / "model.safetensors"))
        a, b = (checkpoint(out.parent / "work" / folder) for out in (whole, broken))
        assert same(a["model"], b["model"]) and a["step"] == b["step"]


def test_it_resumes_from_the_last_checkpoint(run: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run("broken", interrupt_at("step 3/4"))
    held = checkpoint(tmp_path / "broken" / "work" / "target")
    assert held["step"] == 3 and not (tmp_path / "broken" / "out").exists()
    lines: list[str] = []
    run("broken", lines.append)
    assert "resuming at step 3 of 4" in lines
    steps = [line.split()[1] for line in lines if line.startswith("step")]
    assert steps == ["4/4", "1/3", "2/3", "3/3", "1/2", "2/2"]


def test_an_interrupt_while_a_checkpoint_is_written_leaves_a_whole_one(
    run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = Path.write_bytes, []

    def half(path: Path, data: Any) -> int:
        calls.append(path)
        if len(calls) == 3:
            write(path, data[:1000])
            raise KeyboardInterrupt
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(KeyboardInterrupt):
        run("broken")
    work = tmp_path / "broken" / "work"
    assert checkpoint(work / "target")["step"] == 3 and not list(work.rglob("*.part*"))
    out = run("broken")
    assert checkpoint(work / "target")["step"] == 4 and not list(work.rglob("*.part*"))
    monkeypatch.undo()
    assert (out / "text-1m").is_dir()


def test_what_is_held_out_is_not_trained_on(run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    batch = TrainingText.batch_at

    def watching(text: TrainingText, *args: Any, **kwargs: Any) -> Tensor:
        seen[:] = text.code, text.prose
        return batch(text, *args, **kwargs)

    monkeypatch.setattr(TrainingText, "batch_at", watching)
    out = run("whole")
    texts = [load_tokenizer(str(out / "text-14m")).decode(stream) for stream in seen]
    assert "def first(x)" in texts[0] and "class Decoder" in texts[0] and "To be or not to be" in texts[1]
    for text in texts:
        assert "zebra" not in text.lower() and "quokka" not in text


def test_long_sequences_come_last(run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    batch = TrainingText.batch_at

    def watching(*args: Any, **kwargs: Any) -> Tensor:
        ids = batch(*args, **kwargs)
        shapes.append(tuple(ids.shape))
        return ids

    monkeypatch.setattr(TrainingText, "batch_at", watching)
    run("whole")
    half, whole = (2 * RECIPE.batch, RECIPE.context // 2), (RECIPE.batch, RECIPE.context)
    assert shapes == [half, half, half, whole, *[whole] * RECIPE.whole_steps, half, half]


def test_the_corpus(library: Path, prose: Path, tmp_path: Path) -> None:
    loaded = corpus.load([prose], library)
    assert [text[:9] for text in loaded.code] == ["def first", "class Dec"]
    assert ["ebra" in text for text in loaded.held_out_code] == [True, True]
    (play,), (rest,) = loaded.prose, loaded.held_out_prose
    assert play.startswith("KING 0") and rest.endswith("zebra out?\n") and "ebra" not in play
    assert prose.read_text() == play + "\n\n" + rest
    assert 0 < len(rest) <= 0.05 * len(prose.read_text()) + 2
    with pytest.raises(ValueError, match="no prose file at"):
        corpus.load([tmp_path / "none.txt"], library)
    prose.write_text("one line\n" * 50)
    with pytest.raises(ValueError, match="no blank line in its last 5%"):
        corpus.load([prose], library)


def test_the_real_library_holds_out_what_is_listed() -> None:
    import sysconfig

    root, loaded = Path(sysconfig.get_paths()["stdlib"]), corpus.load([])
    listed = [root / name for name in corpus.HELD_OUT_MODULES if (root / name).exists()]
    assert len(listed) >= 18
    assert sorted(loaded.held_out_code) == sorted(path.read_text(encoding="utf-8") for path in listed)
    assert len(loaded.code) > 300 and not set(loaded.held_out_code) & set(loaded.code)


def test_losses_are_their_formulas() -> None:
    student = torch.randn(2, 5, 7, requires_grad=True)
    teacher = torch.randn(2, 5, 7, requires_grad=True)
    ids = torch.randint(7, (2, 5))

    def distillation(student: Tensor, teacher: Tensor, ids: Tensor, hard: float = 0.1) -> Tensor:
        of: Any = lambda logits: lambda ids, use_cache: SimpleNamespace(logits=logits)  # noqa: E731
        return distillation_loss(of(teacher), hard)(of(student), ids)

    total, entropy, n = 0.0, 0.0, 8
    for b in range(2):
        for t in range(4):
            p, q = teacher[b, t].softmax(0).tolist(), student[b, t].softmax(0).tolist()
            total += sum(x * (math.log(x) - math.log(y)) for x, y in zip(p, q, strict=True)) / n
            entropy -= math.log(q[int(ids[b, t + 1])]) / n
    assert next_token(student, ids).item() == pytest.approx(entropy, rel=1e-5)
    for hard in (0.0, 0.1, 1.0):
        loss = distillation(student, teacher, ids, hard)
        assert loss.item() == pytest.approx((1 - hard) * total + hard * entropy, rel=1e-5)
    distillation(student, teacher, ids).backward()
    assert teacher.grad is None and student.grad.abs().sum() > 0
    assert distillation(teacher, teacher, ids, hard=0.0).item() == pytest.approx(0, abs=1e-6)
