"""`mmspec train drafter` in miniature: what it writes, reads and refuses, and how it resumes."""

import copy
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, Mamba2Config, Mamba2ForCausalLM

import mmspec
from mmspec.files import SEAL, save_sealed
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.training import loop
from mmspec.training.losses import draft_loss
from mmspec_ssm.target import RecurrentTarget
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from mmspec_text.training import eagle, run, trained
from mmspec_text.training import written as written_text
from mmspec_text.training.chats import Chat
from mmspec_text.training.command import train_drafter
from mmspec_text.training.data import read_file
from mmspec_text.training.eagle import config_of, new_head, tensors_of, usual_boundaries, write_head
from mmspec_text.training.heads import depth_metrics, head_loss
from mmspec_text.training.new_heads import begun_dflash, inner_boundaries
from mmspec_text.training.recipe import DRAFTERS, ONLY, DrafterKind, DrafterRecipe
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.texts import Batch, Stream, Texts
from mmspec_text.training.written import answered
from tests.support import byte_llama
from tests.support.cached_heads import teacher_forced
from tests.support.examples import ssm
from tests.support.zoo import ARCHITECTURES, RECURRENT

LINES = [{"text": f"def f{i}(x):\n    return x + {i}\n"} for i in range(60)]
SLOW = [
    pytest.param(kind, marks=pytest.mark.slow)
    for kind in ("fspad", "falcon", "clover", "mtp", "medusa", "dflash", "ppd", "gated-lora", "pard")
]
TRIAL = run.whether_it_pays
SMALL: dict[str, Any] = dict(steps=3, batch=2, context=16, depth=2, intermediate=16)


def small(kind: str, numbers: dict[str, Any] = SMALL) -> dict[str, Any]:
    """The numbers that a kind has."""
    return {name: value for name, value in numbers.items() if kind in ONLY.get(name, ((kind,), ""))[0]}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of random weights over bytes."""
    return byte_llama.save(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture
def model(tiny: Path) -> Any:
    return load_model(str(tiny)).float().requires_grad_(False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(tmp_path / "texts.jsonl", LINES)


def written(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def train(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`train(data, kind, name, **options)`: the command without its trial; returns the drafter's folder."""
    monkeypatch.setattr(run, "whether_it_pays", lambda *_: "")

    def once(data: Path | list[Path] | None, kind: str = "eagle3", name: str = "drafter", **options: Any) -> Path:
        out = tmp_path / name
        files = [data] if isinstance(data, Path) else data
        how = {"out": out, "work": tmp_path / f"{name}-work", "data": files, **small(kind), **options}
        train_drafter(str(tiny), kind=kind, **how)
        return out

    return once


