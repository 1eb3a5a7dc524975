"""Skip norms taken apart: one operator adds and normalises, the reference adds and then normalises."""

from collections.abc import Collection, Mapping

import onnx

ALONE = "@alone"


def norms_alone(proto: onnx.ModelProto, sums: Mapping[str, onnx.NodeProto], cuts: Collection[str]) -> dict[str, str]:
    """Add copies of skip norms that are given the sum, and nothing to add to it.

    Args:
        proto: changed in its place.
        sums: name of a sum -> the skip norm that gives it.
        cuts: values; a norm is copied if its sum and its result are among them.

    Returns:
        The norm's result -> its copy's.
    """
    found: dict[str, str] = {}
    nodes = list(proto.graph.node)
    for node in nodes:
        total = node.output[3] if len(node.output) > 3 else ""
        if total not in sums or total not in cuts or node.output[0] not in cuts:
            continue
        nothing, copied = onnx.NodeProto(), onnx.NodeProto()
        nothing.CopyFrom(onnx.helper.make_node("Sub", [total, total], [f"{total}{ALONE}.nothing"]))
        copied.CopyFrom(node)
        kept = 3 if node.op_type == "SkipSimplifiedLayerNormalization" else 4
        del copied.input[kept:]
        copied.input[0], copied.input[1] = total, nothing.output[0]
        del copied.output[1:]
        copied.name = copied.output[0] = found[node.output[0]] = f"{node.output[0]}{ALONE}"
        place = next(i for i, each in enumerate(proto.graph.node) if each is node)
        proto.graph.node.insert(place + 1, nothing)
        proto.graph.node.insert(place + 2, copied)
    return found
