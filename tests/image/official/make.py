"""Makes the fixtures of this folder with the classes of the authors: `python make.py NAME SOURCE REPOSITORY COMMIT`.

`NAME` is `lumina`, `anole`, `janus` or `emu3`, and `SOURCE` a working tree of the authors' repository. It needs what
their code needs, which is not what mmspec needs: transformers 4.44, tiktoken, timm, attrdict, torchvision and xformers;
of the last three a stub will do, with xformers' attention written for a CPU. Their programs ask for a GPU by name; here
every `cuda` is a `cpu`. A fixture holds prompts, codes and pixels, and where the authors' class has many weights, their
shapes. The weights are by a formula (`tests/support/official_files.py`), and the authors' loaders have to find a place
for each.
"""

import argparse
import ast
import json
import os
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
import official_files as files


class OnCpu(TorchFunctionMode):
    """`device="cuda"` and `.cuda()` mean the CPU."""

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call is torch.Tensor.cuda:
            return args[0]
        how = {key: _on_cpu(value) for key, value in (kwargs or {}).items()}
        return call(*map(_on_cpu, args), **how)


def _on_cpu(value: Any) -> Any:
    return "cpu" if isinstance(value, str | torch.device) and str(value).startswith("cuda") else value


def lumina(source: Path, place: Path) -> dict[str, torch.Tensor]:
    """`FlexARInferenceSolver`: its model, prompt, processors of logits and pictures."""
    sys.path[:0] = [str(source), str(source / "lumina_mgpt")]
    folder = files.write_lumina(place / "lumina")
    files.write_vqgan(place / "ckpts" / "chameleon" / "tokenizer")
    os.chdir(place)
    import inference_solver
    from model.chameleon import ChameleonForConditionalGeneration

    model, info = ChameleonForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert not info["unexpected_keys"] and all("vqmodel" in key for key in info["missing_keys"])
    solver = inference_solver.FlexARInferenceSolver.__new__(inference_solver.FlexARInferenceSolver)
    solver.model, solver.dtype = model.eval(), torch.float32
    solver.item_processor = inference_solver.FlexARItemProcessor(tokenizer=str(folder), target_size=64)
    rows, columns = 6, 4  # of codes
    words = "Generate an image of 8x12 according to the following prompt:\na red fox"
    item = {"image": [], "conversations": [{"from": "human", "value": words}, {"from": "gpt", "value": None}]}
    header = [files.BREAK, 8804 + rows // 2, 8804 + columns // 2]  # a trained model writes these itself
    prompt = torch.tensor([solver.item_processor.process_item(item) + header])
    made = {"prompt": prompt}
    for name, how in (("greedy", {"do_sample": False}), ("sampled", {"do_sample": True, "top_k": None})):
        torch.manual_seed(5)
        processors = solver.create_logits_processor(cfg=4.0, image_top_k=2000 if name == "greedy" else 50)
        config = inference_solver.GenerationConfig(max_new_tokens=rows * (columns + 1) + 1, eos_token_id=[8710], **how)
        made[name] = model.generate(prompt, config, logits_processor=processors)[0, prompt.shape[1] :]
    picture = solver.item_processor.decode_image([*header, *made["greedy"].tolist()])
    made["pixels"] = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).reshape(rows * 2, columns * 2, 3)
    return made


def anole(source: Path, place: Path) -> dict[str, torch.Tensor]:
    """The classes behind `text2image.py`: transformer, generator, options, tokens and pictures."""
    sys.path.insert(0, str(source))
    from chameleon.inference import chameleon, model_adapter, transformer

    model_adapter.cudagraph_wrap = lambda call, **how: call
    weights, words = files.write_anole(place / "7b"), files.write_vqgan(place / "tokenizer")
    params = json.loads((weights / "params.json").read_text())["model"]
    model = transformer.Transformer(transformer.ModelArgs(**params)).float().eval()
    found = model.load_state_dict(torch.load(weights / "consolidated.pth"), strict=False)
    assert not found.missing_keys and found.unexpected_keys == ["rope.freqs"]
    parts = [str(words / name) for name in ("text_tokenizer.json", "vqgan.yaml", "vqgan.ckpt")]
    tokens = chameleon.TokenManager(*parts, device="cpu")
    said = [{"type": "text", "value": "a red fox"}, {"type": "sentinel", "value": "<END-OF-TURN>"}]
    prompt = tokens.tokens_from_ui(said)
    made = {}
    for name in ("greedy", "sampled"):
        torch.manual_seed(5)
        options = chameleon.Options(txt=False, img=chameleon.Options.Image(greedy=name == "greedy"))
        drawn = chameleon.Generator(model, tokens.vocab, options, [list(prompt)])
        made[name] = torch.stack([token.id for token in drawn])[:, 0]
    made["prompt"] = torch.tensor([[*prompt, tokens.vocab.begin_image]])
    (picture,) = tokens.decode_image(made["greedy"][None])
    made["pixels"] = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).reshape(64, 64, 3)
    return made