def test_what_a_run_will_be_is_said_first_and_whether_it_pays_last(
    train: Callable, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first step; too little text for so many steps is a warning; behind the last, whether it pays."""
    monkeypatch.setattr(run, "OFTEN", 0.01)
    monkeypatch.setattr(run, "whether_it_pays", TRIAL)
    with pytest.warns(UserWarning, match=r"each token is seen about 0 times in 3 steps, so that .* know them by heart"):
        train(data)
    first, second, *_, tried, further = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"training on [\d,]+ tokens, each about 0\.\d+ times", first)
    assert re.fullmatch(r"[\d,]+ parameters, up to 0\.0 GB while they learn; 3 steps", second)
    assert re.match(
        r"Tried here on two held-out beginnings: 96 tokens in \d+ passes, .* It (does not pay|pays) here", tried
    )
    assert re.match(r"Next: mmspec generate text --model \S+ --method eagle --drafter \S+ 'a prompt'", further)


def test_a_head_is_written_and_drafts(train: Callable, data: Path, model: Any, tiny: Path) -> None:
    folder = train(data, self_generated=600)
    facts = json.loads((folder / "training.json").read_text())
    assert facts["kind"] == "eagle3" and set(facts["held_out"]) == {"texts"}
    assert facts["recipe"]["steps"] == 3 and "layers" not in facts["recipe"], "numbers of other kinds are left out"
    text = (folder / "README.md").read_text()
    assert 'mmspec.enable(model, "eagle"' in text and "- texts: `{" in text and "base_model" not in text
    assert json.loads((folder / "config.json").read_text())["transformer_layer_config"]["rope_theta"] == 10_000
    assert len(facts["held_out"]["texts"]["right"]) == 2 and not list(folder.parent.glob(".*part*"))
    head = Eagle(EagleOptions(model=str(folder), probe=False))
    assert head.checkpoint.layout.name == "speculators" and head.checkpoint.ignored == ()
    prompt = load_tokenizer(str(tiny))("def f1(x):", return_tensors="pt", return_token_type_ids=False)
    plain = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    with mmspec.enable(model, "eagle", drafter=str(folder), k=2) as enabled:
        assert torch.equal(model.generate(**prompt, max_new_tokens=12, do_sample=False), plain)
    assert enabled.report.drafted > 0


@pytest.mark.parametrize("where", ["here", "target", "above the target", "data", "work", "in the work", "a stranger's"])
def test_a_folder_with_somebodys_work_is_never_replaced(
    where: str, data: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before anything runs; and so is such a folder as the folder of work."""
    target, stranger = tmp_path / "models" / "tiny", tmp_path / "hers"
    shutil.copytree(tiny, target)
    for folder in (stranger, tmp_path / "here"):
        folder.mkdir()
        (folder / "notes.md").write_text("hers")
    monkeypatch.chdir(tmp_path / "here")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    work = tmp_path / "work"
    out = {
        "here": Path(),
        "target": target,
        "above the target": target.parent,
        "data": data.parent,
        "work": work,
        "in the work": work / "drafter",
        "a stranger's": stranger,
    }[where]
    how: dict[str, Any] = {"data": [data], **small("eagle3")}
    with pytest.raises(ValueError, match=r"is or holds|holds 'notes\.md'|is in .* \(--work\)"):
        train_drafter(str(target), out, work=work, **how)
    with pytest.raises(ValueError, match="not those of a run"):
        train_drafter(str(target), tmp_path / "out", work=stranger, **how)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_drafter_that_was_left_alone_is_trained_anew(train: Callable, data: Path, tmp_path: Path) -> None:
    first = train(data)
    shutil.rmtree(tmp_path / "drafter-work")
    assert json.loads((train(data, seed=1) / "training.json").read_text())["recipe"]["seed"] == 1
    (first / "README.md").write_text("hers")
    with pytest.raises(ValueError, match=r"'README\.md', which was not written there by this .* or was changed"):
        train(data, seed=1)


def test_training_goes_on_from_a_head(train: Callable, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a step its weights and ids are as they were; of another layout or target it is refused."""
    first = train(data, draft_vocab=64)
    monkeypatch.setattr(trained, "fit", lambda *_: None)
    after = train(data, name="after", head=str(first), **dict.fromkeys(("draft_vocab", "intermediate")))
    one, other = (load_file(at / "model.safetensors") for at in (first, after))
    assert one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())
    assert json.loads((first / "config.json").read_text()) == json.loads((after / "config.json").read_text())
    for name, said in (
        ("mmspec/text-14m-eagle3", "reads states of 384 numbers"),
        ("mmspec/text-14m", "has no fc.weight"),
    ):
        with pytest.raises(ValueError, match=said):
            train(data, name="none", head=name, **dict.fromkeys(("draft_vocab", "intermediate")))
    with pytest.raises(ValueError, match="has its own sizes"):
        train(data, name="none", head=str(first), draft_vocab=64)
    other = dict(fused=False), dict(projected=False), dict(latent=object())
    for changes in other:  # what would not be written as it was read is refused before training
        stored = read_checkpoint(str(first))
        changed = replace(stored, architecture=replace(stored.architecture, **changes))
        monkeypatch.setattr(eagle, "read_checkpoint", lambda _, changed=changed: changed)
        with pytest.raises(ValueError, match="goes on from plain EAGLE-3 heads"):
            eagle.trained_before(load_model("mmspec/text-1m"), "it")


@pytest.mark.parametrize(
    "kind", ["eagle", "fspad", "falcon", "clover", "mtp", "medusa", "dflash", "ppd", "gated-lora", "pard"]
)
def test_other_heads_are_written_and_draft(
    kind: str, train: Callable, data: Path, model: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the method of the kind reads them; a run that was interrupted and resumed writes the same ones."""
    monkeypatch.setattr(DrafterRecipe, "loop", often(DrafterRecipe.loop))
    folder = train(data, kind)
    assert json.loads((folder / "training.json").read_text())["kind"] == kind
    prompt = load_tokenizer(str(tiny))("def f1(x):", return_tensors="pt", return_token_type_ids=False)
    plain = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    for form in ({"form": "chain"}, {"form": "rerank", "width": 2, "nodes": 4}):
        with mmspec.enable(model, run.KINDS[kind][0], drafter=str(folder), k=2, **form) as enabled:
            assert torch.equal(model.generate(**prompt, max_new_tokens=12, do_sample=False), plain)
        assert enabled.report.drafted > 0
    monkeypatch.setattr("typer.echo", stop)
    with pytest.raises(typer.Exit):
        train(data, kind, name="broken")
    assert checkpoint_of(tmp_path / "broken-work")["step"] == 2 and not (tmp_path / "broken").exists()
    monkeypatch.setattr("typer.echo", str)
    one, other = map(weights_in, (folder, train(data, kind, name="broken")))
    assert one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())
    for key, value in weights_in(train(data, kind, name="half", dtype="bfloat16")).items():
        assert value.shape == one[key].shape and value.isfinite().all()


def weights_in(folder: Path) -> dict[str, Tensor]:
    """The weights of a drafter's folder."""
    (file,) = (path for path in folder.iterdir() if path.suffix in (".safetensors", ".pt", ".bin"))
    return load_file(file) if file.suffix == ".safetensors" else torch.load(file, weights_only=True)


def often(of: Callable[..., loop.LoopOptions]) -> Callable[..., loop.LoopOptions]:
    """A recipe's settings with a checkpoint and a line after every step."""
    return lambda recipe, hidden: loop.LoopOptions(**{**of(recipe, hidden).__dict__, "save_every": 1, "log_every": 1})


def stop(line: str) -> None:
    """Interrupt a run at its second step."""
    if "step 2/3" in line:
        raise KeyboardInterrupt


def test_a_draft_model_is_written_and_drafts(train: Callable, data: Path, model: Any, tiny: Path) -> None:
    folder = train(data, "model")
    assert {value.dtype for value in load_file(folder / "model.safetensors").values()} == {torch.float16}
    prompt = load_tokenizer(str(folder))("def f1(x):", return_tensors="pt", return_token_type_ids=False)
    plain = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    with mmspec.enable(model, "draft-model", drafter=str(folder), k=2) as enabled:
        assert torch.equal(model.generate(**prompt, max_new_tokens=12, do_sample=False), plain)
    assert enabled.report.drafted > 0


def test_the_target_writes_all_of_it(train: Callable) -> None:
    facts = json.loads((train(None, self_generated=900) / "training.json").read_text())
    assert set(facts["held_out"]) == {"own"}


@pytest.mark.parametrize("pruned", [False, True])
def test_a_head_that_was_saved_is_the_same_head(pruned: bool, model: Any, tmp_path: Path) -> None:
    """Through the format of speculators; with a pruned vocabulary its maps, too."""
    ids = torch.arange(40) * 3 if pruned else None
    head = new_head(model, (0, 2, 3), 16, ids, 0)
    with torch.no_grad():
        for weights in head.parameters():  # as float16 holds them
            weights.copy_((weights + 0.1 * torch.randn_like(weights)).half())
    write_head(head, (0, 2, 3), "mmspec/some", 2, tmp_path / "head")
    checkpoint = read_checkpoint(str(tmp_path / "head"))
    assert checkpoint.layer_ids == (0, 2, 3) and checkpoint.layout.convention == "boundary"
    read = checkpoint.network(head.vocab)
    read.join(model.get_input_embeddings(), model.get_output_embeddings(), model.device, torch.float32)
    g = torch.Generator().manual_seed(1)
    features, units = torch.randn(2, 6, 48, generator=g), torch.randint(head.vocab, (2, 6), generator=g)
    with torch.no_grad():
        assert torch.equal(teacher_forced(read, features, units), teacher_forced(head.eval(), features, units))
    assert pruned == ("d2t" in tensors_of(head))


def test_the_fields_of_the_format(model: Any) -> None:
    """What vLLM and speculators read of an EAGLE-3 config, and nothing that is no JSON."""
    config = json.loads(json.dumps(config_of(new_head(model, (0, 2, 3), 16, None, 0), (0, 2, 3), "t", 4)))
    assert config["speculators_model_type"] == "eagle3" and config["architectures"] == ["Eagle3DraftModel"]
    assert config["speculators_config"] == {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {"proposal_type": "greedy", "speculative_tokens": 4, "verifier_accept_k": 1, "accept_tolerance": 0.0}
        ],
        "verifier": {"name_or_path": "t", "architectures": []},
    }
    assert config["eagle_aux_hidden_state_layer_ids"] == [0, 2, 3] and config["draft_vocab_size"] == 257
    assert {"norm_before_residual", "norm_before_fc", "fc_norm", "embed_requires_grad"} <= config.keys()
    layer = LlamaConfig(**config["transformer_layer_config"])
    assert (layer.hidden_size, layer.head_dim, layer.num_key_value_heads, layer.num_hidden_layers) == (16, 8, 1, 1)


