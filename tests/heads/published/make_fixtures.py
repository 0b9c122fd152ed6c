"""Heads that their authors' own classes wrote, and what these classes drafted: the fixtures of `test_published.py`.

    python tests/heads/published/make_fixtures.py SOURCES NAME ...

`SOURCES` holds check-outs, a folder for each repository that is named below, and `commits.json`, an object from a
folder's name to the commit. Authors' classes run under the transformers of their time:

| transformers | fixtures |
|---|---|
| 4.37.2 | medusa, medusa-legacy, typical, hydra, hydra++, clover-2, falcon; ppd, with peft 0.9.0 in `peft09` |
| 4.53.1 | eagle-1, eagle-3, eagle-3-pruned, pard, dflash, dflash2, jetspec |
| 5.10.2 | specforge-dspark, deepspec-eagle-3, deepspec-dflash, dspark, dspark-gated, dspark-rnn |
| 5.17.0 | gemma4/* |
| this repository's | arctic-lstm, p-eagle, speculators-*, specforge-eagle-3, torchspec-eagle-3-latent, fly |
| the same, with ibm-fms in `fms` | mlp-speculator |

A fixture is a safetensors file: `head.<key>` as its authors write it, and round by round the units that became known,
the draft (units and parents, -1 for the root) and the logits that it was drawn from, in the order in which they were
scored. The metadata say who wrote it (`source`, `commit`, `path`), in which file and with which config, and the method
that reads it here (`method`, `k`, `options`). The target is one for all: `target.safetensors`.
"""

import importlib.metadata
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from itertools import chain as chain_of
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
HIDDEN, VOCAB, LAYERS = 16, 48, 8
TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    "attention_bias": False,
    "hidden_act": "silu",
}
ACCEPTED = (2, 0)
"""Drafted units that become known behind the first rounds, before one that was not drafted."""
PROMPT = [7, 31, 2, 44, 18, 9, 31, 5, 27, 40, 3]


def drawn(module, seed, spread=1.3):
    """Give a module random weights that half precision holds, and make it ready."""
    g = torch.Generator().manual_seed(seed)
    for name, value in sorted(module.named_parameters()):
        wide = value.dim() > 1
        random = torch.randn(value.shape, generator=g) * (spread / value.shape[-1] ** 0.5 if wide else 0.2)
        is_norm = (not wide and "norm" in name) or (name.startswith("ln.") and name.endswith("weight"))
        shift = 1.0 if is_norm else 0.0
        value.data = (random + shift).half().float()
    return module.float().eval()


def target_model(cls=LlamaForCausalLM, config=LlamaConfig, **more):
    """The target, as a class of somebody's; made if it is not there yet."""
    path = HERE / "target.safetensors"
    model = cls(config(**TARGET, **more))
    if not path.exists():
        drawn(model, 1)
        save_file({k: v.half() for k, v in model.state_dict().items()}, path, {"config": json.dumps(TARGET)})
    model.load_state_dict({k: v.float() for k, v in load_file(path).items()}, strict=False)
    return model.float().eval()


