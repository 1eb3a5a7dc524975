"""What an attention takes from which node: queries, keys, values, whoever wrote the attention and however."""

from collections.abc import Iterator, Sequence

import onnx

from paritas.audit.identity import Identity
from paritas.audit.projections import made_of, projections_behind
from paritas.audit.sites import ATTENDS, NORMS, PROJECTIONS, Site
from paritas.audit.view import PASSES, View
from paritas.audit.written import written

_ON_THE_WAY = (*PASSES, "MatMul", "Where", "Slice")


def roles(view: View, sites: Sequence[Site]) -> dict[int, str]:
    """Node -> what an attention operator takes from it: ``q_proj``, ``k_norm``, ..."""
    found: dict[int, str] = {}
    for site in sites:
        if site.k is None or site.v is None:
            continue
        for letter, name in zip("qkv", site.node.input[:3], strict=True):
            for node in back(view, name):
                if node.op_type in NORMS:
                    found[id(node)] = f"{letter}_norm"
                if node.op_type == "Add":
                    found[id(node)] = f"{letter}_proj"
                if node.op_type in PROJECTIONS:
                    found[id(node)] = f"{letter}_proj"
                    break
    return found


def written_roles(view: View, identity: Identity) -> dict[int, str]:
    """The same of attention that is written out in products: what meets before the softmax, and what it weighs."""
    made, found = made_of(identity), dict[int, str]()
    for each in written(view, made):
        weighed = _weighed(view, each.softmax.output[0]) if each.softmax is not None else None
        values = projections_behind(view, made, [weighed]) if weighed is not None else []
        ends = {"q_proj": each.q.value, "k_proj": each.k.value, "v_proj": values[0].value if values else ""}
        if len(set(ends.values())) < len(ends):
            continue  # packed: one product is all three
        for role, value in ends.items():
            for node in [view.maker[value]] if value in view.maker else []:
                found[id(node)] = role
                before = [view.maker[name] for name in node.input if name in view.maker]
                found |= {id(each): role for each in before if node.op_type == "Add" and each.op_type in PROJECTIONS}
    return found


def _weighed(view: View, name: str) -> str | None:
    """The value that a softmax's weights are multiplied by."""
    for _ in range(8):
        takers = [node for node, _ in view.takers.get(name, ()) if node.op_type in _ON_THE_WAY]
        if len(takers) != 1:
            return None
        if takers[0].op_type == "MatMul":
            return takers[0].input[1] if takers[0].input[0] == name else None
        name = takers[0].output[0]
    return None


def back(view: View, name: str) -> Iterator[onnx.NodeProto]:
    """Nodes from an attention's input back to its projection, nearest first; none of what another attention keeps."""
    for _ in range(40):
        node = view.maker.get(name)
        if node is None or node.op_type in ATTENDS:
            return
        yield node
        if node.op_type in (*PROJECTIONS, "Split"):
            return
        name = next((n for n in node.input if n in view.maker), "")
