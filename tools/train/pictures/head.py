"""Recipe `image-eagle`: LANTERN's drafter (arXiv 2410.03355) for the shipped picture model, by the text heads' loss.

A head of EAGLE-1 whose units stand on the picture's grid. It learns on the codes of the training pictures, behind their
captions and, in a share of them, behind none, since under guidance both halves are drafted. The condition's positions
are rows of the head with unit 0, as in a draft. The files are in the authors' layout.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mmspec
from mmspec.files import save_sealed
from mmspec.kits.pictures.models.blocks import run_blocks, visible
from mmspec.training.loop import fit
from mmspec.training.losses import Top
from mmspec.training.work import cached
from mmspec_text.drafters.heads.eagle.family import Architecture
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.training.heads import depth_metrics, head_loss
from mmspec_text.training.new_head import draw_weights, half, layer_entries, write_files
from mmspec_text.training.recipe import KINDS_OWN, DrafterRecipe
from mmspec_text.training.teacher import TOP, Said
from mmspec_text.training.texts import Batch
from tools.train.pictures import captioned as kit
from tools.train.pictures.data import Pictures, pixels

MODEL = "mmspec/emoji"
RECIPE = DrafterRecipe(**{**KINDS_OWN["eagle"], "steps": 300, "batch": 8})
BARE = 0.3
"""The share of pictures that are learnt without their caption."""
HELD = 24
"""Held-out pictures on which a head is counted."""


class PictureTeacher:
    """A picture model that is read and never changed, over rows `[row, condition + code]`.

    The first unit of a row is the number of its picture, whose caption stands in the condition's places, or minus one
    less that number: none does. No head reads it. The other units of a condition are 0.
    """

    def __init__(self, pipe: Any, captions: list[str]) -> None:
        self.model, self.length = pipe.transformer, pipe.transformer.config.cls_token_num
        ids, mask = kit.tokens_of_captions(captions, pipe.tokenizer)
        with torch.no_grad():
            self._features = torch.cat([pipe.text_encoder(*part) for part in kit.batched(ids, mask)])
        self._mask = mask

    def rows(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Rows of pictures by their numbers `[row]`, and their codes `[row, n]`."""
        return torch.cat([numbers[:, None], codes.new_zeros(len(codes), self.length - 1), codes], 1)

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The states behind the final norm of every place, `[row, unit, width]`, and the logits there."""
        model, numbers = self.model, ids[:, 0]
        bare, which = numbers < 0, numbers.where(numbers >= 0, -1 - numbers)
        null = model.cls_embedding.null(len(ids))
        given = torch.where(bare[:, None, None], null, self._features[which].type_as(null))
        seen = visible(len(ids), ids.shape[1], self.length, self._mask[which] | bare[:, None], ids.device)
        x = torch.cat([model.cls_embedding(given), model.embed(ids[:, self.length :])], 1)
        states = run_blocks(model, x, torch.arange(x.shape[1])[None], seen, [None] * len(model.layers))
        return model.norm(states).float(), model.logits(states)

    def said(self, ids: Tensor, own: Tensor | None) -> Said:
        """A head's lesson from rows."""
        features, logits = self(ids)
        return Said(features, Top(*logits.softmax(-1).topk(TOP)))

    def counted(self, ids: Tensor) -> Tensor:
        """The units behind which a draft counts, `[row, unit]` bool: codes."""
        return (torch.arange(ids.shape[1]) >= self.length).expand(len(ids), -1)