def test_a_heads_layer_is_as_large_as_its_targets(model: Any) -> None:
    """Its rotary positions, too; a target without attention leaves usual sizes."""
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 77.0}
    sizes = new_head(model, (0, 2, 3), None, None, 0).architecture
    assert (sizes.heads, sizes.key_heads, sizes.head_dim, sizes.intermediate) == (2, 1, 8, 24)
    assert sizes.rope["rope_theta"] == 77 and sizes.eps == model.config.rms_norm_eps
    model.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 77.0, "factor": 2.0}
    assert new_head(model, (0, 2, 3), None, None, 0).architecture.rope["rope_theta"] != 77
    assert [usual_boundaries(layers) for layers in (2, 8, 30)] == [(2,), (2, 5, 8), (2, 15, 27)]


def checkpoint_of(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "drafter" / loop.CHECKPOINT, weights_only=True)


def test_an_interrupted_run_ends_where_a_whole_one_does(
    train: Callable, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DrafterRecipe, "loop", often(DrafterRecipe.loop))
    whole = train(data, name="whole", self_generated=600)
    monkeypatch.setattr("typer.echo", stop)
    with pytest.raises(typer.Exit):
        train(data, name="broken", self_generated=600)
    assert checkpoint_of(tmp_path / "broken-work")["step"] == 2 and not (tmp_path / "broken").exists()
    recipe = json.loads((tmp_path / "broken-work" / "recipe.json").read_text())
    assert "depth" in recipe and "feature_weight" not in recipe  # which heads of another kind have
    monkeypatch.undo()
    monkeypatch.setattr(written_text, "_written", lambda *arguments: pytest.fail("what the target wrote is kept"))
    broken = train(data, name="broken", self_generated=600)
    one, other = load_file(whole / "model.safetensors"), load_file(broken / "model.safetensors")
    assert all(torch.equal(value, other[key]) for key, value in one.items())
    with pytest.raises(ValueError, match=r"another recipe \(depth 2 there, 3 here\)"):
        train(data, name="broken", self_generated=600, depth=3)


