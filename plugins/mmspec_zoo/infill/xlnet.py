"""`xlnet`: XLNet of transformers fills the blanks of a text in any order.

XLNet (Yang et al., arXiv 1906.08237) has two streams: the content of a token sees itself and what comes before it in
the order, a query sees the latter alone. Any-subset autoregressive models (Guo and Ermon, 2504.20456; published weights
`therealgabeguo/ASARM`) are XLNets that were trained on further. `perm_mask` says which positions a position must not
see, `target_mapping` which ones are scored; the unmodified `XLNetLMHeadModel` runs the passes.
A pass over a draft has every drafted token in its place, and the ranks of the order in the mask: the scores are the
conditionals of the order. The probability of `<mask>`, which no text has, goes to all other tokens in proportion; the
released code of ASSD sets it to 0, and does not renormalise.
There is no cache of keys and values: each pass reads all of the text. The two streams of transformers run in float32
alone, as position encodings are not cast.
"""

from typing import Any

import torch
from torch import Tensor

from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.train_mode import refuse_training
from mmspec_zoo.infill.any_order import Filling, Infill, View
from mmspec_zoo.specs import XLNET

MASK = 6  # the id of `<mask>` in the vocabulary that all published XLNets share


class XLNetTarget:
    """A live `XLNetLMHeadModel`; refuses one that was configured for texts from left to right, or in two directions."""

    offers = XLNET.offers

    def __init__(self, model: Any) -> None:
        config = model.config
        if config.attn_type != "bi" or config.bi_data:
            raise ValueError(
                "this XLNet reads a text in one direction, or its rows in two (attn_type, bi_data of its config), so "
                "that blanks cannot be filled in any order; take one with attn_type='bi' and bi_data=False"
            )
        self.model = model
        self.vocab: int | None = config.vocab_size

    def start(self, inputs: Infill, limit: int, width: int) -> Prefill:
        """Score the first blank of every text; a row without a blank left goes on with `FILLER`. Refuses other dtypes
        than float32.
        """
        refuse_training(self.model)
        if self.model.dtype != torch.float32:
            raise ValueError(
                f"the two streams of transformers' XLNet run in float32 alone, and the model is in {self.model.dtype}; "
                "use model.float()"
            )
        if not isinstance(inputs, Infill):
            raise ValueError(
                f"XLNet fills the blanks of texts: its prompt is mmspec_zoo.infill.any_order.Infill, not "
                f"{type(inputs).__name__}. There is no `generate`; mmspec_zoo.infill.pipeline.InfillPipeline takes text"
            )
        assert self.vocab is not None
        strange = {token for row in inputs.rows for token in row if token is not None and not 0 <= token < self.vocab}
        if strange:
            raise ValueError(f"{sorted(strange)} are no ids of the model, which has {self.vocab}")
        cache = Filling.begin(inputs, self.model.device)
        return cache.prefill(inputs, self._scored(cache.ahead(cache.ids[:, :0], 1)))

    def verify(self, cache: Filling, draft: Draft, first: int = 0) -> TargetOutput:
        return self._scored(cache.of_draft(draft))

    def commit(self, cache: Filling, path: Tensor, count: Tensor) -> None:
        cache.commit(path, count)

    def truncate(self, cache: Filling, length: Tensor) -> None:
        cache.truncate(length)

    def ahead(self, cache: Filling, root: Tensor, units: int) -> TargetOutput:
        """As in `AnyOrder`; with one query more, so that the pass has the shape of the one that verifies its units, and
        the first of them is scored alike in both, to the bit.
        """
        output = self._scored(cache.ahead(root[:, None], units + 1))
        return output.take(torch.arange(units, device=root.device)[None])

    def left(self, cache: Filling) -> Tensor:
        return cache.left

    @torch.inference_mode()
    def _scored(self, view: View) -> TargetOutput:
        return view.output(logits_of(self.model, view), MASK)


def logits_of(model: Any, view: View) -> Tensor:
    """The logits of a pass, `[batch, query, vocab]`."""
    places = torch.arange(view.ids.shape[1], device=view.ids.device)
    logits: Tensor = model(
        input_ids=view.ids,
        perm_mask=view.hidden.float(),
        target_mapping=(view.asked[..., None] == places).float(),
        use_mems=False,
        return_dict=True,
    ).logits
    return logits