def features(model, known, boundaries=None):
    """The target's states `[1, unit, width]` of known units but the last: of some layers, or behind the final norm."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([known[:-1]]), output_hidden_states=True, use_cache=False)
    states = out.hidden_states
    return torch.cat([states[i] for i in boundaries], -1) if boundaries is not None else states[-1]


@contextmanager
def watched(*modules):
    """The outputs of modules, in the order of their calls."""
    seen = []
    hooks = [m.register_forward_hook(lambda m, a, out: seen.append(out.detach().clone())) for m in modules]
    yield seen
    for hook in hooks:
        hook.remove()


def chain(logits):
    """A greedy chain by logits `[depth, vocab]` of ids of the target."""
    units = logits.argmax(-1)
    best = logits.topk(2, -1).values
    assert (best[:, 0] - best[:, 1]).min() > 1e-3, "two units are nearly equal, so that a draft proves little"
    return units.tolist(), list(range(-1, len(units) - 1)), logits


def written(
    name,
    repository,
    path,
    head,
    config,
    draft,
    *,
    method,
    k,
    file,
    options=None,
    accepted=ACCEPTED,
    prompt=PROMPT,
    base=None,
):
    """Run the rounds and write a fixture.

    `draft(known, fresh)` is the authors' draft behind known units, of which so many have features that no earlier
    round had: units, parents, logits, and perhaps more tensors by their names.
    """
    tensors = {f"head.{key}": value.detach().clone().contiguous() for key, value in head.items()}
    half = {
        k: v.half() if torch.equal(v.half().to(v.dtype), v) and v.is_floating_point() else v for k, v in tensors.items()
    }
    target = target_model() if base is None else base
    with torch.no_grad():
        root = int(target(torch.tensor([prompt])).logits[0, -1].argmax())
    new, text, fresh = [root], [*prompt, root], len(prompt)
    for number in range(len(accepted) + 1):
        with torch.no_grad():
            units, parents, logits, *more = draft(text, fresh)
        half[f"round.{number}.new"] = torch.tensor(new)
        half[f"round.{number}.draft"] = torch.tensor(units)
        half[f"round.{number}.parents"] = torch.tensor(parents)
        half[f"round.{number}.logits"] = logits.float().contiguous()
        half |= {f"round.{number}.{key}": value for key, value in (more[0] if more else {}).items()}
        if number == len(accepted):
            break
        new, node = [], -1
        for _ in range(accepted[number]):
            node = parents.index(node)
            new.append(units[node])
        drafted = {units[i] for i, parent in enumerate(parents) if parent == node}
        new.append(next(unit for unit in range(11, VOCAB) if unit not in drafted))
        text, fresh = text + new, len(new)
    half["prompt"] = torch.tensor(prompt)
    about = {
        "source": f"https://github.com/{repository}",
        "commit": commit_of(name if name in COMMITS else repository.partition("/")[2]),
        "path": path,
        "file": file,
        "config_file": "adapter_config.json" if file.startswith("adapter") else "config.json",
        "config": json.dumps(config),
        "method": method,
        "k": str(k),
        "options": json.dumps(options or {}),
    }
    if base is not None:
        about["target"] = base.config.to_json_string()
        half |= {f"target.{key}": value.half() for key, value in base.state_dict().items() if key != "lm_head.weight"}
    out = HERE / f"{name}.safetensors"
    save_file(half, out, about)
    print(f"{out.name}: {out.stat().st_size:,} bytes")


SOURCES = Path()
COMMITS = {}


def commit_of(name):
    return COMMITS[name]


def use(name):
    """Put a repository on the path, and forget the modules of others."""
    sys.path.insert(0, str(SOURCES / name))


# EAGLE


def eagle(version, pruned=False):
    use("EAGLE")
    from eagle.model import cnets, cnets1
    from eagle.model.configs import EConfig
    from eagle.model.modeling_llama_kv import LlamaForCausalLM as KV

    module = cnets if version == 3 else cnets1
    kept = json.loads(
        (
            SOURCES
            / "EAGLE/eagle"
            / ("traineagle3/config.json" if version == 3 else "train/llama_2_chat_7B_config.json")
        ).read_text()
    )
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = {**kept, **sizes, "vocab_size": VOCAB, "max_position_embeddings": 256}
    if version == 3:
        config["draft_vocab_size"] = 30 if pruned else VOCAB
    width, depth, total = 3, 3, 9
    model = module.Model(EConfig(**config), bias=True, total_tokens=total, depth=depth, top_k=width)
    drawn(model, 10 + version)
    base = target_model(KV)
    model.embed_tokens.weight.data = base.model.embed_tokens.weight.data.clone()
    if version == 3 and pruned:
        ids = torch.arange(VOCAB)[torch.randperm(VOCAB, generator=torch.Generator().manual_seed(2)) < 30]
        model.d2t.copy_(ids - torch.arange(30))
        model.t2d[ids] = True
    elif version == 3:
        del model.d2t, model.t2d
    model.init_tree()
    model.reset_kv()

    def draft(known, fresh):
        out = base.model(torch.tensor([known[:-1]]))
        states = torch.cat(out["hidden_states"], -1) if version == 3 else out[0]
        head = model.lm_head if version == 3 else base.lm_head
        with watched(head) as seen:
            tokens, _, mask, _ = model.topK_genrate(states[:, -fresh:], torch.tensor([known]), base.lm_head, None)
        ancestors = mask[0, 0].bool()
        parents = [int(row[:i].nonzero()[-1]) - 1 for i, row in enumerate(ancestors) if i]
        logits = torch.cat([out.reshape(-1, out.shape[-1]) for out in seen])
        if pruned:
            whole = torch.full((len(logits), VOCAB), -torch.inf)
            whole[:, ids] = logits
            logits = whole
        return tokens[0, 1:].tolist(), parents, logits

    file = "model.safetensors" if version == 3 else "pytorch_model.bin"
    form = {"probe": False, "form": "rerank", "width": width, "nodes": total - 1}
    name = f"eagle-{version}{'-pruned' if pruned else ''}"
    path = f"eagle/model/{module.__name__.rpartition('.')[2]}.py"
    written(
        name,
        "SafeAILab/EAGLE",
        path,
        model.state_dict(),
        config,
        draft,
        method="eagle",
        k=depth + 1,
        file=file,
        options=form,
    )


def no_tokenizer(module):
    """Heads draft from ids; their classes ask for a tokenizer all the same."""
    module.AutoTokenizer = SimpleNamespace(from_pretrained=lambda *args, **more: None)


def one_hot(unit):
    """Logits `[1, 1, vocab]` whose likeliest unit is this one."""
    return torch.nn.functional.one_hot(torch.tensor([[unit]]), VOCAB).float()


# Medusa, Hydra, Clover: under transformers 4.37


def medusa():
    use("Medusa")
    from medusa.model import medusa_model as module

    no_tokenizer(module)
    config = module.MedusaConfig(medusa_num_heads=3, medusa_num_layers=2)
    model = target_model(module.MedusaModelLlama, medusa_num_heads=3, medusa_num_layers=2)
    drawn(model.medusa_head, 20)

    def draft(known, fresh):
        scored, _, _ = model(torch.tensor([known[:-1]]), output_orig=True, medusa_forward=True)
        return chain(scored[:, 0, -1])

    path = "medusa/model/medusa_model.py"
    head, entries = model.medusa_head.state_dict(), json.loads(config.to_json_string())
    written(
        "medusa",
        "FasterDecoding/Medusa",
        path,
        head,
        entries,
        draft,
        method="medusa",
        k=3,
        file="medusa_lm_head.pt",
        options=CHAIN,
    )


def medusa_legacy():
    use("Medusa")
    from medusa.model import medusa_model_legacy as module

    no_tokenizer(module)
    config = module.MedusaConfig(medusa_num_heads=3, medusa_num_layers=1)
    model = module.MedusaModel(target_model(module.KVLlamaForCausalLM), 3, 1)
    drawn(model.medusa_head, 21, 3.0)

    def draft(known, fresh):
        return chain(model(torch.tensor([known[:-1]]))[:, 0, -1])

    path = "medusa/model/medusa_model_legacy.py"
    head, entries = model.medusa_head.state_dict(), json.loads(config.to_json_string())
    written(
        "medusa-legacy",
        "FasterDecoding/Medusa",
        path,
        head,
        entries,
        draft,
        method="medusa",
        k=3,
        file="medusa_lm_head.safetensors",
        options=CHAIN,
    )


def typical():
    """Medusa's acceptance on trees of random units: `tests/zoo/relaxed/typical.safetensors`."""
    use("Medusa")
    from medusa.model.utils import evaluate_posterior, generate_medusa_buffers

    choices = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [1, 1], [0, 0, 0], [0, 0, 1], [1, 0, 0]]
    order = [[], *sorted(choices, key=lambda path: (len(path), path))]
    parents = [order.index(path[:-1]) - 1 for path in order[1:]]
    g, trials, vocab, temperature = torch.Generator().manual_seed(5), 60, 6, 0.7
    logits = (torch.randn(trials, len(order), vocab, generator=g) * 1.5).half().float()
    ways = generate_medusa_buffers(choices, device="cpu")["retrieve_indices"]
    units = torch.zeros(trials, len(order), dtype=torch.int64)
    leaves = torch.zeros(trials, dtype=torch.int64)
    for trial in range(trials):
        for node in range(-1, len(parents)):  # children of a node are different units
            children = [i for i, parent in enumerate(parents) if parent == node]
            units[trial, [1 + i for i in children]] = torch.randperm(vocab, generator=g)[: len(children)]
        padded = torch.cat([units[trial], torch.tensor([vocab])])  # a path of -1 is shorter than the longest
        scores = torch.cat([logits[trial], torch.full((1, vocab), 0.0)])[ways]
        scores = torch.cat([scores, torch.full((*scores.shape[:2], 1), -60.0)], -1)  # padding is never accepted
        best, length = evaluate_posterior(scores, padded[ways], temperature, 0.09, 0.3, fast=True)
        leaves[trial] = ways[best, int(length)]
    about = {"source": "https://github.com/FasterDecoding/Medusa", "commit": commit_of("Medusa")}
    about |= {"path": "medusa/model/utils.py", "epsilon": "0.09", "delta": "0.3", "temperature": str(temperature)}
    tensors = {
        "logits": logits.half(),
        "units": units[:, 1:].contiguous(),
        "parents": torch.tensor(parents),
        "leaves": leaves,
    }
    save_file(tensors, HERE.parents[1] / "zoo/relaxed/typical.safetensors", about)


def fly():
    """FLy's loop with the target and a copy of it that is a little wrong: `tests/zoo/relaxed/fly.safetensors`."""
    module = source("fly", "FLy/fly/models/FLy.py")
    crop = transformers.DynamicCache.crop  # the authors name the length that stays, as one did in their time
    transformers.DynamicCache.crop = lambda cache, length: crop(cache, length - cache.get_seq_length())
    log = SimpleNamespace(info=lambda text: None)
    settings = {"k": 15, "total_gen_tok": 120, "enable_fly": True, "win_len": 4, "entropy_thre": 0.3}
    tensors = {}
    for seed in range(3):
        target, small = target_model(), target_model()
        noise = torch.Generator().manual_seed(seed)
        for weights in small.parameters():
            weights.data += 0.06 * weights.std() * torch.randn(weights.shape, generator=noise)
        fly = module.SPDGenerate(small, target, SimpleNamespace(eos_token_id=-1), log, settings)
        prompt = torch.tensor([PROMPT[seed:]])
        prompt = torch.cat([prompt, target(prompt).logits[:, -1:].argmax(-1)], 1)  # the first unit is not drafted here
        tensors[f"prompt.{seed}"], tensors[f"text.{seed}"] = prompt[0], fly.generate_chunks(prompt, 0)[0]
    about = {"source": "https://github.com/AMD-AGI/FLy", "commit": commit_of("FLy"), "path": "fly/models/FLy.py"}
    about |= {"window": "4", "entropy": "0.3", "noise": "0.06"}
    save_file(tensors, HERE.parents[1] / "zoo/relaxed/fly.safetensors", about)


