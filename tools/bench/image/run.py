"""`python -m tools.bench image`: windows of codes, plain decoding, an oracle, and plain loops over the same weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.race import Track
from mmspec.bench.timing import NODES, pass_seconds
from mmspec.kits.pictures.conditions import Condition
from mmspec.report.result import PLAIN, Row
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.targets.llamagen import LlamaGenTarget
from tools.bench.image.loops import loops
from tools.bench.limits import limits_of, measure_floor
from tools.bench.pictures.contestants import OracleDecoding, Other, OwnMethod, PictureSampler
from tools.bench.pictures.judge import notes
from tools.bench.pictures.options import tried, windowed
from tools.bench.pictures.subject import Setting
from tools.report.whole import Limits

WINDOWS = (4, 8, 12, 16, 24, 32, 64)
COMPILED = (8, 16)
"""The windows, beside the one that the methods share, at which rounds are compiled, too."""
SWEPT = "gs-sjd"
"""The method that is tried at every window; the others share one window, so that they compare."""
NARROW = 4
"""The window for batches: many rows fill a pass by themselves."""
SETTINGS = (Setting(2.0, 1.0, whole=True), Setting(1.0, 1.0))


class CodeSubject:
    """Pictures of codes, as `tools.bench.pictures.subject.Subject` asks."""

    kind, unit, about = "image", "code", ""
    methods = ("gs-sjd", "gs-sjd-pac", "mc-sjd", "sjd-pac", "sjd", "gsd", "lantern")
    settings = SETTINGS
    batched = (SWEPT, windowed(SWEPT, NARROW))
    notes = {"same_as_plain": "share of the pictures that are plain decoding's, code by code", **notes("code")}  # noqa: RUF012

    def __init__(self, model: LlamaGenTransformer) -> None:
        self.model = model

    def sampler(self, setting: Setting) -> PictureSampler:
        return PictureSampler(self.model, setting.warp)

    def tried(self, chosen: Sequence[str], window: int, whole: bool) -> dict[str, dict[str, Any]]:
        options = tried(chosen, window, SWEPT if whole else None, WINDOWS)
        if not whole or SWEPT not in options:
            return options
        swept = {name: options[name] for name in (SWEPT, *(windowed(SWEPT, k) for k in COMPILED)) if name in options}
        compiled = {PLAIN: {"method": PLAIN}, **swept}
        return options | {f"compiled {name}": {**its, "compile": True} for name, its in compiled.items()}

    def others(self, setting: Setting, plain: OwnMethod, window: int) -> dict[str, Other]:
        """An oracle, where the whole is tried, and plain loops."""
        oracle = {"oracle": Other(OracleDecoding(plain, window), mode="oracle")} if setting.whole else {}
        return oracle | {name: Other(loop, loop=loop.note) for name, loop in loops(self.model, setting).items()}

    def row(self, row: Row, track: Track | None) -> Row:
        return row

    def same(self, a: Tensor, b: Tensor) -> bool:
        return torch.equal(a, b)

    def limits(self, setting: Setting, condition: Condition, most: int, device: str) -> tuple[Limits, dict[int, float]]:
        sizes = [n for n in (*NODES, 48, 64) if n < most] + [most]
        seconds = pass_seconds(LlamaGenTarget(self.model), condition, sizes)
        read = float(sum(layer.weight.numel() * layer.weight.element_size() for layer in _matrices(self.model)))
        return limits_of(seconds, measure_floor(read, (1 + setting.guided) * 2.0 * read / 4, device)), seconds


def _matrices(model: LlamaGenTransformer) -> list[torch.nn.Linear]:
    """What every pass over codes reads: all linear layers but the caption's."""
    caption = set(model.cls_embedding.modules())
    return [part for part in model.modules() if isinstance(part, torch.nn.Linear) and part not in caption]
