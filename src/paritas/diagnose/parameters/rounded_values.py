"""What attention takes, rounded to a short type on the way, in a graph that computes in a longer one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx

from paritas.audit.sites import NORMS, PROJECTIONS, Site
from paritas.audit.view import PASSES, View
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Break, Difference
from paritas.diagnose.live import Call
from paritas.runtime.exact import NARROW
from paritas.verify.loading import require_torch

_HALVES = {0: "query", 1: "key", 2: "value"}
_WORDS: dict[int, str] = {onnx.TensorProto.FLOAT16: "fp16", onnx.TensorProto.BFLOAT16: "bf16"}
_FARTHEST = 24


@dataclass(frozen=True)
class Rounding:
    """A Cast to a short type.

    Attributes:
        node: the Cast.
        kind: of the short type, ONNX's number.
        behind: ``rotary`` or ``norm`` or ``proj``: the nearest of them that its value comes out of.
    """

    node: onnx.NodeProto
    kind: int
    behind: str


def rounded_value_differences(case: Case) -> Iterator[Difference]:
    """Every rounding of queries, keys or values on the way into an attention operator."""
    for site in case.sites:
        if site.layer not in case.live.attentions or site.k is None:
            continue
        for place, half in _HALVES.items():
            for rounding in _roundings(case.view, site.node.input[place]):
                yield _difference(case, site, half, rounding)


def _roundings(view: View, name: str) -> Iterator[Rounding]:
    found: list[tuple[onnx.NodeProto, int]] = []
    for _ in range(_FARTHEST):
        node = view.maker.get(name)
        if node is None:
            break
        kind = next((a.i for a in node.attribute if a.name == "to"), 0) if node.op_type == "Cast" else 0
        if kind in NARROW:
            found.append((node, kind))
        behind = "rotary" if node.op_type == "RotaryEmbedding" else "norm" if node.op_type in NORMS else ""
        if behind or node.op_type in PROJECTIONS:
            yield from (Rounding(each, kind, behind or "proj") for each, kind in found)
            found.clear()
        if node.op_type in PROJECTIONS:
            break
        if node.op_type not in (*PASSES, *NORMS, "RotaryEmbedding", "Split", "Slice", "Add"):
            break
        name = node.input[0] if node.input[0] not in view.tensors else node.input[1]


def _difference(case: Case, site: Site, half: str, rounding: Rounding) -> Difference:
    word, node = _WORDS[rounding.kind], rounding.node
    plural = {"query": "queries", "key": "keys", "value": "values"}[half]
    return Difference(
        parameter="attention-rounded",
        where=f"model.layers.{site.layer}.self_attn",
        layer=site.layer,
        package=word,
        reference="fp32",
        fact=f"{plural} are rounded to {word}",
        breaks=_break(case, site, half, rounding),
        repairs=lambda edit: edit.remove(node.output[0], node.input[0]),
    )


def _break(case: Case, site: Site, half: str, rounding: Rounding) -> Break | None:
    """Behind the rotation, in the call of the attention function; before it, behind the module that gives it."""
    torch, _ = require_torch()
    kind: Any = {"fp16": torch.float16, "bf16": torch.bfloat16}[_WORDS[rounding.kind]]

    def change(call: Call) -> None:
        setattr(call, half, getattr(call, half).to(kind).float())  # twice is once: those of the cache may be again

    trail = {"query": site.q, "key": site.k, "value": site.v}[half]
    if rounding.behind == "rotary" or trail is None or "rotary" not in trail.steps:
        if site.values.get("do_rotary") and half != "value":
            return _behind_module(case, site, half, rounding, kind)
        return lambda: case.live.attending({site.layer: change})
    return _behind_module(case, site, half, rounding, kind)


def _behind_module(case: Case, site: Site, half: str, rounding: Rounding, kind: Any) -> Break | None:
    attention = case.live.attentions[site.layer]
    module = getattr(attention, f"{half[0]}_{rounding.behind}", None)
    return None if module is None else lambda: case.live.changing(module, lambda out: out.to(kind).float())
