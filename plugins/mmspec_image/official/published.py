"""Published files that no pipeline loads as they are: the command that converts them, or why there is none."""

import re
from dataclasses import dataclass
from pathlib import Path

from mmspec.hosts.loading import PREFIX
from mmspec.hosts.weight_files import CONFIG, INDEX
from mmspec.untrusted import read_json
from mmspec_image.official.words import KINDS


@dataclass(frozen=True)
class Untaken:
    """A model whose files nothing here reads."""

    name: str
    signs: str  # a pattern of its repository's name, or of the names of its files, which follow the folder's in order
    why: str  # what it does
    instead: str


SCALES = "draws a whole scale of the picture in every pass, so that there is no next code to draft"
SETS = "draws sets of places in every pass, in no order, so that there is no next code to draft"
ORDERS = "draws codes row by row after a training in random orders, with layers for which there is no converter"
HALVES = "writes every code as two parts, the second by a transformer of its own, for which there is no target"
SPACE = "draws codes of films at positions of three dimensions, and its tokenizer is TorchScript, which is code"
CODE = "has its layers in code that comes with its weights, which is not run"
CLASSES = "LlamaGen draws classes (mmspec convert llamagen)"
PROMPTS = "Janus-Pro draws from prompts (mmspec convert janus)"
FILMS = "Oasis draws films (mmspec convert oasis)"
UNTAKEN = (
    Untaken("VAR", r"FoundationVision/VAR\b|\bvar_d\d+\.pth|vae_ch160v4096z32", SCALES, CLASSES),
    Untaken("Infinity", r"FoundationVision/Infinity|\binfinity_(\w*\d+[bm]|vae)", SCALES, PROMPTS),
    Untaken("HART", r"\bhart-0\.7b", SCALES, PROMPTS),
    Untaken("RAR", r"yucornetto/RAR\b|\brar_(b|l|xl|xxl)\.bin|maskgit-vqgan-imagenet", ORDERS, CLASSES),
    Untaken("Open-MAGVIT2", r"Open-?MAGVIT2", HALVES, CLASSES),
    Untaken("Harmon", r"\bHarmon-\d_\d+B|\bharmon_[\d.]+b\.pth", SETS, PROMPTS),
    Untaken("Cosmos", r"Cosmos\S*Autoregressive|Cosmos-Predict1-(4|5|12|13)B", SPACE, FILMS),
    Untaken("BAGEL", r"BAGEL-7B-MoT|(?s:ema\.safetensors.*llm_config\.json)", "draws by a flow, not codes", PROMPTS),
    Untaken("Show-o", r"showlab/show-o|\bshow-o(2-|-w-|-512)", SETS, PROMPTS),
    Untaken("X-Omni", r"\bX-Omni-", CODE, PROMPTS),
)


def advice(name: str) -> str | None:
    """Advice on the files at a place, of a hub name, or of a model called so; None: nothing is known of them."""
    place = Path(name)
    try:
        files = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
        there = place.exists()
        kind = read_json(place / CONFIG).get("model_type") if CONFIG in files else None
    except (OSError, ValueError):  # a name that no file can have, or a damaged config, which has a refusal of its own
        return None
    if INDEX in files:
        return None
    looked_into = kind is None or str(kind) in KINDS  # no layout has the type of another model of transformers
    if looked_into and (there or ("/" in name and not name.startswith(PREFIX))):
        from mmspec.kits.pictures.layouts import command_for, layouts

        if found := command_for(place) if there else "":
            return found
        for layout in layouts().values():
            if layout.source.endswith(f"/{name}"):
                return f"{name} is code and weights of its authors: download it, then mmspec convert {layout.name}"
    text = "\n".join(["/".join(place.parts[-2:]), *files])
    for model in UNTAKEN:
        if name.lower() == model.name.lower() or re.search(model.signs, text, re.IGNORECASE):
            return f"{model.name} {model.why}: mmspec reads no files of it. Instead: {model.instead}"
    return None
