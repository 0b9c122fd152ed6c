"""Folders that are drawn: models, heads and pipelines as they are published, and folders of something else."""

import copy
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from tests.draws.head_files import rounded, write
from tests.draws.head_kinds import KINDS as HEADS
from tests.support.zoo import ARCHITECTURES

logging.disable_progress_bar()
MODELS = (
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gpt2",
    "gemma2",
    "phi3",
    "olmo2",
    "mixtral",
    "gpt_neox",
    "opt",
    "cohere",
)
"""Language models of the zoo that stand for the layouts of all."""
HEAD_NAMES = ("eagle:eagle-3", "eagle:eagle-1", "p-eagle:speculators", "dflash:dflash", "falcon:falcon")
"""Heads that stand for the layouts of all, which the claim `heads` draws."""
MARK = "ran"
"""The file that code in a pickle would write beside the folder."""


class Evil:
    """A pickle that runs code where it is trusted: it writes a file."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.place, "w")


@cache
def saved(recipe: str) -> tuple[Mapping[str, bytes], Mapping[str, torch.Tensor]]:
    """A language model's files beside its weights, and its weights, as transformers stores them."""
    with TemporaryDirectory() as folder:
        model: Any = target() if recipe == "target" else ARCHITECTURES[recipe].model()
        model.save_pretrained(folder)
        files = {path.name: path.read_bytes() for path in Path(folder).glob("*.json")}
        return files, load_file(Path(folder) / "model.safetensors")


@cache
def target() -> Any:
    """What heads and draft models are drawn for."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "vocab_size": 131}
    model: Any = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, pad_token_id=0, eos_token_id=None)).eval()
    for weight in model.parameters():
        weight.data.mul_(4 if weight.dim() > 1 else 1)
    return model.requires_grad_(False)


def write_model(folder: Path, recipe: str, dtype: str, form: str) -> None:
    """A language model."""
    files, weights = saved(recipe)
    write(folder, rounded(weights, dtype), json.loads(files["config.json"]) | {"dtype": dtype}, "model", form)
    for name in files.keys() - {"config.json", "model.safetensors.index.json"}:
        (folder / name).write_bytes(files[name])


def write_head(folder: Path, name: str, dtype: str, form: str) -> None:
    """A head."""
    kind = HEADS[name]
    w, more = kind.weights({})
    files = {kind.named(key): value for key, value in w.items()} | {key: torch.zeros(2) for key in kind.extra}
    write(folder, rounded({**files, **kind.lent}, dtype), {**kind.config, **more}, kind.stem, form)


Writer = Callable[[Path, str], None]


def texts(**files: str | bytes | Mapping[str, Any]) -> Writer:
    """A folder of these files; `__` in a name is a dot, and `___` a slash."""

    def make(folder: Path, mark: str) -> None:
        for name, content in files.items():
            path = folder / name.replace("___", "/").replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            content = json.dumps(content) if isinstance(content, Mapping) else content
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    return make


def pickled(name: str, **files: Mapping[str, Any]) -> Writer:
    """A folder with a pickle of code."""

    def make(folder: Path, mark: str) -> None:
        texts(**files)(folder, mark)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(pickle.dumps({"a": Evil(mark)}))

    return make


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4294967296\n"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
}
LLAMA |= {"intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 131}


def beside(pointer: Mapping[str, str], *gone: str) -> Writer:
    """A language model of which files are replaced, or gone."""

    def make(folder: Path, mark: str) -> None:
        write_model(folder, "llama", "float32", "shards")
        for name in gone:
            (folder / name).unlink()
        for name, content in pointer.items():
            (folder / name).write_text(content)

    return make


def tensors(name: str, keys: Mapping[str, torch.Tensor], **files: Mapping[str, Any]) -> Writer:
    """A folder with a file of safetensors."""

    def make(folder: Path, mark: str) -> None:
        texts(**files)(folder, mark)
        save_file(dict(keys), folder / name)

    return make


def pipeline(folder: Path, mark: str) -> None:
    """Somebody's pipeline of diffusers."""
    index: dict[str, Any] = {"_class_name": "StableDiffusionPipeline", "_diffusers_version": "0.30.0"}
    index |= {"unet": ["diffusers", "UNet2DConditionModel"], "tokenizer": ["transformers", "CLIPTokenizer"]}
    texts(model_index__json=index, unet___config__json={"_class_name": "UNet2DConditionModel"})(folder, mark)
    save_file({"conv_in.weight": torch.zeros(4, 4)}, folder / "unet" / "diffusion_pytorch_model.safetensors")