def janus(source: Path, place: Path) -> dict[str, torch.Tensor]:
    """`MultiModalityCausalLM`, and the function `generate` of `generation_inference.py`."""
    sys.path.insert(0, str(source))
    from janus.models import modeling_vlm, processing_vlm, siglip_vit, vq_model
    from transformers import PreTrainedTokenizerFast

    tower = siglip_vit.SigLIP_MODEL_CONFIG["siglip_large_patch16_384"]
    tower |= {"image_size": 32, "patch_size": 8, "width": 64, "layers": 2, "heads": 1}
    sizes = dict(codebook_size=40, codebook_embed_dim=4, encoder_ch_mult=[1, 1], decoder_ch_mult=[1, 1], z_channels=32)
    vq_model.VQ_models["VQ-16"] = lambda: vq_model.VQModel(vq_model.ModelArgs(**sizes))
    model = modeling_vlm.MultiModalityCausalLM(modeling_vlm.MultiModalityConfig(**files.JANUS)).eval()
    shapes = noted(model)
    folder = files.write_janus(place / "janus", shapes)
    model.load_state_dict(torch.load(folder / "pytorch_model.bin"))
    words = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    chat = [{"role": "<|User|>", "content": "a red fox "}, {"role": "<|Assistant|>", "content": ""}]
    conversation = processing_vlm.VLChatProcessor.__new__(processing_vlm.VLChatProcessor)
    conversation.tokenizer, conversation.image_start_tag, conversation.pad_tag = (
        words,
        "<begin_of_image>",
        "<｜▁pad▁｜>",
    )
    form = {"sft_format": "deepseek", "system_prompt": ""}
    prompt = conversation.apply_sft_template_for_multi_turn_prompts(chat, **form) + conversation.image_start_tag
    tree = ast.parse((source / "generation_inference.py").read_text())
    tree.body = [part for part in tree.body if isinstance(part, ast.FunctionDef | ast.Import | ast.ImportFrom)]
    program: dict[str, Any] = {}
    exec(compile(tree, "generation_inference.py", "exec"), program)
    made = {"prompt": torch.tensor([words.encode(prompt)])}
    kept: dict[str, torch.Tensor] = {}
    decode = model.gen_vision_model.decode_code

    def keep(codes: torch.Tensor, **how: Any) -> torch.Tensor:
        kept["codes"], how["shape"][1] = codes, 4  # eight, the codes' width in the published VQ, is written there
        kept["pixels"] = decode(codes, **how)
        return kept["pixels"]

    model.gen_vision_model.decode_code = keep
    sizes = dict(parallel_size=2, image_token_num_per_image=16, img_size=8, patch_size=2)
    for name, temperature in (("greedy", 1e-6), ("sampled", 12.0)):
        torch.manual_seed(5)
        program["generate"](model, conversation, prompt, temperature=temperature, **sizes)
        made[name] = kept["codes"]
    return made | {"pixels": kept["pixels"]}


