"""Heads that are drawn: each layout with its tensors and config, how mmspec opens it, and the reference's logits."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec_text.drafters.dflash import Context, DFlash, DFlashOptions
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from mmspec_text.drafters.falcon import BlockCache, Falcon, FalconOptions
from mmspec_text.drafters.heads.cache import HeadCache
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions, PrefixCache, walked_from
from mmspec_text.drafters.heads.pathwise.head import PrefixHead
from mmspec_text.drafters.heads.rows import Rows
from mmspec_text.drafters.hydra import Hydra
from mmspec_text.drafters.p_eagle import MaskedCache, PEagle, PEagleOptions
from mmspec_text.drafters.ppd import PPD, PPDOptions
from tests.draws.head_base import CHAIN, NESTED, ROWS, Config, Kind, Weights, bound, ends, over, stepped, target
from tests.draws.head_deep import Deep
from tests.draws.head_layouts import DFLASH, EAGLE, FALCON, PROMPTS, VARIANTS
from tests.support import mtp_layouts, p_eagle_layouts, path_heads
from tests.support.eagle_layouts import BIASES, HEAD_NORMS, TARGET, VOCAB, Stored, layer
from tests.support.path_heads.layout import HIDDEN, Given, PathLayout
from tests.support.path_heads.layout import VOCAB as IDS
from tests.support.settled_forward import SettledBlock, SettledEagle, SettledFalcon
from tests.support.settled_layers import WINDOWS, Unlike

DRAFTERS: dict[str, Callable[[str], Any]] = {
    "eagle": lambda name: Eagle(EagleOptions(model=name, probe=False, form="chain")),
    "p-eagle": lambda name: PEagle(PEagleOptions(model=name, probe=False, form="chain")),
    "falcon": lambda name: Falcon(FalconOptions(model=name, form="chain")),
    "dflash": lambda name: DFlash(DFlashOptions(model=name, probe=False, form="chain")),
}


@dataclass(frozen=True)
class Rowed(Kind):
    """A head that reads rows of features: of EAGLE, P-EAGLE, Falcon, DFlash."""

    stored: Stored
    family: str

    @property
    def config(self) -> Config:  # type: ignore[override]
        return dict(self.stored.config)

    @property
    def extra(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.stored.extra

    @property
    def nested(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(part for part in NESTED[:1] if part in self.stored.config)

    def named(self, key: str) -> str:
        return self.stored.rename(key)

    @property
    def fused(self) -> bool:
        return bool(getattr(self.stored.flags, "third", False))

    def weights(self, shape: Mapping[str, Any]) -> tuple[Weights, Config]:
        shapes, more, stored = dict(self.stored.shapes), Config(), self.stored
        hidden = shapes["layers.0.self_attn.o_proj.weight"][0]
        layers = max(int(key.split(".")[1]) for key in shapes if key.startswith("layers.")) + 1
        wanted = int(shape.get("layers") or layers)
        norm = (f"layers.{layers - 1}.hidden_norm.weight",) if layers > 1 else ()
        for number in range(layers, wanted):
            name = "hidden_norm" if norm and norm[0] in shapes else "input_layernorm"
            shapes |= {**layer(number, hidden, hidden), f"layers.{number}.{name}.weight": (hidden,)}
            if self.family == "dflash" and "layers.0.self_attn.q_norm.weight" in shapes:
                shapes |= {key.replace("layers.0.", f"layers.{number}."): size for key, size in HEAD_NORMS.items()}
        for number in range(wanted, layers):
            shapes = {key: size for key, size in shapes.items() if not key.startswith(f"layers.{number}.")}
        if shape.get("layers"):
            more["num_hidden_layers"] = wanted
        if shape.get("biases"):
            for number in range(wanted):
                shapes |= {key.replace("layers.0.", f"layers.{number}."): size for key, size in BIASES.items()}
        if shape.get("embedding"):
            shapes["embed_tokens.weight"] = (VOCAB, hidden)
        if shape.get("whole"):
            stored = replace(stored, pruned=False)
            if "lm_head.weight" in shapes:
                shapes["lm_head.weight"] = (VOCAB, hidden)
            shapes |= {key: (VOCAB, size[1]) for key, size in shapes.items() if key == "markov_head.markov_w2.weight"}
            more["draft_vocab_size"] = VOCAB
        return replace(stored, shapes=shapes).weights(), more

    def _drawn(self, w: Weights | None = None) -> tuple[Tensor, Tensor, Tensor]:
        g, width = torch.Generator().manual_seed(3), TARGET
        if self.family != "falcon" and "fc.weight" in self.stored.shapes:
            hidden, inside = self.stored.shapes["fc.weight"]
            width = inside - (hidden if self.family == "eagle" and not self.fused else 0)
        features = torch.randn(1, ROWS, width, generator=g)
        return features, torch.randint(VOCAB, (1, ROWS), generator=g), torch.randint(VOCAB, (1, 8), generator=g)

    def ours(self, folder: Path) -> Tensor:
        features, units, path = self._drawn()
        dflash, count = self.family == "dflash", torch.tensor([ROWS])
        drafter = bound(DRAFTERS[self.family](str(folder)), TARGET, VOCAB)
        network, steps = drafter.network, CHAIN
        if dflash:
            cache: Any = Context(network, 1, 40, units.device)
            cache.read(Rows.at_left(features, count))
            steps = min(CHAIN, network.architecture.units)
        elif self.family == "falcon":
            cache = BlockCache(network, network.architecture.block, 1, 60, units.device)
            cache.read(Rows(features, count), units)
            return stepped((cache.at_root(), cache.grow), units[:, -1], path[:, : CHAIN - 1])
        else:
            cache = (MaskedCache if self.family == "p-eagle" else HeadCache)(network, 1, 40, units.device)
            if self.family == "p-eagle":
                cache.token, cache.masks = drafter.checkpoint.mask_token, CHAIN - 1
            cache.read(Rows(features, count), units)
        return stepped(cache.opened(units[:, -1]), units[:, -1], path[:, : steps - 1])

    def theirs(self, w: Weights, config: Config) -> Tensor:
        features, units, path = self._drawn()
        given, known, chain = self.given(config), units[0].tolist(), path[0, : CHAIN - 1].tolist()
        kept = {key: value for key, value in w.items() if key not in ("d2t", "t2d")}
        ids = w["t2d"].nonzero()[:, 0] if "t2d" in w else None
        ids = torch.arange(len(w["d2t"])) + w["d2t"].long() if "d2t" in w else ids
        settled: dict[str, Any] = {"eagle": SettledEagle, "p-eagle": SettledEagle, "falcon": SettledFalcon}
        make = settled.get(self.family, SettledBlock)
        reference = make(kept, self.stored.flags, *ends(TARGET, VOCAB), given)
        if self.family == "dflash":
            return over(ids, reference.draft_logits(list(features[0]), known[-1], chain)[:CHAIN], VOCAB)
        if self.family == "p-eagle":
            named = ("mask_token_id", "ptd_token_id", "pard_token")
            mask = next(given[name] for name in named if given.get(name) is not None)
            return over(ids, reference.parallel_logits(features[0], known, mask, CHAIN), VOCAB)
        if self.family == "falcon":
            reference.block = given["k_mask"]
        return over(ids, reference.draft_logits(features[0], known, chain), VOCAB)


@dataclass(frozen=True)
class Pathed(Kind):
    """A head that steps along paths."""

    layout: PathLayout

    @property
    def config(self) -> Config:  # type: ignore[override]
        return self.layout.config(HIDDEN, IDS)

    @property
    def copies(self) -> Mapping[str, str]:  # type: ignore[override]
        return self.layout.copies

    @property
    def extra(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(key for key in self.layout.extra if key not in self.lent)

    @property
    def lent(self) -> Weights:  # type: ignore[override]
        """Copies of the target's weights that the layout's files carry."""
        embedding, output = ends(HIDDEN, IDS)
        found = {"lm_head.weight": output, "model.embed_tokens.weight": embedding}
        return {key: end for key, end in found.items() if key in self.layout.extra}

    @property
    def may_repeat(self) -> Weights:  # type: ignore[override]
        """Copies of the target's weights that its files may carry."""
        hydra = {"input_embed_fn.weight": ends(HIDDEN, IDS)[0]} if self.layout.drafter is Hydra else {}
        return {**self.lent, **hydra}

    @property
    def stem(self) -> str:  # type: ignore[override]
        return self.layout.file.removesuffix(".safetensors")

    def weights(self, shape: Mapping[str, Any]) -> tuple[Weights, Config]:
        return self.layout.weights(), {}

    def _drawn(self) -> tuple[Tensor, Tensor, Tensor]:
        g = torch.Generator().manual_seed(3)
        features = torch.randn(1, ROWS, HIDDEN, generator=g)
        return features, torch.randint(IDS, (1, ROWS), generator=g), torch.randint(IDS, (1, 8), generator=g)

    def ours(self, folder: Path) -> Tensor:
        features, units, path = self._drawn()
        drafter = self.layout.drafter(PathOptions(model=str(folder), probe=False, form="chain"))
        network, root = bound(drafter, HIDDEN, IDS).network, units[:, -1]
        steps = min(CHAIN, network.units)
        if not isinstance(network, PrefixHead):
            with torch.no_grad():
                opened = walked_from(network, network.rooted(features[:, -1:], root[:, None]))
                return stepped(opened, root, path[:, : steps - 1])
        cache = PrefixCache(network, 1, 40, units.device)
        cache.read(Rows(features, torch.tensor([ROWS])), units)
        with torch.no_grad():
            return stepped(cache.opened(root), root, path[:, : steps - 1])

    def theirs(self, w: Weights, config: Config) -> Tensor:
        features, units, path = self._drawn()
        embedding, output = (end.double() for end in ends(HIDDEN, IDS))
        plain = {key: value for key, value in config.items() if key not in WINDOWS}  # which no such class has
        given = Given(w, plain, embedding, output)
        named = self.given(config) if "clover" in self.config or "n_predict" in self.config else {}
        steps = min(CHAIN, int(named.get("n_predict") or named.get("num_heads") or CHAIN))
        return torch.stack(self.layout.forward(given, features[0], units[0].tolist(), path[0, : steps - 1].tolist()))


