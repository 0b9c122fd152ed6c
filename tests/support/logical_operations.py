"""Operations of torch by what they mean for a device: copies, look-ups, those that the host waits for."""

INPLACE_COPY = "aten::copy_"
COPIES = ("aten::_to_copy", INPLACE_COPY)
INDEXING = ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_", "aten::_unsafe_index")
STRICT = ("aten::gather", "aten::scatter", "aten::scatter_", "aten::index_select", "aten::embedding")
"""Operations that take no tensor of the host beside one of the device, not even a number."""
WAITING = (
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    "aten::equal", "aten::bincount", "aten::_local_scalar_dense", "aten::repeat_interleave.Tensor",
)  # fmt: skip
"""Operations whose result, or its shape, the host reads."""
FREE = frozenset(
    "aten::" + name
    for name in (
        "_unsafe_view", "lift_fresh", "empty.memory_format", "empty_strided", "empty_like", "new_empty",
        "new_empty_strided", "_reshape_alias", "set_.source_Storage",
    )
)  # fmt: skip
"""Operations without a kernel, beside views."""
