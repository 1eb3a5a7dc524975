"""Gemma 4 E2B at its full depth: what its graph takes and gives, and one prompt and one step beside transformers.

    python benchmarks/gemma4_contract.py [--target ort onnx] [--mlp 768] [--tokens 540]

The configuration is the published one but for the vocabulary (2,003 tokens) and the MLPs' width, so that it fits into
5 GiB; every weight is random. Each row of the table is read out of the graph, or out of the spec where the graph does
not say, and stands beside what a published package of E2B says of itself. The prompt is longer than the window. The
reference, the export and the package have a process each.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "tests" / "configs" / "gemma-4-E2B-it"
VOCAB = 2003
CONTRACT: Mapping[str, Any] = {
    "layers": 35,
    "sliding window": 512,
    "full layers": [4, 9, 14, 19, 24, 29, 34],
    "widths of heads": {"sliding": 256, "full": 512},
    "heads": "8/1",
    "caches": 15,
    "full owners": [4, 9, 14],
    "sliding owners": 12,
    "borrowers": 20,
    "per-layer input": 256,
    "MLPs of borrowers, times the others'": 2,
    "softcap": 30.0,
    "head": "tied",
    "experts": None,
}
"""As a published package of E2B says it."""


def main() -> None:
    """The table, then a line for each target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", default=["ort", "onnx"])
    parser.add_argument("--mlp", type=int, default=768, help="intermediate_size; 6144 is published")
    parser.add_argument("--tokens", type=int, default=540)
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        what, folder, target = given.step
        return {"reference": reference, "export": export, "run": run}[what](Path(folder), target, given)
    with tempfile.TemporaryDirectory(prefix="gemma4-contract-") as folder:
        step("reference", folder, "-", given)
        for number, target in enumerate(given.target):
            step("export", folder, target, given)
            if number == 0:
                show(contract(Path(folder), target))
            step("run", folder, target, given)
    return None


def step(what: str, folder: str, target: str, given: argparse.Namespace) -> None:
    """In a process of its own."""
    words = [sys.executable, __file__, "--step", what, folder, target, "--mlp", given.mlp, "--tokens", given.tokens]
    subprocess.run(list(map(str, words)), check=True)


def reference(folder: Path, _target: str, given: argparse.Namespace) -> None:
    """Write the checkpoint, and what transformers makes of the prompt and of one more token: eager, and by SDPA."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    sys.path.insert(0, str(ROOT / "tests"))
    import tiny

    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(PUBLISHED).get_text_config()
    config.vocab_size = config.vocab_size_per_layer_input = VOCAB
    config.intermediate_size = given.mlp
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tiny.randomize(model)
    model.save_pretrained(folder / "checkpoint")
    del model  # a cast back would leave its buffers rounded
    model = AutoModelForCausalLM.from_pretrained(folder / "checkpoint", dtype=torch.float32).eval()
    ids = torch.randint(3, VOCAB, (1, given.tokens + 1), generator=torch.Generator().manual_seed(20261130))
    np.save(folder / "ids.npy", ids.numpy())
    for kind in ("eager", "sdpa"):
        model.set_attn_implementation(kind)
        with torch.inference_mode():
            first = model(ids[:, :-1], use_cache=True)
            last = model(ids[:, -1:], cache=first.cache)
        np.save(folder / f"{kind}.npy", torch.cat([first.logits, last.logits], 1)[0].numpy())
    print(f"{sum(each.numel() for each in model.parameters()):,} parameters, {given.tokens} tokens and one step")


def export(folder: Path, target: str, _given: argparse.Namespace) -> None:
    """The package."""
    from paritas.export import export as write
    from paritas.plan import Options
    from paritas.targets import TARGETS

    write(folder / "checkpoint", folder / target, TARGETS[target], Options(tokenizer=False))


def contract(folder: Path, target: str) -> dict[str, Any]:
    """What the package's graph and the checkpoint's spec say."""
    from paritas.checkpoint import open_checkpoint
    from paritas.describe import describe_checkpoint
    from paritas.runtime.ports import read_ports

    spec, ports = (
        describe_checkpoint(open_checkpoint(folder / "checkpoint")),
        read_ports(folder / target / "model.onnx"),
    )
    layers, caches = spec["layers"], ports.caches
    full = [layer["layer"] for layer in layers if layer["kind"] == "full_attention"]
    owners = {cache.layer: cache for cache in caches}
    borrowers = [layer for layer in layers if layer["layer"] not in owners]
    widths = {"full" if layer in full else "sliding": cache.head_dim for layer, cache in owners.items()}
    return {
        "layers": attentions(folder / target / "model.onnx"),
        "sliding window": next(layer["window"] for layer in layers if layer["window"]),
        "full layers": full,
        "widths of heads": widths,
        "heads": f"{layers[0]['heads']}/{','.join(sorted({str(cache.kv_heads) for cache in caches}))}",
        "caches": len(caches),
        "full owners": [layer for layer in owners if layer in full],
        "sliding owners": sum(layer not in full for layer in owners),
        "borrowers": len(borrowers),
        "per-layer input": spec["per_layer_input"],
        "MLPs of borrowers, times the others'": borrowers[0]["mlp"] / layers[0]["mlp"],
        "softcap": spec["softcap"],
        "head": spec["head"],
        "experts": layers[0]["experts"],
    }


def attentions(model: Path) -> int:
    """Operators that attend."""
    from paritas.runtime.proto import operators

    counts = operators(model)
    return sum(
        count for name, count in counts.items() if name.rpartition(".")[2] in ("Attention", "GroupQueryAttention")
    )


def show(found: dict[str, Any]) -> None:
    """Beside what is published; stops where they differ."""
    print(f"\n{'':40s}{'published':32s}here")
    for key, told in CONTRACT.items():
        print(f"{key:40s}{told!s:32s}{found[key]}")
    print()
    if wrong := [key for key, told in CONTRACT.items() if found[key] != told]:
        raise SystemExit(f"not the published contract: {', '.join(wrong)}")


def run(folder: Path, target: str, _given: argparse.Namespace) -> None:
    """The prompt at once, then the step; differences beside the reference's own by SDPA."""
    import resource

    from paritas.runtime.package import open_package
    from paritas.runtime.session import RawSession

    ids = np.load(folder / "ids.npy")
    session = RawSession(open_package(folder / target))
    first, state = session.forward(ids[:, :-1])
    last, _ = session.forward(ids[:, -1:], state)
    eager, sdpa = np.load(folder / "eager.npy"), np.load(folder / "sdpa.npy")
    apart = np.abs(np.concatenate([first, last], 1)[0] - eager).max(axis=1)
    own = np.abs(sdpa - eager).max(axis=1)
    told = {
        "target": target,
        "prompt": float(apart[:-1].max()),
        "step": float(apart[-1]),
        "reference by SDPA, prompt": float(own[:-1].max()),
        "reference by SDPA, step": float(own[-1]),
        "largest logit": float(np.abs(eager).max()),
        "peak GiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
