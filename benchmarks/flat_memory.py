"""Memory of an export against the size of the model: checkpoints of published shapes, their weights a hole in a file.

    python benchmarks/flat_memory.py [--dtype fp32] [--only 135M ...] [--keep]

No number is read from a disk, so that large models cost no room; zeros are exported as any other numbers. Each export
is a process of its own, without a tokenizer; memory is what it takes at most beside the program.
"""

import argparse
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import results

PROGRAM = """
import json, sys
from pathlib import Path
from paritas.export import export
from paritas.plan import Options
from paritas.quant.recipe import recipe
from paritas.targets import TARGETS
done = export(sys.argv[1], Path(sys.argv[2]), TARGETS["ort"], Options(tokenizer=False, context=4096,
    recipe=recipe(sys.argv[3])))
print(json.dumps({"bytes": done.bytes, "memory": done.memory, "forecast": done.memory_forecast,
    "seconds": done.seconds, "parameters": done.parameters}))
"""
# hidden, MLP, layers, heads, key and value heads, head_dim, vocabulary
SHAPES = {
    "135M": (576, 1536, 30, 9, 3, 64, 49_152),
    "270M": (640, 2048, 18, 4, 1, 256, 262_144),
    "1B": (2048, 8192, 16, 32, 8, 64, 128_256),
    "3B": (3072, 8192, 28, 24, 8, 128, 128_256),
}


def write(folder: Path, shape: tuple[int, ...]) -> None:
    """A Llama of that shape: a header, and nothing behind it."""
    hidden, inner, layers, heads, kv, width, vocab = shape
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": width,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (vocab, hidden), "model.norm": (hidden,)}
    for at in (f"model.layers.{index}" for index in range(layers)):
        shapes |= {
            f"{at}.self_attn.q_proj": (heads * width, hidden),
            f"{at}.self_attn.k_proj": (kv * width, hidden),
            f"{at}.self_attn.v_proj": (kv * width, hidden),
            f"{at}.self_attn.o_proj": (hidden, heads * width),
            f"{at}.mlp.gate_proj": (inner, hidden),
            f"{at}.mlp.up_proj": (inner, hidden),
            f"{at}.mlp.down_proj": (hidden, inner),
            f"{at}.input_layernorm": (hidden,),
            f"{at}.post_attention_layernorm": (hidden,),
        }
    header, end = dict[str, Any](), 0
    for name, dims in shapes.items():
        size = 2 * dims[0] * (dims[1] if len(dims) > 1 else 1)
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": dims, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def main() -> None:
    """One row a shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=["135M", "270M", "1B"])
    results.option(parser)
    given = parser.parse_args()
    with results.kept(given.keep):
        for name in given.only:
            measure(name, given.dtype)


def measure(name: str, dtype: str) -> None:
    """Print the row of one shape."""
    with tempfile.TemporaryDirectory() as folder:
        model, out = Path(folder) / "model", Path(folder) / "out"
        write(model, SHAPES[name])
        words = [sys.executable, "-c", PROGRAM, str(model), str(out), dtype]
        told = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    print(
        f"{name:5s} {dtype}: {told['parameters']:,} parameters, {told['bytes'] / 2**20:,.0f} MiB written in "
        f"{told['seconds']:.1f} s, {told['memory'] / 2**20:,.0f} MiB of memory beside the program "
        f"(forecast: {told['forecast'] / 2**20:,.0f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