def hydra(arch):
    use("Hydra")
    from hydra.model import hydra_model as module
    from hydra.model.kv_cache import initialize_past_key_values
    from hydra.model.utils import generate_hydra_buffers

    no_tokenizer(module)
    heads, layers = 3, 2
    config = module.HydraConfig(
        hydra_num_heads=heads, hydra_num_layers=layers, hydra_head_arch=arch, grounded_heads=True
    )
    base = target_model(module.KVLlamaForCausalLM)
    embedding = base.model.embed_tokens.weight.data.clone()
    model = module.HydraModel(base, heads, layers, arch, grounded_heads=True)
    drawn(model.hydra_head, 22 + len(arch))
    base.model.embed_tokens.weight.data = embedding
    buffers = generate_hydra_buffers([[0] * (i + 1) for i in range(heads)], device="cpu")
    narrow = {"num_attention_heads": 2, "hidden_size": 8}  # the authors' cache knows no groups of queries
    sizes = SimpleNamespace(num_hidden_layers=0, max_position_embeddings=256, **narrow)
    cache, _, lengths = initialize_past_key_values(
        SimpleNamespace(config=sizes, device="cpu", dtype=torch.float32), arch
    )

    def draft(known, fresh):
        states = base.model(torch.tensor([known[:-1]]))[0][:, -fresh:]
        with watched(*model.hydra_head.hydra_lm_head) as seen:
            _, units = model.hydra_head.proposal(one_hot(known[-1]), states, buffers, cache)
        assert arch == "mlp" or int(lengths[-1]) == len(known) - 1
        made = chain(torch.cat([out[0] for out in seen]))
        assert made[0] == units[0, 1:].tolist()
        return made

    name = "hydra" if arch == "mlp" else "hydra++"
    path = f"hydra/model/hydra_heads/{arch.replace('-', '_')}_head.py"
    head, entries = model.hydra_head.state_dict(), json.loads(config.to_json_string())
    written(
        name,
        "zankner/Hydra",
        path,
        head,
        entries,
        draft,
        method="hydra",
        k=heads,
        file="hydra_lm_head.pt",
        options=CHAIN,
    )


def clover():
    use("clover")
    from clover.model import clover2 as module
    from clover.model import utils_c
    from clover.model.configs import EConfig
    from clover.model.modeling_llama_kv import LlamaForCausalLM as KV

    base = target_model(KV)
    kept = json.loads((SOURCES / "clover/clover/train/llama3_instruct_8B_config.json").read_text())
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = {**kept, **sizes, "vocab_size": VOCAB, "max_position_embeddings": 256}
    config["clover"] = {"num_heads": 5, "num_layers": 2, "heads_coefficient": 1.0, "decay_coefficient": 0.7}
    with tempfile.TemporaryDirectory() as folder:  # the class reads its first weights there
        weights = {key: value.contiguous() for key, value in base.state_dict().items()}
        weights = {key.replace(f"layers.{LAYERS - 1}.", "layers.0."): value for key, value in weights.items()}
        save_file({key: value.clone() for key, value in weights.items()}, f"{folder}/model.safetensors")
        index = {"weight_map": dict.fromkeys(weights, "model.safetensors")}
        Path(folder, "model.safetensors.index.json").write_text(json.dumps(index))
        model = module.Clover2Model(EConfig(**config), base.lm_head, load_emb=True, path=folder)
    output = base.lm_head.weight.data.clone()
    drawn(model, 24)
    model.lm_head.weight.data = output
    model.clover_embed_tokens.weight.data = output.clone()
    model.diff_device = False
    model.tree_buffer = utils_c.generate_tree_buffers([[0] * (i + 1) for i in range(5)], "cpu")
    model.reset_kv()

    def draft(known, fresh):
        _, states = base.model(torch.tensor([known[:-1]]))
        with watched(base.lm_head) as seen:
            units, _, _ = model.topK_genrate(states[:, -fresh:], torch.tensor([known]), base.lm_head, None)
        made = chain(torch.cat(seen))
        assert made[0] == units[:, 0].tolist()
        return made

    written(
        "clover-2",
        "XiaoBin1992/clover",
        "clover/model/clover2.py",
        model.state_dict(),
        config,
        draft,
        method="clover-2",
        k=5,
        file="model.safetensors",
        options=CHAIN,
    )


# DFlash, DSpark: under this repository's transformers


