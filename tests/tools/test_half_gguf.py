"""The same GGUF model with float16 weights."""

from pathlib import Path

import gguf
import numpy as np

from tools.bench.half_gguf import halve


def test_weights_are_those_of_four_bits_and_the_rest_is_kept(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
    writer = gguf.GGUFWriter(tmp_path / "q4.gguf", "llama")
    writer.add_block_count(3)
    writer.add_token_list(["a", "b"])
    kind = gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor("m", gguf.quants.quantize(weights, kind), raw_dtype=kind)
    writer.add_tensor("v", weights[0])
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    halve(tmp_path / "q4.gguf", tmp_path / "half.gguf")
    read, given = (gguf.GGUFReader(tmp_path / f"{name}.gguf") for name in ("half", "q4"))
    assert read.fields["llama.block_count"].contents() == 3
    assert read.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    matrix, vector = read.tensors
    assert matrix.data.dtype == np.float16 and vector.data.dtype == np.float32
    assert np.array_equal(matrix.data, gguf.dequantize(given.tensors[0].data, kind).astype(np.float16))
    assert np.array_equal(vector.data, weights[0])
