"""A kernel that turns given words into uniforms and exponentials."""

import triton
import triton.language as tl

from mmspec.core.kernels.random import exponential_of, uniform_of


@triton.jit
def convert(words, u, e, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    uniform = uniform_of(tl.load(words + at))
    tl.store(u + at, uniform)
    tl.store(e + at, exponential_of(uniform))