def qwen3(layers=2, **more):
    from transformers import Qwen3Config

    sizes = {"hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"head_dim": 8, "vocab_size": VOCAB, "max_position_embeddings": 256, "rope_theta": 1000000.0}
    config = Qwen3Config(
        **sizes, num_hidden_layers=layers, bos_token_id=None, eos_token_id=None, pad_token_id=None, **more
    )
    config._attn_implementation = "eager"
    return config


def plain_config(config):
    return {key: value for key, value in config.to_dict().items() if not key.startswith("_")}


def dflash():
    use("dflash")
    from dflash.model import DFlashDraftModel, extract_context_feature
    from transformers import DynamicCache

    mask, block = 47, 5
    more = {"dflash_config": {"mask_token_id": mask, "target_layer_ids": [1, 3, 5]}, "block_size": block}
    config = qwen3(num_target_layers=LAYERS, architectures=["DFlashDraftModel"], **more)
    model, base, cache = drawn(DFlashDraftModel(config), 30), target_model(), DynamicCache()

    def draft(known, fresh):
        out = base(torch.tensor([known[:-1]]), output_hidden_states=True)
        states = extract_context_feature(out.hidden_states, model.target_layer_ids)[:, -fresh:]
        start = len(known) - 1
        noise = base.model.embed_tokens(torch.tensor([[known[-1], *[mask] * (block - 1)]]))
        place = torch.arange(cache.get_seq_length(), start + block)[None]
        how = {"past_key_values": cache, "use_cache": True, "is_causal": False}
        made = model(target_hidden=states, noise_embedding=noise, position_ids=place, **how)
        cache.crop(start)
        return chain(base.lm_head(made[0, 1 - block :]))

    written(
        "dflash",
        "z-lab/dflash",
        "dflash/model.py",
        model.state_dict(),
        plain_config(config),
        draft,
        method="dflash",
        k=block - 1,
        file="model.safetensors",
        options=CHAIN,
    )


def dflash2():
    """The source is the model part of `dflash/model.py` at this commit; what generates texts is left out."""
    use("dflash2")
    from dflash.model import DFlash2DraftModel, _raw_input_embeddings, extract_context_feature
    from transformers import DynamicCache

    mask, block, layers = 47, 5, [1, 3, 5]
    parts = {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 6, "selector_top_k": 7}
    parts |= {
        "output_multiplier": 0.7,
        "final_logit_softcapping": 6.0,
        "input_embedding_scale": 1.25,
        "mask_token_id": mask,
        "target_layer_ids": layers,
    }
    config = qwen3(
        num_target_layers=LAYERS, architectures=["DFlash2DraftModel"], block_size=block, dflash_config=parts,
        layer_types=["full_attention", "sliding_attention"], sliding_window=6, use_sliding_window=True, is_causal=False,
    )  # fmt: skip
    model, base, cache = drawn(DFlash2DraftModel(config), 33), target_model(), DynamicCache()

    def draft(known, fresh):
        out = base(torch.tensor([known[:-1]]), output_hidden_states=True)
        states, start = extract_context_feature(out.hidden_states, layers)[:, -fresh:], len(known) - 1
        noise = _raw_input_embeddings(base, torch.tensor([[known[-1], *[mask] * (block - 1)]]), 1.25)
        place = torch.arange(cache.get_seq_length(), start + block)[None]
        made = model(
            target_hidden=states, noise_embedding=noise, position_ids=place, past_key_values=cache, use_cache=True
        )
        cache.crop(start)
        hidden, root = made[:, 1 - block :], torch.tensor([known[-1]])
        units, candidates, _ = model.propose(hidden, root, base.lm_head, 0.0)
        whole, before, codes = torch.full((block - 1, VOCAB), -torch.inf), root, model.candidate_selector
        unary = model.compute_logits(hidden, base.lm_head)
        for depth, ids in enumerate(candidates[0]):  # the scores of which `propose` takes the best
            code = codes.predecessor_codebook(before) * codes.hidden_projection(hidden[:, depth])
            whole[depth, ids] = unary[0, depth, ids] + codes.successor_codebook(ids) @ code[0]
            before = units[:, depth]
        assert units[0].tolist() == whole.argmax(-1).tolist()
        return chain(whole)

    head = {key.replace("_codebook.weight", "_codebook"): value for key, value in model.state_dict().items()}
    written(
        "dflash2",
        "z-lab/dflash",
        "dflash/model.py",
        head,
        plain_config(config),
        draft,
        method="dflash",
        k=block - 1,
        file="model.safetensors",
        options=CHAIN,
    )


def jetspec():
    """A head that sees its block causally, with the authors' own drafter of chains around it."""
    use("JetSpec")
    from jetspec.draft_head_adapter import DraftHeadDrafter
    from jetspec.models.draft_head import DFlashDraftModel, extract_context_feature

    mask, block, layers = 47, 5, [1, 3, 5]
    more = {"dflash_config": {"mask_token_id": mask, "target_layer_ids": layers, "causal_head": True}}
    config = qwen3(num_target_layers=LAYERS, architectures=["DFlashDraftModel"], block_size=block, **more)
    model, base = drawn(DFlashDraftModel(config), 32), target_model()
    drafter = DraftHeadDrafter(model, base, block, layers)

    def draft(known, fresh):
        out = base(torch.tensor([known[:-1]]), output_hidden_states=True)
        states = extract_context_feature(out.hidden_states, layers)
        with watched(base.lm_head) as seen:
            units = drafter.propose(torch.tensor([known]), block - 1, states)
        assert units.tolist() == chain(seen[0][0])[0]
        return chain(seen[0][0])

    written(
        "jetspec",
        "hao-ai-lab/JetSpec",
        "jetspec/models/draft_head.py",
        model.state_dict(),
        plain_config(config),
        draft,
        method="dflash",
        k=block - 1,
        file="model.safetensors",
        options=CHAIN,
    )


def deepspec_eagle():
    use("DeepSpec")
    from deepspec.modeling.eagle3 import extract_eagle3_context_feature
    from deepspec.modeling.eagle3.qwen3 import Qwen3Eagle3Model
    from deepspec.modeling.eagle3.qwen3.config import build_draft_config
    from deepspec.utils.config import ConfigNode
    from transformers import DynamicCache

    steps, layers = 4, [0, 2, 3, 5, 6]
    asked = {"target_layer_ids": layers, "ttt_length": steps, "step_loss_decay": 0.8, "draft_num_hidden_layers": 1}
    config = build_draft_config(
        target_config=qwen3(LAYERS), model_args=ConfigNode({**asked, "target_model_name_or_path": "Qwen/Qwen3-4B"})
    )
    config._attn_implementation = "eager"
    model, base, cache = drawn(Qwen3Eagle3Model(config), 80), target_model(), DynamicCache()

    def draft(known, fresh):
        out = base(torch.tensor([known[:-1]]), output_hidden_states=True)
        states = extract_eagle3_context_feature(out.hidden_states, layers)[:, -fresh:]
        ids, place, start = torch.tensor([known[-fresh:]]), torch.arange(256)[None], len(known) - 1
        hidden = model.extend_draft_cache(states, ids, place[:, start - fresh : start], cache)
        before, scored, logits = cache.get_seq_length(), [], model.compute_logits(hidden)
        for step in range(steps):
            scored.append(logits[0, 0])
            unit, there = logits.argmax(-1), place[:, start + step : start + step + 1]
            hidden = model(hidden, unit, there, cache, use_cache=True)
            logits = model.compute_logits(hidden)
        cache.crop(before)
        return chain(torch.stack(scored))

    path = "deepspec/modeling/eagle3/qwen3/modeling.py"
    head, entries = model.state_dict(), plain_config(config)
    written(
        "deepspec-eagle-3",
        "deepseek-ai/DeepSpec",
        path,
        head,
        entries,
        draft,
        method="eagle",
        k=steps,
        file="model.safetensors",
        options=CHAIN,
    )


def specforge_dspark():
    """Units begin behind the root, as in the kit's training and in the engine that serves its heads."""
    use("SpecForge")
    from specforge.modeling.draft.dflash import extract_context_feature
    from specforge.modeling.draft.dspark import DSparkDraftModel
    from transformers import DynamicCache, Qwen3Config

    kept = json.loads((SOURCES / "SpecForge/configs/qwen3-4b-dspark.json").read_text())
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"head_dim": 8, "vocab_size": VOCAB, "max_position_embeddings": 256, "num_hidden_layers": 2}
    sizes |= {"layer_types": ["full_attention"] * 2, "num_target_layers": LAYERS, "block_size": 4}
    inner = {"mask_token_id": 47, "target_layer_ids": [1, 3, 6], "markov_rank": 6}
    config = {**kept, **sizes, "dflash_config": {**kept["dflash_config"], **inner}}
    of_class = Qwen3Config(**config)
    of_class._attn_implementation = "eager"
    model, base, cache = drawn(DSparkDraftModel(of_class), 81), target_model(), DynamicCache()

    def draft(known, fresh):
        out = base(torch.tensor([known[:-1]]), output_hidden_states=True)
        states, start = extract_context_feature(out.hidden_states, model.target_layer_ids)[:, -fresh:], len(known) - 1
        noise = base.model.embed_tokens(torch.tensor([[known[-1], *[47] * 3]]))
        place = torch.arange(cache.get_seq_length(), start + 4)[None]
        how = {"past_key_values": cache, "use_cache": True, "is_causal": False}
        hidden = model(target_hidden=states, noise_embedding=noise, position_ids=place, **how)[:, -4:]
        cache.crop(start)
        root = torch.tensor([known[-1]])
        scored = base.lm_head(hidden)
        units, logits = model.markov_head.sample_block_tokens(scored, first_prev_token_ids=root, hidden_states=hidden)
        before = torch.cat([root[:, None], units[:, :-1]], 1)
        made = chain(logits[0])
        assert made[0] == units[0].tolist()
        return *made, {"confidence": model.predict_confidence(hidden, prev_token_ids=before)[0].sigmoid()}

    path = "specforge/modeling/draft/dspark.py"
    written(
        "specforge-dspark",
        "sgl-project/SpecForge",
        path,
        model.state_dict(),
        config,
        draft,
        method="dflash",
        k=4,
        file="model.safetensors",
        options=CHAIN,
    )


def specforge_domino(shifted):
    """Drafted by the authors' own loop over the block, once with labels behind the root and once without."""
    use("SpecForge")
    from specforge.modeling.draft.dflash import extract_context_feature
    from specforge.modeling.draft.domino import DominoDraftModel
    from transformers import DynamicCache, Qwen3Config

    kept = json.loads((SOURCES / "SpecForge/configs/qwen3-8b-domino.json").read_text())
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"head_dim": 8, "vocab_size": VOCAB, "max_position_embeddings": 256, "num_hidden_layers": 2}
    sizes |= {"layer_types": ["full_attention"] * 2, "num_target_layers": LAYERS, "block_size": 5, "emb_dim": 7}
    inner = {"mask_token_id": 47, "target_layer_ids": [1, 3, 6], "emb_dim": 7, "gru_hidden_dim": 10}
    inner |= {"shift_label": shifted, "pure_draft_prefix_len": 1 if shifted else 2}
    config = {**kept, **sizes, "dflash_config": {**kept["dflash_config"], **inner}}
    of_class = Qwen3Config(**json.loads(json.dumps(config)))
    of_class._attn_implementation = "eager"
    model, base, cache = drawn(DominoDraftModel(of_class), 83 + shifted), target_model(), DynamicCache()

    def draft(known, fresh):
        out = base(torch.tensor([known[:-1]]), output_hidden_states=True)
        states, start = extract_context_feature(out.hidden_states, model.target_layer_ids)[:, -fresh:], len(known) - 1
        block = torch.tensor([[known[-1], *[47] * 4]])
        place = torch.arange(cache.get_seq_length(), start + 5)[None]
        how = {"past_key_values": cache, "use_cache": True, "is_causal": False}
        noise = base.model.embed_tokens(block)
        hidden = model(target_hidden=states, noise_embedding=noise, position_ids=place, **how)[:, -5:]
        cache.crop(start - cache.get_seq_length())
        filled = torch.cat([block[:, :1], model._sample_draft_tokens(base, hidden, block)], 1)
        if shifted:  # one more, by the last row: the loop fills a block
            filled = torch.cat([filled, block[:, 1:2]], 1)[:, :5]
        final = model.apply_logits_head(
            base.lm_head(hidden)[:, None],
            prev_token_embeddings=base.model.embed_tokens(filled)[:, None],
            hidden_states=hidden[:, None],
        )[0, 0]
        made = chain(final if shifted else final[1:])
        assert made[0][:4] == filled[0, 1:].tolist()
        return made

    written(
        "specforge-domino" if shifted else "specforge-domino-unshifted",
        "sgl-project/SpecForge",
        "specforge/modeling/draft/domino.py",
        model.state_dict(),
        config,
        draft,
        method="dflash",
        k=5 if shifted else 4,
        file="model.safetensors",
        options=CHAIN,
    )


