"""A drafter beside its target: planned before anything is written, then written into the target's package."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paritas import account
from paritas.checkpoint import Checkpoint
from paritas.checkpoint.ids import TokenIds
from paritas.checkpoint.safetensors import SafetensorsTensor
from paritas.config import Config
from paritas.drafters import RENAMES, owners, read_drafter
from paritas.errors import Unsupported
from paritas.graph.builder import Graph
from paritas.graph.drafter import build_drafter
from paritas.package.data import write_data
from paritas.package.model import DATA, write_model
from paritas.plan import Plan
from paritas.spec import Drafter
from paritas.targets.blocks import integers_name
from paritas.targets.onnx import OnnxTarget
from paritas.weights import Blocks, Float

FOLDER = "assistant"
ORDERING = "masked_embedding.token_ordering"
EMBEDDING = "model.embed_tokens.weight"
WIDTH = 4
"""Guesses at a time, where the drafter's generation_config.json does not say."""


@dataclass(frozen=True)
class DrafterPlan:
    """Everything of a drafter that is known before a weight is read."""

    checkpoint: Checkpoint
    spec: Drafter
    graph: Graph
    pairing: dict[str, Any]
    dropped: dict[str, str]

    @property
    def bytes(self) -> int:
        """Of its data file, without padding."""
        return sum(weight.bytes for weight in self.graph.weights.values())


def plan_drafter(checkpoint: Checkpoint, target: Plan) -> DrafterPlan:
    """Read a drafter's checkpoint for the target that it is to guess for.

    Raises:
        Unsupported: ``drafter-unsupported``.
        ParitasError: ``drafter-mismatch``, and all that can be wrong with a checkpoint.
    """
    spec = read_drafter(Config(checkpoint.config, checkpoint.config_place))
    found = owners(spec, target.spec)
    _check_precision(target)
    operators = OnnxTarget()
    tensors = {
        name: TokenIds(each) if name == ORDERING and isinstance(each, SafetensorsTensor) else each
        for name, each in account.renamed(checkpoint.tensors, RENAMES).items()
    }
    graph = Graph(tensors, operators.opsets(spec.decoder))
    build_drafter(graph, spec, operators, target.context)
    borrowed = {
        f"shared_kv.{kind}.{half}": f"present.{layer}.{half}"
        for kind, layer in found.items()
        for half in ("key", "value")
    }
    pairing = {
        "hidden": f"hidden_states.{len(target.spec.layers) - 1}",
        "embedding": _table(target),
        "scale": target.spec.embed_scale,
        "borrowed": borrowed,
        "width": int(checkpoint.generation.get("num_assistant_tokens") or WIDTH),
    }
    return DrafterPlan(checkpoint, spec, graph, pairing, account.dropped(tensors, graph.weights, spec.decoder, ()))


def _check_precision(target: Plan) -> None:
    """A drafter takes the target's caches, and they have to be of fp32."""
    if (narrow := target.recipe.activations) is not Float.FP32:
        raise Unsupported(
            "drafter-unsupported",
            f"a drafter computes in fp32, and the target's keys and values would be {narrow}",
            hint="Export the pair for --ep cpu, or leave --drafter out.",
        )


def _table(target: Plan) -> str:
    """The initializer of the target of which a drafter is given rows, dequantised where it is stored in integers."""
    stored = target.graph.matrices[EMBEDDING].storage
    return integers_name(EMBEDDING, stored) if isinstance(stored, Blocks) else EMBEDDING


def write_drafter(plan: DrafterPlan, package: Path, advance: Callable[[int], None]) -> None:
    """``assistant/`` in the package: graph, data, and what pairs the two."""
    folder = package / FOLDER
    folder.mkdir()
    placed, _ = write_data(folder / DATA, plan.graph.weights, advance)
    write_model(folder, plan.graph, placed, {"paritas.source": plan.checkpoint.name, "paritas.role": "drafter"})
    (folder / "drafter.json").write_text(json.dumps(plan.pairing, indent=2) + "\n", encoding="utf-8")
