"""Published configurations as random models of their real widths, exported and proven: floors, verdict, seconds.

    python benchmarks/real_shapes.py [NAME ...] [--target ort onnx] [--memory GIB] [--folder tests/configs]

A model has its full depth and vocabulary if that fits into ``--memory``; else a vocabulary of 2,003 tokens; else two
layers of each kind as well, else one; else the same with narrow MLPs. Every number of each weight is random. Each model
is a process of its own, and its peak of memory is the process's. What ``two layers of each kind`` are is
:func:`shallow`; a family whose layers hang together in another way has a function of its own in ``REDUCTIONS``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")
ROOT = Path(__file__).resolve().parent.parent
VOCAB = 2003
BYTES = 10
"""A parameter's: the reference in fp64 while its fp32 weights go, and what is beside it."""
BASE = 3 << 29  # torch, ONNX Runtime and the logits
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
Values = dict[str, Any]


def shallow(config: Values, most: int) -> Values:
    """As many layers of each kind: a layer's kind is what the lists with one value for each layer say of it."""
    depth = config["num_hidden_layers"]
    each = {key: value for key, value in config.items() if isinstance(value, list) and len(value) == depth}
    kinds = [repr([values[layer] for values in each.values()]) for layer in range(depth)]
    seen: Counter[str] = Counter()
    kept: list[int] = []
    for layer, kind in enumerate(kinds):
        seen[kind] += 1
        if seen[kind] <= most:
            kept.append(layer)
    lists = {key: [values[layer] for layer in kept] for key, values in each.items()}
    return config | lists | {"num_hidden_layers": len(kept)}


def sharing(config: Values, most: int) -> Values:
    """The same apart for layers with keys of their own and for those that take another one's, which come last."""
    depth, shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    lists = [key for key, value in config.items() if isinstance(value, list) and len(value) == depth]
    own, last = (
        shallow(config | {key: config[key][part] for key in lists} | {"num_hidden_layers": count}, most)
        for part, count in ((slice(depth - shared), depth - shared), (slice(depth - shared, None), shared))
    )
    joined = {key: own[key] + last[key] for key in lists}
    numbers = {"num_hidden_layers": len(joined["layer_types"]), "num_kv_shared_layers": last["num_hidden_layers"]}
    return config | joined | numbers


def narrow(config: Values) -> Values:
    """The same with MLPs no wider than the residual stream, but for the first where each layer has its own width."""
    widths, most = config["intermediate_size"], config["hidden_size"]
    if not isinstance(widths, list):
        return config | {"intermediate_size": min(widths, most)}
    return config | {"intermediate_size": [widths[0], *(min(width, most) for width in widths[1:])]}


def of_two_widths(config: Values, most: int) -> Values:
    """The same where single layers have other heads: those of their kind."""
    kinds, own = config["layer_types"], config["per_layer_config"]
    heads = {kinds[int(layer)]: values for layer, values in own.items()}
    fewer = sharing(config, most) if config["num_kv_shared_layers"] else shallow(config, most)
    layers = {str(layer): heads[kind] for layer, kind in enumerate(fewer["layer_types"]) if kind in heads}
    return fewer | {"per_layer_config": layers}


REDUCTIONS: Mapping[str, Callable[[Values, int], Values]] = {
    "gemma3n_text": sharing,
    "gemma4_text": of_two_widths,
    "gemma4_unified_text": of_two_widths,
}
"""model_type -> as many layers of each kind, where :func:`shallow` does not give them."""


def small_vocabulary(config: Values) -> Values:
    """The same with few tokens, and special ones among them."""
    tables = {key: VOCAB for key in ("vocab_size", "vocab_size_per_layer_input") if key in config}
    return config | tables | {key: min(number, 2) for number, key in enumerate(IDS)}


def text_config(folder: Path) -> Values:
    """The text model's configuration, every value said."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder).get_text_config()
    return config.to_dict() | {"model_type": config.model_type}


def fitting(config: Values, memory: float) -> tuple[Any, str]:
    """transformers' configuration that fits into ``memory`` bytes, and what was reduced for that."""
    small = small_vocabulary(config)
    two, one = (REDUCTIONS.get(config["model_type"], shallow)(small, most) for most in (2, 1))
    words = f"{VOCAB:,} tokens"
    ways = {
        "as published": config,
        words: small,
        f"{words}, two of each kind": two,
        f"{words}, one of each kind": one,
        f"{words}, two of each kind, narrow MLPs": narrow(two),
        f"{words}, one of each kind, narrow MLPs": narrow(one),
    }
    for words, values in ways.items():
        made = _config(values)
        if BASE + BYTES * parameters(made) <= memory:
            return made, words
    raise SystemExit(f"does not fit: {BASE + BYTES * parameters(_config(narrow(one))):,} bytes")


