"""What joins embedding and state in a head of Falcon: an LSTM that is run over every row alone.

Of a cell that begins with nothing, the weights on its own past (`weight_hh`) and the gate that forgets do nothing:

    h = sigmoid(o) tanh(sigmoid(i) tanh(g)),   (i, f, g, o) = W x + b
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS = 2


class Cells(nn.Module):
    """See the module; names of parameters are those of torch's LSTM."""

    def __init__(self, inside: int, hidden: int, biased: bool) -> None:
        super().__init__()
        for layer in range(LAYERS):
            width = hidden if layer else inside
            self.register_parameter(f"weight_ih_l{layer}", nn.Parameter(torch.empty(4 * hidden, width)))
            for part in ("ih", "hh") if biased else ():
                self.register_parameter(f"bias_{part}_l{layer}", nn.Parameter(torch.empty(4 * hidden)))

    def forward(self, x: Tensor) -> Tensor:
        """States `[batch, row, hidden]` of what rows read, `[batch, row, inside]`."""
        named = dict(self.named_parameters())
        for layer in range(LAYERS):
            gates = F.linear(x, named[f"weight_ih_l{layer}"], named.get(f"bias_ih_l{layer}"))
            if f"bias_hh_l{layer}" in named:
                gates = gates + named[f"bias_hh_l{layer}"]
            new, _, inner, out = gates.chunk(4, -1)
            x = out.sigmoid() * (new.sigmoid() * inner.tanh()).tanh()
        return x