WEIGHT = {"model.embed_tokens.weight": torch.zeros(131, 64)}
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
LORA = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.zeros(4, 64)}
BERT: dict[str, Any] = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 8, "vocab_size": 9}
BERT |= {"num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
CODE = {"model_type": "mine", "auto_map": {"AutoConfig": "configuration_mine.C"}}
TOMORROW = {"model_type": "llama9", "architectures": ["Llama9ForCausalLM"]}
QUANTISED = {"model.layers.0.self_attn.q_proj.qweight": torch.zeros(8, 8, dtype=torch.int32)}
STRANGERS: dict[str, tuple[Writer, tuple[str, ...]]] = {
    "empty": (texts(), ("empty",)),
    "config alone": (texts(config__json=LLAMA), ("no weights",)),
    "dataset": (texts(README__md="---", data___train__parquet=b"PAR1", dataset_infos__json={}), ("dataset",)),
    "tokenizer alone": (texts(tokenizer__json={"version": "1.0"}, tokenizer_config__json={}), ("tokenizer",)),
    "pipeline": (pipeline, ("pipeline", "StableDiffusionPipeline")),
    "pickle of code": (pickled("pytorch_model.bin", config__json=LLAMA), ("pickle", "checkpoint of torch.save")),
    "pickle under another name": (pickled("checkpoint.pth", config__json=LLAMA), ("pickle",)),
    "pickle of a trainer": (pickled("training_args.bin", config__json=LLAMA), ("no weights",)),
    "original Llama": (pickled("consolidated.00.pth", params__json={"dim": 64}), ("pickle",)),
    "index of pickles": (
        texts(config__json=LLAMA, pytorch_model__bin__index__json={"weight_map": {"a": "x.bin"}}),
        ("index names are missing",),
    ),
    "LFS pointer": (beside({SHARDS[0]: POINTER}), ("git LFS",)),
    "lost shard": (beside({}, SHARDS[1]), (SHARDS[1],)),
    "lost index": (beside({}, INDEX), ("index of its shards",)),
    "lost config": (beside({}, "config.json"), ("config.json",)),
    "half a shard": (beside({SHARDS[0]: "\x08\0\0\0"}), ("damaged",)),
    "page of HTML": (beside({SHARDS[0]: "<!DOCTYPE html><html>401</html>"}), ("damaged",)),
    "config of HTML": (beside({"config.json": "<!DOCTYPE html>"}), ("config.json",)),
    "config of a list": (beside({"config.json": "[]"}), ("config.json",)),
    "config of nothing": (beside({"config.json": "{}"}), ("model_type",)),
    "index of a list": (beside({INDEX: "[]"}), (INDEX,)),
    "index to outside": (beside({INDEX: '{"weight_map": {"a": "../../x.safetensors"}}'}), (INDEX,)),
    "GGUF": (texts(model_q4_k_m__gguf=b"GGUF\x03\0\0\0", README__md="quantised"), ("GGUF",)),
    "ONNX": (texts(config__json=LLAMA, model__onnx=b"\x08\x07"), ("ONNX",)),
    "TensorFlow": (texts(config__json=LLAMA, tf_model__h5=b"\x89HDF"), ("TensorFlow",)),
    "Flax": (texts(config__json=LLAMA, flax_model__msgpack=b"\x81"), ("Flax",)),
    "LoRA": (
        tensors("adapter_model.safetensors", LORA, adapter_config__json={"peft_type": "LORA", "r": 4}),
        ("adapter",),
    ),
    "encoder": (
        tensors("model.safetensors", {"embeddings.word_embeddings.weight": torch.zeros(9, 8)}, config__json=BERT),
        ("BertModel", "bert", "Bert"),
    ),
    "model of tomorrow": (tensors("model.safetensors", WEIGHT, config__json=TOMORROW), ("llama9",)),
    "model with code": (tensors("model.safetensors", WEIGHT, config__json=CODE), ("code of its own",)),
    "GPTQ": (
        tensors(
            "model.safetensors",
            QUANTISED,
            config__json=LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        ),
        ("GPTQ", "gptq", "quantis"),
    ),
    "UNet": (
        tensors(
            "diffusion_pytorch_model.safetensors",
            {"conv_in.weight": torch.zeros(4, 4)},
            config__json={"_class_name": "UNet2DConditionModel"},
        ),
        ("UNet2DConditionModel",),
    ),
    "cache of the hub": (texts(refs___main="0" * 40, snapshots___0___config__json=LLAMA), ("cache",)),
    "checkpoints": (
        texts(**{"checkpoint-5___config__json": json.dumps(LLAMA), "checkpoint-5___a": "", "runs___a": ""}),
        ("checkpoints",),
    ),
    "somebody's code": (texts(setup__py="raise SystemExit(1)", src___a__py=""), ("it holds",)),
}
"""Name → what writes a folder of something else, and words of which a message has one."""


@dataclass(frozen=True)
class Original:
    """A folder that is taken."""

    write: Callable[[Path, str, str], None]  # `(folder, dtype, form)`
    door: str  # what it is for
    recipe: str  # the model's or head's name
    words: tuple[str, ...]  # of which a message of another door has one


def _model(name: str) -> Original:
    words = (name, name.replace("_", ""), "ForCausalLM", "LMHeadModel", "tokenizer", "vocabulary", "ids", "no model")
    return Original(lambda folder, dtype, form: write_model(folder, name, dtype, form), "model", name, words)


def _head(name: str) -> Original:
    words = ("head", "medusa_lm_head")
    return Original(lambda folder, dtype, form: write_head(folder, name, dtype, form), "drafter", name, words)


ORIGINALS: dict[str, Original] = {
    **{f"model:{name}": _model(name) for name in MODELS},
    **{f"head:{name}": _head(name) for name in HEAD_NAMES},
}
"""Name → folder as it is published."""


@cache
def reference(recipe: str, dtype: str) -> Any:
    """A model with weights as a file of this dtype holds them, in float32."""
    made = copy.deepcopy(ARCHITECTURES[recipe].model()).eval()
    for tensor in made.parameters():
        tensor.data = tensor.data.to(getattr(torch, dtype)).float()
    return made


BESIDE: dict[str, Writer] = {
    "README.md": texts(README__md="---\nlicense: mit\n---"),
    ".gitattributes": texts(**{"__gitattributes": "*.safetensors filter=lfs"}),
    "training_args.bin": pickled("training_args.bin"),
    "optimizer.pt": pickled("optimizer.pt"),
    "images": texts(assets___a__png=b"\x89PNG"),
    "code": texts(modeling_mine__py="raise SystemExit(1)"),
    "original": pickled("original/consolidated.00.pth"),
    ".cache": texts(**{"__cache___huggingface___download___a__lock": b""}),
}
"""Files that stand beside a model's, and change nothing."""