def parameters(config: Any) -> int:
    """Numbers of the model; none is made."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return sum(each.numel() for each in AutoModelForCausalLM.from_config(config).parameters())


def _config(values: Values) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[values["model_type"]].from_dict(values)
    config.dtype = "bfloat16"
    return config


def write(config: Any, folder: Path) -> None:
    """A checkpoint in bf16, written by transformers, every parameter random."""
    import torch
    from transformers import AutoModelForCausalLM

    sys.path.insert(0, str(ROOT / "tests"))
    import tiny

    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tiny.randomize(model)
    model.save_pretrained(folder)


def prove(name: str, folder: Path, targets: list[str], memory: float) -> None:
    """One model on each target; a line of JSON for each."""
    import resource

    from transformers.utils import logging

    from paritas.errors import ParitasError
    from paritas.export import export
    from paritas.plan import Options
    from paritas.targets import TARGETS
    from paritas.verify.run import verify

    logging.disable_progress_bar()
    config, reduced = fitting(text_config(folder), memory)
    facts = {"model": name, "reduced": reduced, "layers": config.num_hidden_layers, "parameters": parameters(config)}
    with tempfile.TemporaryDirectory(prefix="real-shapes-") as scratch:
        os.environ["PARITAS_CACHE"] = f"{scratch}/cache"  # the reference is asked once for all targets
        write(config, Path(scratch) / name)
        for target in targets:
            started, found = time.perf_counter(), list[Any]()

            def judge(package: Path, found: list[Any] = found) -> str:
                found.append(verify(package, Path(scratch) / name, runtimes=("onnxruntime",), power=False))
                return str(found[0].verdict.value)

            try:
                options = Options(tokenizer=False, allow_unproven=True, force=True)
                verdict = export(Path(scratch) / name, Path(scratch) / "out", TARGETS[target], options, judge).verdict
            except ParitasError as error:
                verdict = f"{error.code}: {error.fact}"
            told = _told(found[0]) if found else {}
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
            told |= {"verdict": verdict, "seconds": time.perf_counter() - started, "peak": peak}
            print(json.dumps(facts | {"target": target} | told), flush=True)


def _told(evidence: Any) -> dict[str, Any]:
    tested = [probe for probe in evidence.probes if probe.worst_floors is not None]
    worst = max(tested, key=lambda probe: probe.worst_floors, default=None)
    longest = max((len(sequence.ids) for sequence in evidence.sequences), default=0)
    return {"floors": evidence.worst_floors, "probe": None if worst is None else worst.id, "tokens": longest}


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="folders of configurations; all if none is named")
    parser.add_argument("--folder", type=Path, default=ROOT / "tests" / "configs")
    parser.add_argument("--target", nargs="+", default=["ort", "onnx"])
    parser.add_argument("--memory", type=float, default=5.0, help="GiB of one process")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        return prove(given.names[0], given.folder / given.names[0], given.target, given.memory * 2**30)
    print("| model | layers | parameters | reduced to | target | tokens | worst floors | verdict | s | peak GiB |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in given.names or sorted(path.parent.name for path in given.folder.glob("*/config.json")):
        for row in _apart(name, given):
            print(row, flush=True)
    return None


def _apart(name: str, given: argparse.Namespace) -> list[str]:
    """The rows of one model, of a process of its own."""
    words = [sys.executable, __file__, "--one", name, "--folder", str(given.folder), "--memory", str(given.memory)]
    done = subprocess.run([*words, "--target", *given.target], capture_output=True, text=True, check=False)
    rows = [_row(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        rows.append(f"| {name} | | | | | | | {reason} | | |")
    return rows


def _row(told: dict[str, Any]) -> str:
    floors = "" if told.get("floors") is None else f"{told['floors']:.2f} ({told['probe']})"
    return (
        f"| {told['model']} | {told['layers']} | {told['parameters']:,} | {told['reduced']} | {told['target']} | "
        f"{told.get('tokens', '')} | {floors} | {told['verdict']} | {told['seconds']:.0f} |"
        f" {told['peak'] / 2**30:.1f} |"
    )


if __name__ == "__main__":
    main()