def dspark(name, rank, kind="vanilla", confidence=0.0, joined=False):
    use("DeepSpec")
    from deepspec.eval.dspark import draft_ops
    from deepspec.modeling.dspark.common import extract_context_feature
    from deepspec.modeling.dspark.qwen3 import Qwen3DSparkModel
    from deepspec.modeling.dspark.qwen3.config import build_draft_config
    from deepspec.utils.config import ConfigNode
    from transformers import DynamicCache

    block, mask = 4, 47
    asked = {
        "num_draft_layers": 2,
        "target_layer_ids": [-1, 2, 5],
        "confidence_head_alpha": confidence,
        "markov_rank": rank,
    }
    asked |= {"confidence_head_with_markov": joined, "markov_head_type": kind, "block_size": block}
    config = build_draft_config(qwen3(LAYERS), ConfigNode({**asked, "mask_token_id": mask, "num_anchors": 8}))
    config._attn_implementation = "eager"
    model, base, cache = drawn(Qwen3DSparkModel(config), 31 + rank), target_model(), DynamicCache()
    sampled, seen = model.sample_draft_tokens, []
    model.sample_draft_tokens = lambda *a, **more: seen.append(sampled(*a, **more)) or seen[-1]

    def draft(known, fresh):
        out = base(torch.tensor([known[:-1]]), output_hidden_states=True)
        states = extract_context_feature(out.hidden_states, model.target_layer_ids)[:, -fresh:]
        ids, place, start = torch.tensor([[known[-1], *[mask] * (block - 1)]]), torch.arange(256)[None], len(known) - 1
        how = {"past_key_values_draft": cache, "target_hidden_states": states, "start": start, "block_size": block}
        hidden = draft_ops.forward_dspark_draft_block(model, draft_input_ids=ids, position_ids=place, **how)
        how = {"draft_input_ids": ids, "block_hidden": hidden, "block_size": block}
        proposal = draft_ops.build_dspark_proposal(model, **how, temperature=0.0, confidence_threshold=0.0)
        made = chain(seen[-1][1][0])
        assert made[0] == proposal.verify_input_ids[0, 1:].tolist()
        more = {} if proposal.confidence_logits is None else {"confidence": proposal.confidence_logits[0].sigmoid()}
        return *made, more

    path = "deepspec/modeling/dspark/qwen3/modeling.py"
    written(
        name,
        "deepseek-ai/DeepSpec",
        path,
        model.state_dict(),
        plain_config(config),
        draft,
        method="dflash",
        k=block,
        file="model.safetensors",
        options=CHAIN,
    )


# Speculators by MLP and LSTM; what their modules import of serving engines stands here as nothing


class Nothing(ModuleType):
    """A module of which anything can be imported; all of it does nothing."""

    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (torch.nn.Module,), {"__init__": lambda self, *args, **more: None})


def without(*names):
    """Let these modules, and the packages around them, be imported as nothing."""
    for name in names:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            inner = ".".join(parts[:end])
            if inner not in sys.modules:
                sys.modules[inner] = Nothing(inner)


