"""Whether a graph can be right under left padding at all, as far as its operators tell."""

from pathlib import Path

import onnx

from paritas.runtime.ports import read_ports
from paritas.runtime.proto import load, nodes

ATTENTION_BIAS = 10  # index among the inputs of com.microsoft.GroupQueryAttention
NONPAD_KV_SEQLEN = 6  # index among the inputs of ai.onnx.Attention, opset 24


def left_padding_obstacle(model: Path) -> str | None:
    """Why the graph must be wrong for a left-padded row, in one sentence; None if nothing in it forbids.

    Raises:
        ParitasError: ``package-model-broken``.
        Invalid: as :func:`paritas.runtime.ports.read_ports`.
    """
    if read_ports(model).attention_mask is None:
        return "The graph has no attention mask, so it cannot know which tokens are padding."
    reasons = (_obstacle(node) for node in nodes(load(model)))
    return next((reason for reason in reasons if reason is not None), None)


def _obstacle(node: onnx.NodeProto) -> str | None:
    if node.domain == "com.microsoft" and node.op_type == "GroupQueryAttention":
        # With one query the operator rotates by the row's length even when given position_ids (measured).
        if any(a.name == "do_rotary" and a.i for a in node.attribute):
            return "GroupQueryAttention with do_rotary=1 takes positions from lengths, which count the padding."
        if not _has_input(node, ATTENTION_BIAS):
            return "GroupQueryAttention without attention_bias masks by length: padding on the right only."
    if node.domain == "com.microsoft" and node.op_type == "PagedAttention":
        return "PagedAttention masks by length: padding on the right only."
    if node.domain in ("", "ai.onnx") and node.op_type == "Attention" and _has_input(node, NONPAD_KV_SEQLEN):
        return "Attention with nonpad_kv_seqlen masks by length: padding on the right only."
    return None


def _has_input(node: onnx.NodeProto, index: int) -> bool:
    return len(node.input) > index and node.input[index] != ""
