"""`python -m tools.bench.half_gguf MODEL.gguf HALF.gguf`: the model with float16 weights, for llama.cpp beside us."""

import sys
from pathlib import Path

import gguf
import numpy as np


def halve(source: Path, made: Path) -> None:
    """Write a GGUF file with the metadata and the tensors of another, which are dequantised; vectors stay float32."""
    reader = gguf.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(made, architecture)
    written = ("general.architecture", "general.file_type", "general.quantization_version")
    for name, field in reader.fields.items():
        if name in written or name.startswith("GGUF."):
            continue
        inner = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        weights = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tuple(reversed(tensor.shape.tolist())))
        writer.add_tensor(tensor.name, weights.astype(np.float16 if weights.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    halve(*map(Path, sys.argv[1:3]))
