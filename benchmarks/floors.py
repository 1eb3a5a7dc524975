"""The study behind the floor: right exports of random tiny models, in units of several measures of noise.

    python benchmarks/floors.py [--models 40] [--hostile] [--seed 0]

Each model (llama or gemma3_text) goes through the shipped exporter to every target, and each package is asked 60 tokens
in one pass and step by step. Every export is right, so every ratio is rounding: the table shows how far it reaches, and
how many models a gate at 5 floors would call wrong. ``--hostile`` draws models that no one trains, in which nothing
averages rounding out: a hidden size of 8, one MLP neuron, attention so sharp that a last bit turns it.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a second thread costs tiny models more than it does

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from paritas.checkpoint import open_checkpoint
from paritas.export import export
from paritas.plan import Options
from paritas.runtime.package import open_package
from paritas.runtime.session import RawSession
from paritas.targets import TARGETS
from paritas.verify.asking import one_pass, steps
from paritas.verify.compare import differ
from paritas.verify.floor import FP64, NUDGED, SDPA, STEPS, Noise, floors
from paritas.verify.probes import Sequence as Asked
from paritas.verify.reference import Reference
from paritas.verify.verdict import PROVEN_FLOORS

TOKENS, PREFILL = 60, 16
Row = NDArray[np.float64]
OWN = "own noise"
WAYS: dict[str, Callable[[Noise], Row]] = {
    "own noise without nudged weights": lambda noise: unnudged(noise).own,
    "... not below its 90th percentile": lambda noise: floors({"": unnudged(noise)})[""],
    OWN: lambda noise: noise.own,
    "... not below its median": lambda noise: np.maximum(noise.own, np.median(noise.own)),
    "**... not below its 90th percentile**": lambda noise: floors({"": noise})[""],
    "... its maximum": lambda noise: np.full_like(noise.own, noise.own.max()),
}


def unnudged(noise: Noise) -> Noise:
    """The noise as it would be had no weight been moved."""
    return Noise(noise.spacing, {name: row for name, row in noise.variants.items() if name not in NUDGED})


def config_of(random: np.random.Generator, *, hostile: bool) -> transformers.PreTrainedConfig:
    """A family, sizes and numbers, all at random."""

    def pick(*values: Any) -> Any:
        return values[random.integers(len(values))]

    kv_heads = pick(1, 2, 3)
    values: dict[str, Any] = {
        "vocab_size": int(random.integers(512, 8193)),
        "hidden_size": 8 * int(random.integers(1, 9)) if hostile else 8 * int(random.integers(9, 33)),
        "intermediate_size": pick(1, 7, 40) if hostile else int(random.integers(100, 500)),
        "num_hidden_layers": int(random.integers(2, 8)),
        "num_attention_heads": kv_heads * pick(1, 2),
        "num_key_value_heads": kv_heads,
        "head_dim": pick(16, 32, 64),
        "max_position_embeddings": 128,
        "rms_norm_eps": pick(1e-6, 1e-5),
        "tie_word_embeddings": pick(True, False),
        "attention_bias": pick(True, False),
    }
    values["hidden_size"] = -(-values["hidden_size"] // values["num_attention_heads"]) * values["num_attention_heads"]
    if pick("llama", "gemma3_text") == "llama":
        return transformers.LlamaConfig(**values, mlp_bias=pick(True, False), hidden_act=pick("silu", "gelu"))
    kinds = [pick("sliding_attention", "full_attention") for _ in range(values["num_hidden_layers"])]
    return transformers.Gemma3TextConfig(
        **values,
        layer_types=kinds,
        sliding_window=pick(7, 24, 100),
        query_pre_attn_scalar=pick(1, 3) if hostile else values["head_dim"],
        final_logit_softcapping=pick(None, 30.0),
    )


def save(folder: Path, random: np.random.Generator, *, hostile: bool) -> int:
    """A checkpoint with every parameter at random; returns its vocabulary's size."""
    config = config_of(random, hostile=hostile)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    torch.manual_seed(int(random.integers(2**31)))
    gain = float(random.choice([0.5, 1.0, 2.5] if hostile else [0.7, 1.0, 1.4]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0 if "norm" in name and config.model_type == "llama" else 0.0, 0.3)
            else:
                parameter.normal_(0.0, 0.15 if "embed" in name else gain * parameter.shape[1] ** -0.5)
    model.save_pretrained(folder)
    return config.vocab_size


def reference(folder: Path, asked: Asked) -> tuple[NDArray[np.floating[Any]], Noise]:
    """transformers' logits, and what it differs from itself."""
    model = Reference(open_checkpoint(folder))
    logits = model.one_pass(asked.ids)
    noise = Noise.of(logits)
    noise.add(STEPS, logits, model.steps(asked.ids, asked.prefill))
    with model.sdpa():
        noise.add(SDPA, logits, model.one_pass(asked.ids))
    model.to_fp64()
    noise.add(FP64, logits, model.one_pass(asked.ids))
    for seed, variant in enumerate(NUDGED):
        model.nudge(seed)
        noise.add(variant, logits, model.one_pass(asked.ids))
    return logits, noise


def differences(folder: Path, asked: Asked, logits: NDArray[np.floating[Any]]) -> list[Row]:
    """Of each target, in one pass and step by step, ``[positions]``."""
    found: list[Row] = []
    for target in TARGETS.values():
        with tempfile.TemporaryDirectory() as out:
            package = Path(out) / "package"
            export(folder, package, target, Options(tokenizer=False))
            session = RawSession(open_package(package), threads=1)
            found += [differ(logits, answer)[0] for answer in (one_pass(session, asked.ids), steps(session, asked))]
    return found


def study(models: int, seed: int, *, hostile: bool) -> dict[str, list[Row]]:
    """Way -> ratios of each model, ``[positions * targets * 2]``."""
    ratios: dict[str, list[Row]] = {way: [] for way in WAYS}
    for number in range(models):
        random = np.random.default_rng([seed, number])
        with tempfile.TemporaryDirectory() as name:
            vocab = save(Path(name), random, hostile=hostile)
            ids = tuple(random.integers(0, vocab, TOKENS).tolist())
            asked = Asked("tokens", ids, PREFILL, TOKENS)
            logits, noise = reference(Path(name), asked)
            found = differences(Path(name), asked, logits)
        for way, floor in WAYS.items():
            ratios[way].append(np.concatenate([row / floor(noise) for row in found]))
    return ratios


def show(ratios: dict[str, list[Row]]) -> None:
    """The table of the documents."""
    every = {way: np.concatenate(each) for way, each in ratios.items()}
    models, positions = len(ratios[OWN]), every[OWN].size
    print(f"| floor | median | 99 % | 99.99 % | worst of {positions:,} | models beyond {PROVEN_FLOORS:.0f} |")
    print("|---|---|---|---|---|---|")
    for way, all_of_it in every.items():
        middle, high, higher, worst = np.quantile(all_of_it, [0.5, 0.99, 0.9999, 1.0])
        beyond = sum(each.max() > PROVEN_FLOORS for each in ratios[way])
        print(f"| {way} | {middle:.2f} | {high:.2f} | {higher:.2f} | {worst:.2f} | {beyond} of {models} |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, export, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hostile", action="store_true", help="models that no one trains")
    options = parser.parse_args(arguments)
    transformers.utils.logging.disable_progress_bar()
    show(study(options.models, options.seed, hostile=options.hostile))


if __name__ == "__main__":
    main()