def untrained(transformer: Any, recipe: DrafterRecipe) -> EagleNetwork:
    """The head before training, joined to its model: its states are the features at first."""
    of, layer = transformer.config, transformer.layers[0]
    a = Architecture(
        hidden=of.dim,
        intermediate=recipe.intermediate or layer.feed_forward.w1.weight.shape[0],
        heads=of.n_head,
        key_heads=of.n_kv_head or of.n_head,
        head_dim=of.dim // of.n_head,
        eps=of.norm_eps,
        biases=frozenset({"fc"}),
        layers=1,
        vocab=of.vocab_size,
        draft_vocab=of.vocab_size,
        features=1,
        target_hidden=of.dim,
        fused=False,
        projected=False,
        own_embedding=False,
        own_output=False,
        final_norm=False,
        embedding_norm=False,
        first_norms=frozenset(),
        grid=True,
    )
    head = EagleNetwork(a, of.vocab_size)
    draw_weights(head, recipe.seed)
    with torch.no_grad():
        head.get_parameter("fc.weight")[:, -a.hidden :] += torch.eye(a.hidden)
        head.get_parameter("fc.bias").zero_()
    head.join(transformer.tok_embeddings, transformer.output, torch.device("cpu"), torch.float32)
    head.stand_on(transformer.positions(a.head_dim))
    return head


def stored(head: EagleNetwork, embedding: Tensor) -> dict[str, Tensor]:
    """A head's tensors in the authors' layout: neighbouring numbers of queries and keys turn together."""
    a, found = head.architecture, {key: half(value) for key, value in head.state_dict().items()}
    for part, heads in (("q_proj", a.heads), ("k_proj", a.key_heads)):
        key = f"layers.0.self_attn.{part}.weight"
        apart = found[key].unflatten(0, (heads, 2, -1))
        found[key] = apart.transpose(1, 2).flatten(0, 2).contiguous()
    return found | {"embed_tokens.weight": half(embedding)}


@torch.no_grad()
def encoded(pipe: Any, pictures: Pictures) -> Tensor:
    """Codes of all pictures, `[picture, cell]` int64."""
    parts = pictures.images.split(kit.BATCH)
    return torch.cat([pipe.vq.encode(pixels(part)).codes.flatten(1) for part in parts])


def train_head(
    pictures: Pictures, recipe: DrafterRecipe, folder: Path, work: Path, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Train on pictures that are not held out, resuming where training stopped, and write the head into `folder`.

    Returns:
        Its parameters, recipe, and what was counted on held-out pictures.
    """
    work.mkdir(parents=True, exist_ok=True)
    pipe = mmspec.Pipeline.from_pretrained(MODEL, method="plain")
    pipe.transformer.requires_grad_(False)
    teacher, transformer = PictureTeacher(pipe, pictures.captions), pipe.transformer
    codes = cached(
        work / "codes.pt", (pictures.images, *pipe.vq.state_dict().values()), lambda: encoded(pipe, pictures)
    )
    seen, held = (~pictures.held_out).nonzero()[:, 0], pictures.held_out.nonzero()[:HELD, 0]

    def batch_at(step: int) -> Batch:
        g = kit.generator_of(recipe.seed, step)
        chosen = seen[torch.randint(len(seen), (recipe.batch,), generator=g)]
        bare = torch.rand(recipe.batch, generator=g) < BARE
        ids = teacher.rows(torch.where(bare, -1 - chosen, chosen), codes[chosen])
        return Batch(ids, teacher.counted(ids), step, step)

    head = untrained(transformer, recipe)
    loss = head_loss(teacher.said, recipe.draft_loss, recipe.depth, noise=recipe.noise)
    fit(head, batch_at, loss, recipe.loop("layers"), work / "head", say)
    ids = teacher.rows(held, codes[held])
    counted = depth_metrics(head, teacher, Batch(ids, teacher.counted(ids)).apart(), 5)  # type: ignore[arg-type]
    facts = {
        "kind": "eagle",
        "target": MODEL,
        "parameters": sum(p.numel() for p in head.parameters()),
        "held_out": {"pictures": asdict(counted.rounded())},
        "recipe": recipe.of("eagle"),
    }

    def write(side: Path) -> None:
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "verifier": MODEL,
            **layer_entries(head.architecture, 1, head.architecture.vocab),
            "input_type": transformer.config.model_type,
            "dtype": "float16",
        }
        write_files(stored(head, transformer.tok_embeddings.weight), config, side)
        (side / "training.json").write_text(json.dumps(facts, indent=2) + "\n")

    save_sealed(folder, write)
    return facts