def emu3(source: Path, place: Path) -> dict[str, torch.Tensor]:
    """What `image_generation.py` does, with its tokenizer, processor, processors of logits and VisionTokenizer."""
    sys.path.insert(0, str(source))
    from emu3.mllm import configuration_emu3, modeling_emu3, processing_emu3, tokenization_emu3
    from emu3.tokenizer import configuration_emu3visionvq, modeling_emu3visionvq
    from transformers import GenerationConfig
    from transformers.generation import LogitsProcessorList, PrefixConstrainedLogitsProcessor
    from transformers.generation import UnbatchedClassifierFreeGuidanceLogitsProcessor as Guidance

    vq = modeling_emu3visionvq.Emu3VisionVQModel(configuration_emu3visionvq.Emu3VisionVQConfig(**files.EMU3_VQ)).eval()
    folder = files.write_emu3_vq(place / "vq", noted(vq, "vq."))
    found = modeling_emu3visionvq.Emu3VisionVQModel.from_pretrained(folder, output_loading_info=True)
    vq, info = found[0].eval(), found[1]
    assert not info["missing_keys"] and not info["unexpected_keys"]
    model = modeling_emu3.Emu3ForCausalLM(configuration_emu3.Emu3Config(**files.EMU3))
    folder = files.write_emu3(place / "emu3", noted(model))
    config = configuration_emu3.Emu3Config.from_pretrained(folder)
    model, info = modeling_emu3.Emu3ForCausalLM.from_pretrained(
        folder, config=config, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    tokenization_emu3.SPECIAL_START_ID = 256 + len(files.EMU3_MERGES)  # 151,643 published ranks
    names = [str(folder / name) for name in ("emu3.tiktoken", "emu3_vision_tokens.txt")]
    words = tokenization_emu3.Emu3Tokenizer(*names, padding_side="left")
    processor = processing_emu3.Emu3Processor.__new__(processing_emu3.Emu3Processor)
    processor.tokenizer, processor.vision_tokenizer = words, vq
    processor.prefix_template, processor.visual_template = "{H}*{W}", ("<|visual token {token_id:0>6d}|>", "")
    processor.const_helper = processor.build_const_helper()
    how = dict(mode="G", ratio="3:2", image_area=48 * 32, return_tensors="pt", padding="longest")
    asked, null = processor(text=["a red fox 42"], **how), processor(text=["blue bird"], **how)
    height, width = asked.image_size[:, 0], asked.image_size[:, 1]
    made = {"prompt": asked.input_ids, "negative": null.input_ids, "size": asked.image_size}
    ends = dict(eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id)
    for name, sampling in (
        ("greedy", {"do_sample": False}),
        ("sampled", {"do_sample": True, "top_k": 16, "temperature": 8.0}),
    ):
        torch.manual_seed(5)
        allowed = PrefixConstrainedLogitsProcessor(processor.build_prefix_constrained_fn(height, width), num_beams=1)
        processors = LogitsProcessorList([Guidance(3.0, model.eval(), unconditional_ids=null.input_ids), allowed])
        config_of = GenerationConfig(use_cache=True, max_new_tokens=64, **ends, **sampling)
        mask = {"attention_mask": asked.attention_mask}
        made[name] = model.generate(asked.input_ids, config_of, logits_processor=processors, **mask)[0]
        made[name] = made[name][asked.input_ids.shape[1] :]
    rows, columns = asked.image_size[0].tolist()
    cells = made["greedy"][: rows * (columns + 1)].unflatten(0, (rows, columns + 1))[:, :-1]
    first = words.encode("<|visual token 000000|>")[0]
    return made | {"pixels": vq.decode((cells - first)[None])}


def functions(path: Path, *names: str, **given: Any) -> dict[str, Any]:
    """Some functions of a program, which is not run; `given` are the names that they use."""
    tree = ast.parse(path.read_text())
    tree.body = [part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name in names]
    exec(compile(tree, str(path), "exec"), given)
    return given


def liquid(source: Path, place: Path) -> dict[str, torch.Tensor]:
    """`main` of `evaluation/inference_t2i.py`, without its pictures' files."""
    import transformers
    from tqdm import tqdm

    model = transformers.GemmaForCausalLM(transformers.GemmaConfig(**files.LIQUID))
    folder = files.write_liquid(place / "liquid", noted(model))
    drawn: list[torch.Tensor] = []

    class Loaded:
        @staticmethod
        def from_pretrained(name: str, **how: Any) -> Any:
            loaded = transformers.GemmaForCausalLM.from_pretrained(
                name, output_loading_info=True, attn_implementation="eager"
            )
            assert not loaded[1]["unexpected_keys"] and not loaded[1]["missing_keys"]
            return loaded[0].eval()

    class Pictures:
        def __init__(self, **how: Any) -> None: ...

        def pil_from_img_toks(self, codes: torch.Tensor) -> Any:
            drawn.append(codes)
            return type("Picture", (), {"save": lambda *_: None})

    at = source / "evaluation"
    tools = dict(torch=torch, F=torch.nn.functional)
    filters = place / "sample.py"  # 256,000 words, which no cell may have, are written there
    text = (at / "T2I_Eval" / "genaibench_generation.py").read_text()
    filters.write_text(text.replace("256000", str(len(files.LIQUID_WORDS))))
    sample = functions(filters, "sample", "top_k_top_p_filtering", **tools)
    named = dict(os=os, AutoTokenizer=transformers.AutoTokenizer, AutoModelForCausalLM=Loaded, ImageTokenizer=Pictures)
    program = functions(at / "inference_t2i.py", "main", torch=torch, tqdm=tqdm, sample=sample["sample"], **named)
    made = {}
    for name, top_k in (("greedy", 1), ("sampled", 40)):
        drawn.clear()
        torch.manual_seed(5)
        how = dict(temperature=0.99, cfg=7.0, TopK=top_k, TopP=1.0, save_path=str(place / "out"), load_8bit=False)
        program["main"](argparse.Namespace(model_path=str(folder), prompt="a red fox", **how))
        made[name] = torch.stack(drawn).int()
    return made | {"greedy": made["greedy"][:1]}


def simplear(source: Path, place: Path) -> dict[str, torch.Tensor]:
    """`SimpARForCausalLM.generate_visual`, with the prompts of `generate.py`."""
    from transformers import AutoTokenizer, Qwen2Config

    tree = source / "simpar" / "model" / "language_model"
    names = types.ModuleType("simplear")
    names.__path__ = [str(tree)]
    sys.modules["simplear"] = names
    from simplear import simpar_qwen2

    model = simpar_qwen2.SimpARForCausalLM(Qwen2Config(**files.SIMPLEAR))
    folder = files.write_simplear(place / "simplear", noted(model))
    model, info = simpar_qwen2.SimpARForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["unexpected_keys"] and not info["missing_keys"]
    words = AutoTokenizer.from_pretrained(folder)
    prompt = words("<|t2i|>" + "A highly realistic image of " + "a red fox" + "<|soi|>", return_tensors="pt").input_ids
    away = "An image of aerial view, overexposed, low quality, deformation, a poor composition, bad hands, bad teeth, "
    away = words("<|t2i|>" + away + "bad eyes, bad limbs, distortion" + "<|soi|>", return_tensors="pt").input_ids
    made = {"prompt": prompt, "negative": away}
    for name, sampling in (("greedy", {"do_sample": False}), ("sampled", {"do_sample": True, "top_k": 40})):
        torch.manual_seed(5)
        how = dict(negative_prompt_ids=away, cfg_scale=6.0, max_new_tokens=16, use_cache=True, **sampling)
        made[name] = model.eval().generate_visual(prompt, **how)[0, prompt.shape[1] :] - len(words)
    return made


def emu35(source: Path, place: Path) -> dict[str, torch.Tensor]:
    """What `inference.py` does for a text, from the begin of a picture on."""
    sys.path.insert(0, str(source))
    from src.emu3p5 import configuration_emu3, modeling_emu3
    from src.utils import generation_utils, logits_processor

    sys.path.insert(0, str(source / "src" / "tokenizer_emu3_ibq"))
    import tokenization_emu3

    model = modeling_emu3.Emu3ForCausalLM(configuration_emu3.Emu3Config(**files.EMU35))
    folder = files.write_emu3(place / "emu3.5", noted(model), files.EMU35)
    config = configuration_emu3.Emu3Config.from_pretrained(folder)
    model, info = modeling_emu3.Emu3ForCausalLM.from_pretrained(
        folder, config=config, attn_implementation="eager", output_loading_info=True
    )
    assert not info["unexpected_keys"] and not info["missing_keys"]
    tokenization_emu3.SPECIAL_START_ID = 256 + len(files.EMU3_MERGES)
    named = [str(folder / name) for name in ("emu3.tiktoken", "emu3_vision_tokens.txt")]
    words = tokenization_emu3.Emu3Tokenizer(vocab_file=named[0], special_tokens_file=named[1])
    ids = {"IMG": "<|image token|>", "BOI": "<|image start|>", "EOI": "<|image end|>", "EOL": "<|extra_200|>"}
    ids |= {"EOF": "<|extra_201|>", "BOV": "<|visual token 000000|>"}
    for name, word in ids.items():
        setattr(logits_processor, name, words.encode(word)[0])
    asked = functions(source / "configs" / "example_config_t2i.py", "build_unc_and_template")
    away, template = asked["build_unc_and_template"]("t2i", False)
    prompt = torch.tensor([words.encode(template.format(question="a red fox") + "<|image start|>")])
    null = torch.tensor([words.encode(away)])
    rows, columns = 3, 5
    made = {}
    for name, top_k in (("greedy", 1), ("sampled", 8)):
        torch.manual_seed(5)
        sampling = dict(text_top_k=1024, text_top_p=0.9, text_temperature=1.0, image_top_k=top_k, image_top_p=1.0)
        sampling |= dict(image_temperature=6.0, use_differential_sampling=True)
        more = dict(classifier_free_guidance=5.0, unconditional_type="no_text", sampling_params=sampling)
        cfg = argparse.Namespace(target_height=rows, target_width=columns, **more)
        processor = generation_utils.build_logits_processor(cfg, null, model.eval(), words)
        from transformers import GenerationConfig, LogitsProcessorList

        config_of = GenerationConfig(
            do_sample=True, top_k=0, max_new_tokens=3 + 1 + rows * (columns + 1), pad_token_id=266, eos_token_id=473
        )
        ids_of = model.generate(prompt, config_of, logits_processor=LogitsProcessorList([processor]))[0]
        made[name] = ids_of[prompt.shape[1] + 4 :]  # behind `3*5` and <|image token|>
    made["prompt"] = ids_of[None, : prompt.shape[1] + 4]
    made["negative"] = torch.cat([null, ids_of[None, prompt.shape[1] - 1 : prompt.shape[1] + 4]], 1)
    return made


def lumina2(source: Path, place: Path) -> dict[str, torch.Tensor]:
    """`FlexARInferenceSolver` of Lumina-mGPT 2.0: its model, prompt and processors of logits."""
    sys.path[:0] = [str(source), str(source / "lumina_mgpt")]
    folder = files.write_lumina2(place / "lumina2")
    import transformers

    transformers.TorchAoConfig = None  # of a later release, and not used here
    import inference_solver
    from data import item_processor
    from model.chameleon import ChameleonForConditionalGeneration

    item_processor.get_movqgan_model = lambda *_, **how: None
    model, info = ChameleonForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert not info["unexpected_keys"] and all("vqmodel" in key for key in info["missing_keys"])
    solver = inference_solver.FlexARInferenceSolver.__new__(inference_solver.FlexARInferenceSolver)
    solver.model, solver.dtype, solver.target_size = model.eval(), torch.float32, 64
    solver.item_processor = item_processor.FlexARItemProcessor(tokenizer=str(folder), target_size=64)
    inference_solver.FlexARItemProcessor = lambda **how: solver.item_processor
    rows, columns = 4, 8  # of codes
    words = "Generate an image of 64x32 according to the following prompt:\na red fox"
    item = {"image": [], "conversations": [{"from": "human", "value": words}, {"from": "gpt", "value": None}]}
    sizes = [solver.item_processor.token2id(f"<reserved{8800 + cells // 4:05d}>") for cells in (rows, columns)]
    prompt = torch.tensor([[*solver.item_processor.process_item(item), 151665, *sizes]])
    made = {"prompt": prompt}
    for name, how in (("greedy", {"do_sample": False}), ("sampled", {"do_sample": True, "top_k": None})):
        torch.manual_seed(5)
        processors = solver.create_logits_processor(cfg=4.0, image_top_k=50)
        config = inference_solver.GenerationConfig(
            max_new_tokens=rows * (columns + 1) + 1, eos_token_id=[151666], **how
        )
        made[name] = model.generate(prompt, config, logits_processor=processors)[0, prompt.shape[1] :]
    return made


def movqgan(source: Path, place: Path) -> dict[str, torch.Tensor]:
    """`MOVQ.decode_code`, with which Lumina-mGPT 2.0 draws."""
    sys.path.insert(0, str(source / "lumina_mgpt"))
    from movqgan.models import vqgan

    return _decoded(
        vqgan.MOVQ(**files.MOVQGAN), lambda model, codes: model.decode_code(codes, *codes.shape[1:]), (4, 8)
    )


def ibq(source: Path, place: Path) -> dict[str, torch.Tensor]:
    """`IBQ.decode_code`, with which Emu3.5 draws; its caller writes 256, the codes' width in the published one."""
    sys.path.insert(0, str(source))
    from src.vision_tokenizer import ibq as official

    width = files.IBQ["embed_dim"]
    return _decoded(
        official.IBQ(**files.IBQ), lambda model, codes: model.decode_code(codes, (*codes.shape, width)), (3, 5)
    )


def _decoded(model: Any, decode: Callable[..., torch.Tensor], grid: tuple[int, int]) -> dict[str, torch.Tensor]:
    """A picture of random codes, as the authors' autoencoder decodes it."""
    model.eval().load_state_dict(files.formula(noted(model)))
    codes = torch.randint(model.quantize.n_e, (1, *grid), generator=torch.Generator().manual_seed(5))
    return {"codes": codes, "pixels": decode(model, codes)}


def mar(source: Path, place: Path) -> dict[str, torch.Tensor]:
    """`MAR.sample_tokens`, with guidance and a temperature, and the autoencoder."""
    import functools

    sys.path.insert(0, str(source))
    from models import mar as official
    from models import vae

    norm = functools.partial(torch.nn.LayerNorm, eps=1e-6)
    model = official.MAR(**files.MAR, norm_layer=norm).eval()
    vae.Encoder, vae.Decoder = functools.partial(vae.Encoder, ch=32), functools.partial(vae.Decoder, ch=32)
    decoder = vae.AutoencoderKL(embed_dim=16, ch_mult=(1, 1, 1, 1, 1)).eval()
    noted(model, "mar."), noted(decoder, "vae.")
    folder = files.write_mar(place / "mar", SHAPES)
    model.load_state_dict(torch.load(folder / "checkpoint-last.pth", weights_only=False)["model_ema"])
    decoder.load_state_dict(torch.load(folder / "kl16.ckpt")["model"])
    orders = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(row)) for row in range(2)])
    model.sample_orders = lambda bsz: orders
    labels = torch.tensor([3, 1])
    made = {"orders": orders, "labels": labels}
    for name, how in (("guided", {"cfg": 2.9, "num_iter": 5}), ("plain", {"temperature": 0.95, "num_iter": 16})):
        torch.manual_seed(5)
        made[name] = model.sample_tokens(bsz=2, labels=labels, cfg_schedule="linear", **how)
    # Random weights lead from noise to large numbers, beside which later noise does not show: the last steps alone.
    head, condition = model.diffloss, torch.randn(2 * 6, 32, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(6)
    x = torch.cat([torch.randn(6, 16)] * 2)
    for step in reversed(range(5)):
        how = dict(clip_denoised=False, model_kwargs={"c": condition, "cfg_scale": 2.0}, temperature=0.95)
        at = torch.full((12,), step)
        x = head.gen_diffusion.p_sample(head.net.forward_with_cfg, x, at, **how)["sample"]
    made |= {"condition": condition, "late": x[:6]}
    return made | {"pixels": decoder.decode(made["guided"][:1] / 0.2325)}


PARITY = Path(__file__).resolve().parents[1] / "parity"


def recorded(file: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, Any]]:
    """State, inputs and outputs, and configuration of a parity fixture, as `mmspec.testing.parity.read` gives them."""
    with safe_open(file, "pt") as opened:
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        config = json.loads(opened.metadata()["config"])
    state, io = (
        {k.removeprefix(kind): t for k, t in tensors.items() if k.startswith(kind)} for kind in ("state.", "io.")
    )
    return {k: t * 0.02 if t.dtype == torch.int8 else t for k, t in state.items()}, io, config


