"""ONNX Runtime's operators over matrices as the checkpoint has them, [outputs, inputs], without a transpose."""

import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.targets.ort import MICROSOFT, OrtTarget
from paritas.weights import Float, Weight


class AsStoredTarget(OrtTarget):
    """As ``ort``; what multiplies can be read from the checkpoint's own file, or used where it lies in memory."""

    def linear(self, graph: Graph, x: ir.Value, weight: Weight) -> ir.Value:
        """FusedMatMul by the transposed matrix."""
        if not isinstance(weight.storage, Float):
            return super().linear(graph, x, weight)
        return graph.op.FusedMatMul(x, graph.parameter("weight", weight), transB=1, _domain=MICROSOFT)