@pytest.mark.parametrize("how", ["an interrupt", "SIGTERM", "at once"])
def test_a_stopped_run_says_what_was_kept(
    how: str, train: Callable, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Before any checkpoint is due."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it

    def batch_at(texts: Texts, step: int) -> Batch:
        if step == (0 if how == "at once" else 2):
            signal.raise_signal(signal.SIGTERM if how == "SIGTERM" else signal.SIGINT)
        return batches(texts, step)

    batches = Texts.batch_at
    with monkeypatch.context() as patched:
        patched.setattr(Texts, "batch_at", batch_at)
        with pytest.raises(typer.Exit) as stopped:
            train(data)
    assert stopped.value.exit_code == (143 if how == "SIGTERM" else 130)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    said = capsys.readouterr().out
    assert (
        "Nothing was done yet that could be kept" if how == "at once" else "the same command again to resume"
    ) in said
    train(data)
    assert ("resuming at step 2 of 3" in capsys.readouterr().out) == (how != "at once")


def test_a_target_that_was_trained_on_is_another(train: Callable, data: Path, tiny: Path, model: Any) -> None:
    train(data)
    changed = copy.deepcopy(model)
    try:
        with torch.no_grad():
            changed.lm_head.weight.mul_(1.1)
        changed.save_pretrained(tiny)
        with pytest.raises(ValueError, match=r"another recipe \(weights \w{16} there, \w{16} here\)"):
            train(data)
    finally:
        model.save_pretrained(tiny)


@pytest.mark.parametrize(("kind", "refused"), [("pard", ""), ("model", ""), ("mtp", "of another form than a Llama's")])
def test_a_target_without_attention(
    kind: str, refused: str, data: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads texts of any length; and what cannot begin is refused before the target writes."""
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_heads=4, head_dim=16, state_size=8, n_groups=1, chunk_size=16)
    torch.manual_seed(0)
    model = Mamba2ForCausalLM(Mamba2Config(**sizes, vocab_size=257, bos_token_id=0, eos_token_id=0, pad_token_id=0))
    model.save_pretrained(tmp_path / "mamba")
    load_tokenizer(str(tiny)).save_pretrained(tmp_path / "mamba")
    how: dict[str, Any] = dict(kind=kind, data=[data], work=tmp_path / "work", **small(kind))
    if refused:
        monkeypatch.setattr(written_text, "_written", lambda *_: pytest.fail("it is refused before that"))
        with pytest.raises(ValueError, match=refused):
            train_drafter(str(tmp_path / "mamba"), tmp_path / "out", **how, self_generated=900)
    else:
        train_drafter(str(tmp_path / "mamba"), tmp_path / "out", **how)
        config = json.loads((tmp_path / "out" / "config.json").read_text())
        assert config["max_position_embeddings"] == 131_072 and config["rope_theta"] == 10_000


def of_another_form(name: str, folder: Path, tiny: Path) -> Path:
    """A decoder of random weights over the bytes of `tiny`, by its name in the zoo."""
    recipe = replace({**ARCHITECTURES, **RECURRENT}[name], gain=1.0, head=1.0)
    inputs = {key: 257 for key in recipe.config if key == "vocab_size_per_layer_input"}
    recipe = replace(recipe, config={**recipe.config, **inputs, "vocab_size": 257, "bos_token_id": 0})
    recipe.model().save_pretrained(folder / name)
    load_tokenizer(str(tiny)).save_pretrained(folder / name)
    return folder / name


@pytest.mark.parametrize(
    ("name", "kind", "method"),
    [
        ("phi", "eagle3", "eagle"),
        ("gemma4_text", "eagle3", "eagle"),
        ("dbrx", "dflash", "dflash"),
        pytest.param("phi", "dflash", "dflash", marks=pytest.mark.slow),
    ],
)
def test_targets_of_other_forms_have_heads(
    name: str, kind: str, method: str, data: Path, tiny: Path, tmp_path: Path
) -> None:
    """One that turns a part of its numbers alone, which a head does not; one whose layers differ in width; one whose
    experts refuse autocast.
    """
    target, out = of_another_form(name, tmp_path, tiny), tmp_path / "drafter"
    train_drafter(str(target), out, kind=kind, data=[data], work=tmp_path / "work", **small(kind))
    model = load_model(str(target))
    with mmspec.enable(model, method, drafter=str(out), k=2) as enabled:
        model.generate(torch.arange(1, 9)[None], max_new_tokens=6, do_sample=False)
    assert enabled.report.drafted > 0


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("gpt_neox", "mtp", "GPTNeoXForCausalLM has layers with experts, or of another form"),
        ("electra", "eagle3", "embedding of ElectraForCausalLM has vectors of 128 numbers, and its states have 64"),
        ("gemma3n_text", "eagle3", "hands several streams of states"),
        ("falcon_h1", "mtp", "no multi-token layer is made for a falcon_h1"),
        ("electra", "medusa", "embedding of ElectraForCausalLM has vectors of 128 numbers"),
    ],
)
def test_targets_of_other_forms_that_a_kind_does_not_take(
    name: str, kind: str, said: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written_text, "_written", lambda *_: pytest.fail("it is refused before that"))
    target = of_another_form(name, tmp_path, tiny)
    with pytest.raises(ValueError, match=said):
        how = {"work": tmp_path / "work", "self_generated": 900}
        train_drafter(str(target), tmp_path / "out", kind=kind, **how, **small(kind))
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_with_more_ids_than_the_target_is_refused(data: Path, tiny: Path, tmp_path: Path) -> None:
    """One that begins a text, and one that stands in it."""
    shutil.copytree(tiny, tmp_path / "target")
    for added, said in (({"bos_token": "<new>"}, "the token that begins a text"), ({"pad_token": "def"}, "line 1 of")):
        tokenizer = load_tokenizer(str(tiny))
        tokenizer.add_special_tokens(added)
        tokenizer.save_pretrained(tmp_path / "target")
        with pytest.raises(ValueError, match=f"{said}.* has the id 257, and the target has 257"):
            train_drafter(
                str(tmp_path / "target"), tmp_path / "out", data=[data], work=tmp_path / "work", **small("eagle3")
            )


def test_nothing_that_is_the_targets_is_trained(model: Any, tmp_path: Path) -> None:
    head = new_head(model, (0, 2, 3), 16, None, 0)
    before = {name: p.clone() for name, p in model.named_parameters()}
    texts = Texts([Stream(torch.arange(200) % 257, 1.0)], 2, 16, 0)
    loss = head_loss(Teacher(model, (0, 2, 3)).said, DrafterRecipe().draft_loss, 2)
    loss(head, texts.batch_at(0)).backward()
    assert all(p.grad is None and torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert all(p.grad is not None for p in head.parameters())
    assert not {"embed_tokens.weight", "lm_head.weight"} & head.state_dict().keys()


def test_a_head_learns_a_target_that_counts(model: Any, tmp_path: Path) -> None:
    """The next unit of this target is one more than the last: a head finds it out, and α goes to 1."""
    torch.manual_seed(0)
    table = torch.randn(257, 16)
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(table)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.get_output_embeddings().weight.copy_(4 * table.roll(1, 0))
    head = new_head(model, (0, 2, 3), 256, None, 0)
    teacher = Teacher(model, (0, 2, 3))
    texts = Texts([Stream(torch.arange(4000) % 257, 1.0)], 4, 24, 0)
    window = (100 + torch.arange(24))[None] % 257
    before = depth_metrics(head, teacher, [Batch.whole(window)], 2)
    recipe = DrafterRecipe(steps=150, learning_rate=2e-2, depth=2, hard=0.0)
    loop.fit(head, texts.batch_at, head_loss(teacher.said, recipe.draft_loss, 2), recipe.loop("layers"), tmp_path, str)
    after = depth_metrics(head, teacher, [Batch.whole(window)], 2)
    assert before.length < 1.5 and after.length > 2.5 and min(after.accepted) > 0.7


def test_a_block_begins_near_a_uniform_guess(model: Any) -> None:
    """On a target whose output layer is its embedding: the row of what is not known does not say itself again."""
    torch.manual_seed(0)
    with torch.no_grad():
        model.get_input_embeddings().weight.normal_(std=6.0)
    model.get_output_embeddings().weight = model.get_input_embeddings().weight
    recipe = DrafterRecipe(**{**small("dflash"), "hard": 1.0, "loss": "hard"})
    head = begun_dflash(model, recipe, "it").network
    teacher = Teacher(model, inner_boundaries(model.config.num_hidden_layers))
    batch = Texts([Stream(torch.randint(257, (400,)), 1.0)], 4, 24, 0).batch_at(0)
    with torch.no_grad():
        first = head_loss(teacher.said, recipe.draft_loss, 2)(head, batch)
    assert float(first) < math.log(257) + 4


def test_metrics_of_known_guesses(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head with the target's own layers undone guesses as we say: conditional accuracies and their products."""
    head = new_head(model, (0, 2, 3), 16, None, 0)
    theirs = Teacher(model)(torch.arange(20)[None])[1].argmax(-1)

    def guesses(states: Tensor) -> Tensor:
        row = torch.zeros(1, states.shape[1], 257)
        step = next(steps)
        units = theirs[:, step + 1 : step + 1 + states.shape[1]].clone()
        units[:, :: 2 + step] = 256 - units[:, :: 2 + step]  # every second one is wrong, then every third
        return row.scatter(-1, units[..., None], 9.0)

    steps = iter([0, 1])
    monkeypatch.setattr(head, "scored", guesses)
    found = depth_metrics(head, Teacher(model, (0, 2, 3)), [Batch.whole(torch.arange(20)[None])], 2)
    rows = torch.arange(18)
    first, second = rows % 2 != 0, rows % 3 != 0
    both = first & second
    assert found.right == pytest.approx((float(first.float().mean()), float(both.sum() / first.sum())))
    assert found.length == pytest.approx(1 + float(first.float().mean() + both.float().mean()))


def test_metrics_count_where_an_answer_is(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses are right behind the units that count, and wrong behind all others."""
    head = new_head(model, (0, 2, 3), 16, None, 0)
    theirs, place = Teacher(model)(torch.arange(20)[None])[1].argmax(-1), torch.arange(20)[None]
    counted = (place >= 9) & (place < 16)

    def guesses(states: Tensor) -> Tensor:
        here = slice(next(steps), None)
        units = torch.where(counted, theirs, 256 - theirs)[:, here][:, : states.shape[1]]
        return torch.zeros(1, states.shape[1], 257).scatter(-1, units[..., None], 9.0)

    steps = iter([1, 2])
    monkeypatch.setattr(head, "scored", guesses)
    found = depth_metrics(head, Teacher(model, (0, 2, 3)), [Batch(torch.arange(20)[None], counted)], 2)
    assert found.right == (1.0, 1.0) and found.length == pytest.approx(1 + 7 / 7 + 6 / 7)  # the last has no second one


def test_batches_depend_on_the_step_alone_and_mix_by_shares() -> None:
    texts = Texts([Stream(torch.zeros(50), 0.75), Stream(torch.ones(30), 0.25)], 8, 10, 3)
    assert torch.equal(texts.batch_at(5).ids, texts.batch_at(5).ids)
    assert not torch.equal(texts.batch_at(5).ids, texts.batch_at(6).ids) and bool(texts.batch_at(5).counted.all())
    mean = torch.stack([texts.batch_at(step).ids for step in range(100)]).mean()
    assert 0.2 < float(mean) < 0.3


def test_what_the_target_writes_ends_where_a_text_ends(model: Any) -> None:
    prompts, how = torch.tensor([[5, 6], [7, 8]]), {"new": 20, "seed": 0}
    state = torch.random.get_rng_state()
    free, again = ([row.ids.tolist() for row in answered(model, prompts, temperature=1.0, **how)] for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state) and free == again
    assert all(len(row) <= 22 for row in free) and free[0][:2] == [5, 6]
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()[0] = 0
        ends = answered(model, prompts, temperature=0.0, **how)  # all logits are equal: the likeliest is id 0, the end
    assert [row.ids.tolist() for row in ends] == [[5, 6, 0], [7, 8, 0]]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "is empty: every line holds a text"),
        ([{"text": "too short"}], r"has 10 tokens; training cuts sequences of 16 .* takes 32 and more"),
        ([{"prompt": "a"}], r'line 1 of .* has no "text" .*, no "messages" .* and no "ids" .*, but prompt'),
        ([{"messages": []}], "line 1 of .* has messages, and the target's tokenizer has no chat template"),
        ([{"ids": [3, 999]}], "has the id 999, and the target has 257: ids of another tokenizer"),
        ([{"text": 7}], r'has no "text" \(a string\)'),
        (["text"], "every line holds an object"),
        ([{"text": ""}] * 200, "has 200 texts, and all of them are empty"),
    ],
)
def test_texts_that_train_nothing_are_refused(train: Callable, tmp_path: Path, lines: list[Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        train(written(tmp_path / "bad.jsonl", lines))
    assert not (tmp_path / "drafter").exists() and not (tmp_path / "drafter-work").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAFTERS)
def test_every_kind_refuses_texts_before_it_begins(kind: str, train: Callable, tmp_path: Path) -> None:
    for lines in ([], [{"text": "too short"}], [{"text": 7}], [{"ids": [3, 999]}], ["text"]):
        with pytest.raises(ValueError, match=r"bad\.jsonl"):
            train(written(tmp_path / "bad.jsonl", lines), kind)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def test_conversations_go_through_the_chat_template(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny))
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    file = written(tmp_path / "chats.jsonl", [{"messages": said}, {"text": "ab"}])
    tokenizer.chat_template = TEMPLATE
    units, ((answer,),) = read_file(file, Chat(tokenizer), 257, torch.tensor([0]))
    assert tokenizer.decode(units) == "<end>ab"
    assert tokenizer.decode(answer.ids) == "<user>Hi<assistant>Ho"
    tokenizer.chat_template = "{{ raise_exception('no system') }}"
    with pytest.raises(ValueError, match=r"line 1 of .*: the target's chat template does not take .*no system"):
        read_file(file, Chat(tokenizer), 257, torch.tensor([0]))


def test_an_empty_text_among_others_is_left_out(tiny: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "texts.jsonl", [{"text": "ab"}, {"text": ""}, {"ids": []}, {"text": "c"}])
    tokenizer = load_tokenizer(str(tiny))
    units, _ = read_file(file, Chat(tokenizer), 257, torch.tensor([0]))
    assert tokenizer.decode(units) == "<end>ab<end>c"


def test_files_of_one_name_are_told_apart(train: Callable, data: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    again = written(tmp_path / "other" / "texts.jsonl", LINES)
    held = json.loads((train([data, again]) / "training.json").read_text())["held_out"]
    assert set(held) == {str(data), str(again)}


@pytest.mark.parametrize(
    ("kind", "numbers", "said"),
    [
        (
            "mtp",
            {"intermediate": 8},
            "intermediate is for --kind eagle or fspad or falcon or eagle3 or clover or dflash, and not for mtp",
        ),
        ("falcon", {"decay": 0.5}, "falcon all units of a block alike"),
        ("fspad", {"glance": 0.1}, "others learn from the text as it is"),
        ("model", {"depth": 4}, "draft models learn the next token alone"),
        ("eagle3", {"temperature": 0.1}, r"it writes nothing \(--self-generated\)"),
        ("eagle3", {"own_share": 0.5}, r"give both \(--data, --self-generated\)"),
        ("eagle3", {"own_share": 0.5, "self_generated": 900}, r"give both \(--data, --self-generated\)"),
    ],
)
def test_numbers_without_an_effect_are_refused(
    kind: str, numbers: dict[str, Any], said: str, train: Callable, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmspec.hosts.loading.load_model", lambda *_: pytest.fail("it is refused before that"))
    with pytest.raises(ValueError, match=said):
        train(None if "self_generated" in numbers else data, kind, **numbers)


def test_other_bad_input(train: Callable, data: Path, tmp_path: Path, model: Any) -> None:
    with pytest.raises(ValueError, match="nothing to train on"):
        train(None)
    with pytest.raises(ValueError, match="no kind of drafter is called 'eagle4'; did you mean 'eagle' or 'eagle3'"):
        train(data, "eagle4")
    with pytest.raises(ValueError, match="no loss is called 'kll'; did you mean 'kl'"):
        train(data, loss="kll")
    with pytest.raises(ValueError, match="have no place for a draft of 15"):
        train(data, depth=15)
    with pytest.raises(ValueError, match=r"blocks of two units or more \(depth\)"):
        train(data, "falcon", depth=1)
    with pytest.raises(ValueError, match=r"the target reads 64 tokens, and a sequence has 65 \(context\)"):
        train(data, context=65)
    assert json.loads((train(None, self_generated=900) / "training.json").read_text())["held_out"]["own"]
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match="cannot be read"):
        train(binary)


def test_text_that_the_target_finds_less_likely_than_noise(train: Callable, tmp_path: Path, tiny: Path) -> None:
    sharp = load_model(str(tiny))
    with torch.no_grad():
        sharp.get_output_embeddings().weight.mul_(60)
    sharp.save_pretrained(tiny)
    with pytest.raises(ValueError, match=r"nats per token, and a uniform guess over its 257 ids has 5\.5"):
        train(written(tmp_path / "foreign.jsonl", LINES))
    with torch.no_grad():
        sharp.get_output_embeddings().weight.div_(60)
    sharp.save_pretrained(tiny)


@pytest.mark.parametrize("kind", ["eagle3", "model", *SLOW])
def test_a_loss_that_is_no_number_stops_with_the_last_good_checkpoint(
    kind: str, train: Callable, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with no folder; where the reason was not in the recipe, the run goes on from there."""
    monkeypatch.setattr(DrafterRecipe, "loop", often(DrafterRecipe.loop))
    module = f"mmspec_text.training.{'draft_model' if kind == 'model' else 'heads'}.draft_loss"

    def bad(logits: Tensor, *rest: Any) -> Tensor:
        path = tmp_path / "drafter-work" / "drafter" / loop.CHECKPOINT
        right = draft_loss(logits, *rest)
        return right * float("nan") if path.is_file() else right

    with monkeypatch.context() as broken:
        broken.setattr(module, bad)
        with pytest.raises(
            ValueError, match=r"training stopped at step 2: its loss is nan .*checkpoint.pt is from before"
        ):
            train(data, kind)
    kept = checkpoint_of(tmp_path / "drafter-work")
    assert kept["step"] == 1 and all(bool(value.isfinite().all()) for value in kept["model"].values())
    assert not (tmp_path / "drafter").exists()
    one, other = (weights_in(train(data, kind, name=name)) for name in ("drafter", "whole"))
    assert all(torch.equal(value, other[key]) for key, value in one.items())


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.text.test_train_drafter import small
from mmspec_text.training.chats import Chat
from mmspec_text.training.command import train_drafter
os.rename = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)  # the old folder makes room for the new one
target, data, folder = map(Path, sys.argv[1:4])
kind = sys.argv[4]
train_drafter(str(target), folder / "drafter", kind=kind, data=[data], work=folder / "work", **small(kind))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_kill_while_saving_leaves_the_old_drafter(kind: DrafterKind, data: Path, tiny: Path, tmp_path: Path) -> None:
    """The weights are written when the process dies; the folder is still the old one, and the next run finishes."""
    save_sealed(tmp_path / "drafter", lambda side: (side.mkdir(), (side / "old").write_text("1")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    died = subprocess.run(
        [sys.executable, "-c", KILLED, str(tiny), str(data), str(tmp_path), kind], env=environment, cwd=Path.cwd()
    )
    assert died.returncode == -signal.SIGKILL
    assert sorted(path.name for path in (tmp_path / "drafter").iterdir()) == [SEAL, "old"]
    train_drafter(str(tiny), tmp_path / "drafter", kind=kind, data=[data], work=tmp_path / "work", **small(kind))
    assert json.loads((tmp_path / "drafter" / "training.json").read_text())["kind"] == kind
    assert not (tmp_path / "drafter" / "old").exists() and weights_in(tmp_path / "drafter")


def test_a_recurrent_target_is_read_as_it_drafts() -> None:
    """A hybrid's target is its own plugin's; what the teacher reads are the states that prefill gives to heads."""
    target = ssm.hybrid().target
    assert isinstance(target, RecurrentTarget)
    ids = torch.tensor([[1, 4, 2, 6, 3, 5]])
    features, logits = Teacher(target.model, (0, 1, 2))(ids)
    prefill = target.with_hidden((0, 1, 2)).start(ids, 4, 2)
    assert features is not None and prefill.hidden is not None and torch.allclose(features, prefill.hidden, atol=1e-5)
    assert prefill.output.logits is not None
    assert torch.allclose(logits[:, -1], prefill.output.logits[:, 0].float(), atol=1e-4)