def source(name, path):
    """A module of one file, imported without its package."""
    spec = importlib.util.spec_from_file_location(name, SOURCES / path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mlp_speculator(tied):
    use("fms")  # ibm-fms of the package index: its norm is the authors'
    importlib.import_module("fms.modules.layernorm")
    without("fms.models", "fms.models.hf", "fms.utils", "fms_extras", "fms_extras.models")
    sys.modules["fms.models"].register_model = sys.modules["fms.models"].hf = lambda *args, **more: None
    sys.modules["fms.utils"].serialization = Nothing("serialization")
    sys.modules["fms.models.hf"]._fms_to_hf_adapt_map = {}
    source("fms_extras.models.speculator", "fms-extras/fms_extras/models/speculator.py")
    module = source("modeling_mlp_speculator", "fms-extras/fms_extras/models/hf/modeling_mlp_speculator.py")
    sizes = {
        "vocab_size": VOCAB,
        "emb_dim": HIDDEN,
        "inner_dim": 12,
        "n_predict": 3,
        "tie_weights": tied,
        "scale_input": tied,
    }
    config, base = module.MLPSpeculatorConfig(**sizes), target_model()
    model = module.MLPSpeculator(*[sizes[k] for k in ("emb_dim", "inner_dim", "vocab_size", "n_predict")], tied, tied)
    drawn(model, 40 + tied)

    def draft(known, fresh):
        state, units = features(base, known)[:, -1:], [known[-1]]
        (path,) = model.generate_suffixes(state, torch.tensor([[units[0]]]), topk=[1, 1, 1], n=1)[0]
        scored = model(state, torch.tensor([[known[-1], *path.tolist()]]))
        made = chain(scored[:, 0, 0])
        assert made[0] == path.tolist()
        return made

    own = dict(model.named_parameters())  # a tied tensor once, as transformers saves it
    head = {f"speculator.{key}": value for key, value in own.items()}
    entries = {"architectures": ["MLPSpeculatorPreTrainedModel"], **json.loads(config.to_json_string())}
    name = f"mlp-speculator{'-tied' if tied else ''}"
    written(
        name,
        "foundation-model-stack/fms-extras",
        "fms_extras/models/speculator.py",
        head,
        entries,
        draft,
        method="mlp-speculator",
        k=3,
        file="model.safetensors",
        options=CHAIN,
    )


def arctic_lstm():
    F = torch.nn.functional
    here = "arctic_inference.vllm.spec_dec"
    without("vllm.config", "vllm.v1.outputs", "vllm.model_executor.model_loader.weight_utils", f"{here}.fp8")
    without(f"{here}.logits_processor_opt", f"{here}.vocab_parallel_embedding", "arctic_inference.py_custom_ops")
    sys.modules[f"{here}.logits_processor_opt"].LogitsProcessorOpt = lambda **more: (
        lambda head, x: F.linear(x, head.weight)
    )
    sys.modules["arctic_inference.py_custom_ops"].try_load_torch_library = lambda: False
    engine = sys.modules[f"{here}.vocab_parallel_embedding"]
    engine.SpeculatorTPInit = type("SpeculatorTPInit", (), {"__init__": lambda self: setattr(self, "tp_size", 1)})
    engine.ParallelLMHead = lambda rows, width, **more: torch.nn.Linear(width, rows, bias=False)
    module = source("arctic_speculator", "ArcticInference/arctic_inference/vllm/spec_dec/arctic_speculator.py")
    entries = {"architectures": ["ArcticLSTMSpeculatorPreTrainedModel"], "method": "sum_lstm", "vocab_size": VOCAB}
    entries |= {"input_hidden_dim": HIDDEN, "inner_dim": "12", "emb_dim": "12", "proj_dim": "12", "n_predict": 3}
    entries |= {"num_lookahead_tokens": 3, "tie_weights": True, "tie_lstm_embs": True, "scale_input": True}
    settings = SimpleNamespace(disable_by_batch_size=1)
    whole = SimpleNamespace(model_config=SimpleNamespace(hf_config=SimpleNamespace(**entries), enforce_eager=True))
    model = module.ArcticLSTMSpeculator(vllm_config=SimpleNamespace(**vars(whole), speculative_config=settings))
    model.qhead, base = None, target_model()  # the copy of the output layer in eight bits
    drawn(model, 42, 3.0)
    project, seen = model.logits_processor, []
    model.logits_processor = lambda head, x: seen.append(project(head, x)) or seen[-1]

    def draft(known, fresh):
        seen.clear()
        units = model.generate_proposals(torch.tensor([known[-1]]), features(base, known)[:, -1], 3)
        made = chain(torch.cat(seen))
        assert made[0] == units[0].tolist()
        return made

    path = "arctic_inference/vllm/spec_dec/arctic_speculator.py"
    written(
        "arctic-lstm",
        "snowflakedb/ArcticInference",
        path,
        model.state_dict(),
        entries,
        draft,
        method="arctic-lstm",
        k=3,
        file="model.safetensors",
        options=CHAIN,
    )


# Heads of the kit speculators; what a round drafts is one of the chains, or blocks, of a training pass


def kit(algorithm, length):
    """What configs of the kit say of how a head is used; makes the kit importable."""
    if str(SOURCES / "speculators/src") not in sys.path:
        use("speculators/src")
        version = importlib.metadata.version
        importlib.metadata.version = lambda name: "0" if name == "speculators" else version(name)
        without("datasets", "loguru", "hs_connectors")
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    verifier = VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    how = {
        "proposal_methods": [GreedyTokenProposalConfig(speculative_tokens=length)],
        "default_proposal_method": "greedy",
    }
    return SpeculatorsConfig(algorithm=algorithm, verifier=verifier, **how)


def kept_ids(model):
    """Give a head of the kit a map of fewer ids; the target's id of each."""
    number = model.draft_vocab_size
    ids = torch.arange(VOCAB)[torch.randperm(VOCAB, generator=torch.Generator().manual_seed(2)) < number]
    marks = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    model.load_vocab_mappings(marks, ids - torch.arange(number))
    return ids


def over_all(logits, ids):
    """Logits over the target's ids, -inf where a head has none."""
    return torch.full((len(logits), VOCAB), -torch.inf).index_copy(1, ids, logits)


def write_kit(name, module, model, config, draft, method, k):
    head = {key: value for key, value in model.state_dict().items() if key not in model._keys_to_ignore_on_save}
    entries = json.loads(json.dumps(config.to_dict(), default=str))
    path = f"src/{module.__name__.replace('.', '/')}.py"
    written(
        name,
        "vllm-project/speculators",
        path,
        head,
        entries,
        draft,
        method=method,
        k=k,
        file="model.safetensors",
        options=CHAIN,
    )


def llama_layers():
    layer = LlamaConfig(**{**TARGET, "num_hidden_layers": 2})
    layer._attn_implementation = "sdpa"  # under `eager` the kit adds 0, and not -inf, for other rows of earlier steps
    return layer


def p_eagle():
    depths, mask = 4, 47
    of_kit = kit("peagle", depths)
    from speculators.models.peagle import core

    more = {"eagle_aux_hidden_state_layer_ids": [1, 4, 6], "mask_token_id": mask, "norm_before_residual": True}
    how = {"transformer_layer_config": llama_layers(), "draft_vocab_size": VOCAB, "speculators_config": of_kit}
    config = core.PEagleSpeculatorConfig(**how, **more)
    model, base = drawn(core.PEagleDraftModel(config), 50), target_model()
    core.compute_metrics = lambda **more: (None, None)

    def draft(known, fresh):
        units, states = torch.tensor([known[1:]]), features(base, known, [1, 4, 6])
        last = units.shape[1] - 1
        units, states = (torch.cat([x, x[:, :depths]], 1) for x in (units, states))  # what stands behind is not read
        anchors = torch.cat([torch.arange(last), torch.full((depths,), last)])
        depth = torch.cat([torch.zeros(last, dtype=torch.int64), torch.arange(depths)])
        core.generate_cod_sample_indices = lambda **more: (anchors, depth)
        with watched(model.lm_head) as seen:
            model(states, units, torch.zeros_like(units), verifier_last_hidden_states=states[..., :HIDDEN])
        return chain(seen[0][0, -depths:])

    write_kit("p-eagle", core, model, config, draft, "p-eagle", depths)


def speculators_eagle(name, **flags):
    steps = 3
    of_kit = kit("eagle3", steps)
    from speculators.models.eagle3 import core

    how = {"transformer_layer_config": llama_layers(), "draft_vocab_size": 30, "speculators_config": of_kit}
    config = core.Eagle3SpeculatorConfig(**how, eagle_aux_hidden_state_layer_ids=[2, 4, 7], **flags)
    model, base = drawn(core.Eagle3DraftModel(config), 51 + len(flags)), target_model()
    ids = kept_ids(model)

    def draft(known, fresh):
        states, last, path = features(base, known, [2, 4, 7]), len(known) - 2, []
        for _ in range(steps):  # the pass is told the units of earlier steps
            units = torch.tensor([[*known[1:], *path, *[0] * (steps - len(path))]])
            wide = torch.cat([states, states[:, :steps]], 1)  # what stands behind is not read
            with watched(model.lm_head) as seen:
                model(wide, units, torch.zeros_like(units), ttt_steps=steps)
            logits = over_all(torch.stack([out[0, last] for out in seen]), ids)
            path.append(int(logits[len(path)].argmax()))
        return chain(logits)

    write_kit(name, core, model, config, draft, "eagle", steps)


def speculators_block(name, kind, block=4, **flags):
    from_root = kind == "dspark"
    units = block if from_root else block - 1
    of_kit = kit(kind, units)
    core = importlib.import_module(f"speculators.models.{kind}.core")
    base_core = importlib.import_module("speculators.models.dflash.core")
    config_class = {"dflash": "DFlashSpeculatorConfig", "dspark": "DSparkSpeculatorConfig"}[kind]
    model_class = {"dflash": "DFlashDraftModel", "dspark": "DSparkDraftModel"}[kind]
    window = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 5, "use_sliding_window": True}
    layer = qwen3(**(window if flags.pop("window", False) else {}))
    more = {
        "block_size": block,
        "aux_hidden_state_layer_ids": [1, 3, 6],
        "mask_token_id": 47,
        "sample_from_anchor": from_root,
    }
    how = {"transformer_layer_config": layer, "draft_vocab_size": 30, "speculators_config": of_kit}
    config = getattr(core, config_class)(**how, **more, **flags)
    model, base = drawn(getattr(core, model_class)(config), 53 + len(flags)), target_model()
    ids, seen = kept_ids(model), []
    core.compute_metrics = lambda logits, *rest, **more: (seen.append((logits, *rest)), (None, None))[1]

    def draft(known, fresh):
        states, root, path = features(base, known, [1, 3, 6]), len(known) - 1, []
        base_core.select_anchors = lambda *args: (torch.tensor([root]), torch.tensor([True]))
        for _ in range(units):  # the pass is told the units before
            text = torch.tensor([[*known, *path, *[0] * (block - len(path))]])
            wide = torch.cat([states, states[:, : block + 1]], 1)  # what stands behind is not read
            loss_mask, last = torch.ones_like(text), torch.zeros(1, text.shape[1], HIDDEN)
            model(wide, text, loss_mask, last, torch.zeros_like(text), max_anchors=1)
            logits = over_all(seen[-1][0][0, -units:], ids)
            path.append(int(logits[len(path)].argmax()))
        guesses = seen[-1][2] if kind == "dspark" else None
        return *chain(logits), {} if guesses is None else {"confidence": guesses[0, -units:].sigmoid()}

    write_kit(name, core, model, config, draft, "dflash", units)