def llamagen(source: Path, place: Path) -> dict[str, torch.Tensor]:
    """`Transformer` and `generate`, on the states of the parity fixtures."""
    sys.path.insert(0, str(source))
    from autoregressive.models import generate as program
    from autoregressive.models import gpt

    made = {}
    for kind in ("c2i", "t2i"):
        state, io, config = recorded(PARITY / f"llamagen_{kind}.safetensors")
        rows, width = state["layers.0.attention.wqkv.weight"].shape
        classes = state["cls_embedding.embedding_table.weight"].shape[0] - 1 if kind == "c2i" else 1000
        heads = (rows // (width // config["n_head"]) - config["n_head"]) // 2
        sizes = dict(n_kv_head=heads, multiple_of=state["layers.0.feed_forward.w1.weight"].shape[0])
        if kind == "t2i":
            length, features = state["cls_embedding.uncond_embedding"].shape
            sizes |= dict(cls_token_num=length, caption_dim=features)
        for name, how in (
            ("greedy", {"sample_logits": False}),
            ("sampled", {"temperature": 2.0, "top_k": 12}),
            *([("masked", {"sample_logits": False, "emb_masks": io["emb_masks"]})] if kind == "t2i" else []),
        ):
            model = gpt.Transformer(gpt.ModelArgs(**config, **sizes, num_classes=classes)).eval()
            if kind == "t2i":  # 120, the length of published captions, is written in their class
                model.cls_embedding.uncond_embedding = torch.nn.Parameter(torch.zeros(length, features))
            model.load_state_dict(state)
            torch.manual_seed(5)
            made[f"{kind}_{name}"] = program.generate(model, io["cond"], 16, cfg_scale=3.0, **how)
    return made


def oasis(source: Path, place: Path) -> dict[str, torch.Tensor]:
    """`DiT` and `AutoencoderKL`, on the states and inputs of the parity fixtures."""
    sys.path.insert(0, str(source))
    from dit import DiT
    from vae import AutoencoderKL

    made = {}
    for name, kind in (("oasis_dit", DiT), ("oasis_vae", AutoencoderKL)):
        state, io, config = recorded(Path(__file__).resolve().parents[2] / "video" / "parity" / f"{name}.safetensors")
        model = kind(**config).eval()
        missing = model.load_state_dict(state, strict=False)
        assert not missing.unexpected_keys and all("rotary" in key for key in missing.missing_keys), missing
        if kind is DiT:
            made["v"] = model(io["x"], io["t"], io["actions"])
        else:
            made |= {"decoded": model.decode(io["z"]), "posterior_mean": model.encode(io["image"]).mean}
    return made


SHAPES: dict[str, tuple[int, ...]] = {}


def noted(model: torch.nn.Module, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """The shapes of a class's weights, which the fixture keeps, under a prefix."""
    found = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    SHAPES.update({prefix + key: shape for key, shape in found.items()})
    return found


MAKERS: dict[str, Callable[[Path, Path], dict[str, torch.Tensor]]] = {
    "lumina": lumina,
    "anole": anole,
    "janus": janus,
    "emu3": emu3,
    "liquid": liquid,
    "simplear": simplear,
    "emu3.5": emu35,
    "lumina2": lumina2,
    "movqgan": movqgan,
    "ibq": ibq,
    "mar": mar,
    "llamagen": llamagen,
    "oasis": oasis,
}


if __name__ == "__main__":
    name, source, repository, commit = sys.argv[1], Path(sys.argv[2]).resolve(), sys.argv[3], sys.argv[4]
    target = Path(__file__).resolve().parent / f"{name}.safetensors"
    with tempfile.TemporaryDirectory() as place, OnCpu(), torch.no_grad():
        found = MAKERS[name](source, Path(place))
    about = {"repository": repository, "commit": commit, "shapes": json.dumps(SHAPES)}
    save_file({key: value.contiguous() for key, value in found.items()}, target, about)
    print({key: (tuple(value.shape), value.flatten()[:12].tolist()) for key, value in found.items()})