@dataclass(frozen=True)
class Prompted(Kind):
    """Trained prompt tokens; their numbers stand for logits, which the target's own layers make of them."""

    config = PROMPTS
    stem = "adapter_model"

    def weights(self, shape: Mapping[str, Any]) -> tuple[Weights, Config]:
        return {"prompt_embeddings": torch.randn(3, TARGET, generator=torch.Generator().manual_seed(0))}, {}

    def ours(self, folder: Path) -> Tensor:
        drafter = PPD(PPDOptions(model=str(folder), form="chain"))
        drafter.bind(drafter.wrap(target(TARGET, VOCAB)))
        return drafter.prompts.embeddings.float()

    def theirs(self, w: Weights, config: Config) -> Tensor:
        if wrong := [key for key, value in PROMPTS.items() if key in VARIANTS and config.get(key, value) != value]:
            raise Unlike(f"other {wrong}")
        return w["prompt_embeddings"]


def kinds() -> Iterator[tuple[str, Kind]]:
    families = {"eagle": EAGLE, "p-eagle": p_eagle_layouts.LAYOUTS, "dflash": DFLASH}
    for family, layouts in families.items():
        yield from ((f"{family}:{name}", Rowed(stored, family)) for name, stored in layouts.items())
    yield "ppd:ppd", Prompted()
    yield "falcon:falcon", Rowed(FALCON, "falcon")
    yield from ((f"mtp:{name}", Deep(layout)) for name, layout in mtp_layouts.LAYOUTS.items())
    yield from ((f"path:{name}", Pathed(layout)) for name, layout in path_heads.LAYOUTS.items())


KINDS: dict[str, Kind] = dict(kinds())
"""Name → layout."""