def specforge():
    use("SpecForge")
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3

    kept, steps = json.loads((SOURCES / "SpecForge/configs/llama3-8B-eagle3.json").read_text()), 3
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = {**kept, **sizes, "vocab_size": VOCAB, "draft_vocab_size": 30, "max_position_embeddings": 256}
    model, base = drawn(LlamaForCausalLMEagle3(LlamaConfig(**config)), 70), target_model()
    model.embed_tokens.weight.data = base.model.embed_tokens.weight.data.clone()
    ids = torch.arange(VOCAB)[torch.randperm(VOCAB, generator=torch.Generator().manual_seed(2)) < 30]
    model.d2t.copy_(ids - torch.arange(30))
    model.t2d.zero_()[ids] = True

    def draft(known, fresh):
        states, rows, path = features(base, known, [2, LAYERS // 2, LAYERS - 3]), len(known) - 1, []
        for _ in range(steps):  # the pass is told the units of earlier steps
            text, now = torch.tensor([[*known, *path, *[0] * (steps - len(path))]]), model.project_hidden_states(states)
            mask = model.prepare_decoder_attention_mask(torch.ones(1, rows), now, 1, rows, 0)
            kept, scored = [[], []], []
            for step in range(steps):
                embedded, place = model.embed_input_ids(text[:, 1 + step : 1 + step + rows]), torch.arange(rows)[None]
                now = model.backbone(embedded, now, kept, mask, place)
                scored.append(model.compute_logits(now)[0, -1])
            logits = over_all(torch.stack(scored), ids)
            path.append(int(logits[len(path)].argmax()))
        return chain(logits)

    head = {key: value for key, value in model.state_dict().items() if "embed" not in key}  # as its trainer saves
    path = "specforge/modeling/draft/llama3_eagle.py"
    written(
        "specforge-eagle-3",
        "sgl-project/SpecForge",
        path,
        head,
        config,
        draft,
        method="eagle",
        k=steps,
        file="model.safetensors",
        options=CHAIN,
    )


def latent():
    """A head of TorchSpec for Kimi's latent attention. Its package is not imported: parts of it start servers."""
    folder = SOURCES / "TorchSpec/torchspec"
    for name in ("", ".models", ".models.draft", ".models.ops", ".utils", ".utils.wandb"):
        package = sys.modules[f"torchspec{name}"] = ModuleType(f"torchspec{name}")
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
    sys.modules["torchspec.utils"].wandb = sys.modules["torchspec.utils.wandb"]
    from torchspec.models.draft.deepseek_eagle import Eagle3DeepseekV2ForCausalLM

    kept, steps = json.loads((SOURCES / "TorchSpec/configs/draft_models/kimi_k25_eagle3_mla.json").read_text()), 3
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 4}
    ranks = {"q_lora_rank": 10, "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8}
    # Under yarn the class turns with the base 10,000, whatever the config says; vLLM, and mmspec, read the config.
    yarn = {**kept["rope_scaling"], "factor": 4.0, "original_max_position_embeddings": 8}
    turn = {"rope_scaling": yarn, "rope_theta": 10000.0}
    config = {**kept, **sizes, **ranks, **turn, "vocab_size": VOCAB, "draft_vocab_size": VOCAB}
    read = transformers.DeepseekV3Config(**{**config, "max_position_embeddings": 256})
    vars(read).update(rope_scaling=config["rope_scaling"], rope_theta=config["rope_theta"])  # under the names of then
    model, base = drawn(Eagle3DeepseekV2ForCausalLM(read), 71), target_model()
    model.embed_tokens.weight.data = base.model.embed_tokens.weight.data.clone()

    def draft(known, fresh):
        states, rows, path = features(base, known, [2, LAYERS // 2, LAYERS - 3]), len(known) - 1, []
        for _ in range(steps):  # the pass is told the units of earlier steps
            text, now = torch.tensor([[*known, *path, *[0] * (steps - len(path))]]), model.project_hidden_states(states)
            mask = model.prepare_decoder_attention_mask(torch.ones(1, rows), now, 1, rows, 0)
            keys, values, scored, place = None, None, [], torch.arange(rows)[None]
            for step in range(steps):
                embedded = model.embed_input_ids(text[:, 1 + step : 1 + step + rows])
                now, keys, values = model.backbone(embedded, now, mask, place, keys, values)
                scored.append(model.compute_logits(now)[0, -1])
            path.append(int(scored[len(path)].argmax()))
        return chain(torch.stack(scored))

    head = {key: value for key, value in model.state_dict().items() if "embed" not in key}
    path = "torchspec/models/draft/deepseek_eagle.py"
    ids = {"eagle_config": {**kept["eagle_config"], "eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}
    written(
        "torchspec-eagle-3-latent",
        "lightseekorg/TorchSpec",
        path,
        head,
        {**config, **ids},
        draft,
        method="eagle",
        k=steps,
        file="model.safetensors",
        options=CHAIN,
    )


def gemma4(clusters):
    """An assistant over the keys of a target of its own. The source is the package of transformers."""
    kept = {
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 12, "vocab_size": VOCAB,
        "sliding_window": 6, "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": None,
        "pad_token_id": None,
    }  # fmt: skip
    kinds = ["sliding_attention", "full_attention"]
    sizes = {"hidden_size": HIDDEN, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": VOCAB}
    its = transformers.Gemma4TextConfig(
        **kept, **sizes, intermediate_size=24, num_hidden_layers=4, num_kv_shared_layers=2, layer_types=kinds * 2
    )
    sizes = {"hidden_size": 12, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    text = transformers.Gemma4TextConfig(
        **kept, **sizes, intermediate_size=20, num_hidden_layers=2, num_kv_shared_layers=2, layer_types=kinds
    )
    part = {"use_ordered_embeddings": clusters > 0, "num_centroids": clusters, "centroid_intermediate_top_k": 5}
    config = transformers.Gemma4AssistantConfig(text_config=text, backbone_hidden_size=HIDDEN, **part)
    base, model = transformers.Gemma4ForCausalLM(its), transformers.Gemma4AssistantForCausalLM(config)
    drawn(base, 90), drawn(model, 91, 2.0)
    for name, value in [*base.named_parameters(), *model.named_parameters()]:
        value.data *= 0.25 if "q_norm" in name else 1.0  # scores are divided by nothing: attention would be chaotic
    if clusters:
        order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(4))
        model.masked_embedding.token_ordering.copy_(order)

    def draft(known, fresh):
        """The target's keys are those of known units alone: transformers' own loop hands on a rejected unit's, too."""
        out = base.model(torch.tensor([known[:-1]]), use_cache=False, return_shared_kv_states=True)
        unit, state, logits = torch.tensor([[known[-1]]]), out.last_hidden_state[:, -1:], []
        for _ in range(4):
            made = model(
                inputs_embeds=torch.cat([base.get_input_embeddings()(unit), state], -1),
                position_ids=torch.tensor([[len(known) - 1]]),
                shared_kv_states=out.shared_kv_states,
                use_cache=False,
            )
            scored, state, unit = made.logits[0, -1], made.last_hidden_state, made.logits.argmax(-1)
            logits.append(torch.where(scored == scored.min(), -torch.inf, scored) if clusters else scored)
        return chain(torch.stack(logits))

    head = {key: value for key, value in model.state_dict().items() if key != "lm_head.weight"}  # tied
    COMMITS["transformers"] = transformers.__version__
    written(
        f"gemma4/{'clusters' if clusters else 'all-ids'}",
        "huggingface/transformers",
        "src/transformers/models/gemma4_assistant/modeling_gemma4_assistant.py",
        head,
        {**json.loads(config.to_json_string()), "architectures": ["Gemma4AssistantForCausalLM"]},
        draft,
        method="gemma4-assistant",
        k=4,
        file="model.safetensors",
        options={"form": "chain"},
        base=base,
    )


def falcon():
    """Known units in whole blocks: elsewhere the authors' blocks depend on how many units earlier rounds accepted.

    Their class passes on the pair that torch's LSTM returns; here it gets the first of the two.
    """
    use("Falcon")
    from models import cnets, utils_c
    from models.configs import FConfig

    block, units = 2, 4
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"num_hidden_layers": 1, "vocab_size": VOCAB, "max_position_embeddings": 256, "k_mask": block}
    config = FConfig(**sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0, rms_norm_eps=1e-6)
    model, base = drawn(cnets.Model(config), 90, 2.0), target_model()
    model.embed_tokens.weight.data = base.model.embed_tokens.weight.data.clone()
    model.lstm.register_forward_hook(lambda module, given, pair: pair[0])
    model.diff_device = False
    model.tree_buffer = utils_c.generate_tree_buffers([[0] * (i + 1) for i in range(units)], "cpu", block)
    model.reset_kv()

    def draft(known, fresh):
        states = features(base, known)[:, -max(fresh, block) :]
        with watched(base.lm_head) as seen:
            text, accepted = torch.tensor([known]), fresh - 1
            model.topK_genrate(states, text, base.lm_head, None, k_mask=block, accept_length=accepted)
        return chain(torch.cat(seen))

    head, entries = model.state_dict(), {"architectures": ["LlamaForCausalLM"], **json.loads(config.to_json_string())}
    written(
        "falcon",
        "Bestpay-inc/Falcon",
        "models/cnets.py",
        head,
        entries,
        draft,
        method="falcon",
        k=units,
        file="model.safetensors",
        options={"form": "chain"},
        accepted=(3, 0),
        prompt=[*PROMPT, 12],
    )


def ppd():
    use("parallel-prompt-decoding")
    sys.path.insert(0, str(SOURCES / "peft09"))  # peft 0.9
    without("fastchat.model.model_adapter", "fastchat.conversation")
    from peft import PromptTuningInit, TaskType
    from prompt.model import model as module
    from prompt.utils import VTAttentionType

    module.transformers.AutoTokenizer = SimpleNamespace(from_pretrained=lambda *args, **more: None)
    number, base = 3, target_model(module.CustomLlamaForCausalLM)
    how = {"prompt_tuning_init": PromptTuningInit.RANDOM, "vt_attention_type": VTAttentionType.DECODER}
    config = module.PromptConfig(
        num_special_tokens=number, task_type=TaskType.CAUSAL_LM, base_model_name_or_path="x", **how
    )
    model = module.PromptDecoder(base, config)
    drawn(model.prompt_encoder, 52, 4.0)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        head = load_file(f"{folder}/adapter_model.safetensors")
        entries = json.loads(Path(folder, "adapter_config.json").read_text())

    def draft(known, fresh):
        if len(known) == len(PROMPT) + 1:  # prompt tokens stand behind nodes, and a prompt has none
            return [], [], torch.zeros(0, VOCAB)
        ids = torch.tensor([known[:-1]])
        return chain(model(ids, attention_mask=torch.ones_like(ids)).logits[0, -number:])

    path = "prompt/model/model.py"
    written(
        "ppd",
        "hmarkc/parallel-prompt-decoding",
        path,
        head,
        entries,
        draft,
        method="ppd",
        k=number,
        file="adapter_model.safetensors",
        options={"form": "chain"},
        accepted=(0, 2, 0),
    )


# PARD: the authors' whole loop, with a target whose logits are scripted


def pard():
    use("PARD")
    without("loguru")
    sys.modules["loguru"].logger = SimpleNamespace(
        **dict.fromkeys(("remove", "add", "info"), lambda *args, **more: None)
    )
    from pard import pard_infer as module

    k, mask = 4, 46
    layer = LlamaConfig(**{**TARGET, "num_hidden_layers": 2, "rope_theta": 5000.0}, pard_token=mask)
    model = drawn(LlamaForCausalLM(layer), 60, 1.8)
    plan, fed, scored, clock = [0, *ACCEPTED, 0], [], [], count()
    with torch.no_grad():
        root = int(target_model()(torch.tensor([PROMPT])).logits[0, -1].argmax())

    class Loop(module.PardInfer):
        def speed_logger(self, name=None, log=True):
            return float(next(clock))

        def get_input(self, prompt, tokenizer, prompt_type):
            return prompt, torch.tensor([PROMPT])

    def decided(input_ids, **more):
        """Logits of a target that takes as many drafted units as the plan says, and then another one."""
        drafts, taken = input_ids[0, -k:].tolist(), plan[len(fed) - 1]
        units = [*drafts[:taken], *[next(unit for unit in range(11, VOCAB) if unit != drafts[taken])] * (k + 1 - taken)]
        if len(fed) == 1:
            units = [root] * (k + 1)
        logits = torch.nn.functional.one_hot(torch.tensor([units]), VOCAB).float()
        return SimpleNamespace(logits=logits)

    def scores(input_ids, **more):
        out = model(input_ids=input_ids, **more)
        fed.append(input_ids[0, : 1 - k].tolist())
        scored.append(out.logits[0, -k:])
        return out

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loop = Loop(k, 6, folder, "qwen", "", True, max_cache_len=64)
    cache = module.StaticCache(config=layer, max_batch_size=1, max_cache_len=64, device="cpu", dtype=torch.float32)
    nothing = SimpleNamespace(reset=lambda: None)
    target = SimpleNamespace(forward=decided, forward_gen=decided, device="cpu")
    drafter, words = SimpleNamespace(forward_gen=scores), SimpleNamespace(eos_token_id=-1, decode=lambda ids: "")
    loop.generate([""], target, drafter, nothing, cache, words)

    def draft(known, fresh):
        number = next(n for n in range(1, len(fed)) if list(chain_of.from_iterable(fed[: n + 1])) == known)
        return chain(scored[number])

    entries = {key: value for key, value in json.loads(layer.to_json_string()).items()}
    written(
        "pard",
        "AMD-AGI/PARD",
        "pard/pard_infer.py",
        model.state_dict(),
        entries,
        draft,
        method="pard",
        k=k,
        file="model.safetensors",
        options={"form": "chain"},
    )


CHAIN = {"probe": False, "form": "chain"}
MAKERS: dict[str, Callable[[], None]] = {
    "medusa": medusa,
    "medusa-legacy": medusa_legacy,
    "typical": typical,
    "fly": fly,
    "hydra": lambda: hydra("mlp"),
    "hydra++": lambda: hydra("prefix-mlp"),
    "clover-2": clover,
    "mlp-speculator": lambda: mlp_speculator(False),
    "mlp-speculator-tied": lambda: mlp_speculator(True),
    "arctic-lstm": arctic_lstm,
    "p-eagle": p_eagle,
    "speculators-eagle-3": lambda: speculators_eagle("speculators-eagle-3", norm_before_residual=True),
    "speculators-eagle-3.1": lambda: speculators_eagle("speculators-eagle-3.1", fc_norm=True, norm_output=True),
    "speculators-dflash": lambda: speculators_block("speculators-dflash", "dflash", window=True),
    "speculators-dspark": lambda: speculators_block(
        "speculators-dspark",
        "dspark",
        markov_rank=6,
        markov_head_type="gated",
        enable_confidence_head=True,
        confidence_head_with_markov=True,
    ),
    "specforge-eagle-3": specforge,
    "specforge-dspark": specforge_dspark,
    "specforge-domino": lambda: specforge_domino(True),
    "specforge-domino-unshifted": lambda: specforge_domino(False),
    "torchspec-eagle-3-latent": latent,
    "gemma4/all-ids": lambda: gemma4(0),
    "gemma4/clusters": lambda: gemma4(12),
    "falcon": falcon,
    "ppd": ppd,
    "pard": pard,
    "dflash": dflash,
    "jetspec": jetspec,
    "dflash2": dflash2,
    "deepspec-eagle-3": deepspec_eagle,
    "deepspec-dflash": lambda: dspark("deepspec-dflash", 0),
    "dspark": lambda: dspark("dspark", 6, confidence=1.0, joined=True),
    "dspark-gated": lambda: dspark("dspark-gated", 5, "gated", confidence=1.0),
    "dspark-rnn": lambda: dspark("dspark-rnn", 7, "rnn"),
    "eagle-1": lambda: eagle(1),
    "eagle-3": lambda: eagle(3),
    "eagle-3-pruned": lambda: eagle(3, pruned=True),
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    SOURCES = Path(sys.argv[1])
    COMMITS = json.loads((SOURCES / "commits.json").read_text())
    target_model()
    for wanted in sys.argv[2:]:
        MAKERS[wanted]()
