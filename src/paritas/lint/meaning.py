"""Groups of states that readers accept and that are wrong all the same, as far as names and kinds tell."""

import re

from paritas.lint.document import Document
from paritas.lint.fault import Findings, Values, fault, mapping

_KEYS, _VALUES = re.compile(r"(^|[._])k(ey)?s?([._]|$)"), re.compile(r"(^|[._])v(alue)?s?([._]|$)")


def meaning_findings(document: Document) -> Findings:
    """Of groups and their ends, by what their names say."""
    for name, group in document.groups.items():
        yield from _group(document, name, group)
        for component, aliases in mapping(group, "ports").items():
            for cell, alias in aliases.items():
                yield from _alias(document, (name, "ports", component, cell), alias)


def _group(document: Document, name: str, group: Values) -> Findings:
    where = document.at_group(name)
    evicts = mapping(group, "reuse").get("evictable_prefix", False)
    if group["kind"] == "sliding_attention" and not evicts:
        yield fault(
            "metadata-eviction",
            where,
            "its layers never look behind their window, and evictable_prefix is false: what they do not need is kept",
            "Write reuse.evictable_prefix: true.",
        )
    if group["kind"] == "full_attention" and evicts:
        yield fault(
            "metadata-eviction",
            where,
            "its layers look at every position, and evictable_prefix is true: what they need may be dropped",
            "Write reuse.evictable_prefix: false.",
        )
    axis, layout = group.get("sequence_axis"), group["layout"]
    if axis is not None and re.fullmatch("[a-z]+", layout) and "s" in layout and layout.find("s") != axis:
        yield fault(
            "metadata-layout",
            where,
            f"in layout {layout} the tokens lie at axis {layout.find('s')}, sequence_axis is {axis}",
            "Make them say the same.",
        )
    if group["kind"] == "recurrent" and mapping(group, "capabilities").get("rollback_positions"):
        yield fault(
            "metadata-rollback-impossible",
            where,
            "a recurrent state has no positions that could be taken back",
            "Leave rollback_positions out; snapshot says that it can be kept and restored.",
        )


def _alias(document: Document, path: tuple[str, ...], alias: Values) -> Findings:
    """Numbers in the names of a state's two ports are its layer, and their halves its role."""
    names = [alias["input"], *([alias["output"]] if alias.get("output") else [])]
    numbers = [found for name in names if len(found := re.findall(r"\d+", name)) == 1]
    told: set[int] = {int(found[0]) for found in numbers} | (
        {alias["layer"]} if alias.get("layer") is not None and numbers else set()
    )
    if len(told) > 1:
        yield fault(
            "metadata-layer-wrong",
            document.at_group(*path),
            f"{' and '.join(names)} are said to be of layer {alias.get('layer')}",
            "The number of the ports is the layer, and both ports are of one layer.",
        )
    halves = {
        half for name in names for half, words in (("key", _KEYS), ("value", _VALUES)) if words.search(_half(name))
    }
    role = alias.get("role")
    if len(halves) > 1 or (halves and role in ("key", "value") and halves != {role}):
        yield fault(
            "metadata-role-wrong",
            document.at_group(*path),
            f"{' and '.join(names)} are said to be the {role}",
            "Keys go with keys, and values with values.",
        )


def _half(name: str) -> str:
    """The name without the words that say what it is a half of."""
    return re.sub(r"key_values?", "", name)
