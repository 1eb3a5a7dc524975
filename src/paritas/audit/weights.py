"""Findings of weight identity: what is rounded, swapped, permuted, zeroed, doubled, unused, unexplained."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from paritas.audit.expected import Expected
from paritas.audit.finding import Finding, Severity, layer_of, layers, names
from paritas.audit.identity import Identity, Provenance
from paritas.audit.match import Part
from paritas.audit.view import View, operand
from paritas.spec import QkNorm

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_PACKED = re.compile(r"qkv|query_key_value|c_attn|in_proj", re.IGNORECASE)
_SHORT = ("fp16", "bf16")


def weight_findings(view: View, identity: Identity, expected: Expected) -> Iterator[Finding]:
    """Everything that values alone can tell."""
    yield from _rounded_offsets(identity)
    yield from _wrong_offsets(view, identity, expected)
    yield from _roundings(identity)
    yield from _rows(identity)
    yield from _permuted(identity, expected)
    yield from _named_wrongly(identity)
    yield from _unexplained(view, identity, expected)
    yield from _unused(identity, expected)
    yield from _twice(view, identity)


def _places(found: Sequence[str]) -> str:
    """Layers, where every name has one, and the parts of a layer; else the names."""
    numbers = [layer_of(name) for name in found]
    known = [number for number in numbers if number is not None]
    if len(known) < 2:
        return names(found)
    parts = list(
        dict.fromkeys(name.split(f"{n}.", 1)[-1] for name, n in zip(found, numbers, strict=True) if n is not None)
    )
    others = [name for name, n in zip(found, numbers, strict=True) if n is None]
    return "; ".join([f"{layers(known)}: {names(parts)}", *([names(others)] if others else [])])


def _by_transform(identity: Identity) -> dict[tuple[str, str], list[Part]]:
    found: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for record in identity.initializers:
        for part in record.parts:
            found[record.dtype, part.transform].append(part)
    return found


def _rounded_offsets(identity: Identity) -> Iterator[Finding]:
    for (dtype, transform), parts in _by_transform(identity).items():
        if transform not in ("1+w in bf16", "1+w in fp16"):
            continue
        kind = transform.removeprefix("1+w in ")
        yield Finding(
            "norm-offset-rounded",
            "error" if dtype == "fp32" else "note",
            _places([part.tensor for part in parts]),
            f"{len(parts)} norm weights are 1 + weight formed in {kind} ({8 if kind == 'bf16' else 11} bits), in a "
            f"build of {dtype}",
            "Widen the checkpoint's weight to fp32 before 1 is added to it.",
        )


def _wrong_offsets(view: View, identity: Identity, expected: Expected) -> Iterator[Finding]:
    """The offset in the weight, and the one that the graph adds to it, against the model's."""
    offsets = spec_offsets(expected)
    missing: list[str] = []
    unwanted: list[str] = []
    for record in identity.initializers:
        for part in record.parts:
            held = {"identity": 0.0, "1+w": 1.0, "1+w in bf16": 1.0, "1+w in fp16": 1.0}.get(part.transform)
            wanted = offsets.get(part.tensor)
            if held is None or wanted is None:
                continue
            got = held + _added(view, record.name)
            if got != wanted:
                (missing if got < wanted else unwanted).append(part.tensor)
    if missing:
        fact = f"{len(missing)} norms hold the weight without the 1 that the model adds"
        yield Finding("norm-offset-missing", "error", _places(missing), fact, "Add it, in fp32.")
    if unwanted:
        fact = f"{len(unwanted)} norms hold 1 + weight, where the model adds nothing"
        yield Finding("norm-offset-unwanted", "error", _places(unwanted), fact, "Write the weight as it is.")


def _added(view: View, name: str) -> float:
    """What the graph itself adds to an initializer."""
    for node, _ in view.takers.get(name, []):
        if node.op_type == "Add" and (given := operand(view, node)) and given[0] == name:
            return given[1]
        if node.op_type in ("Cast", "Identity"):
            return _added(view, node.output[0])
    return 0.0


def spec_offsets(expected: Expected) -> dict[str, float]:
    """Norm weight -> what the model adds to it."""
    if expected.spec is None:
        return {}
    spec = expected.spec
    found = {"model.norm.weight": spec.norm.offset}
    for index, layer in enumerate(spec.layers):
        prefix = f"model.layers.{index}"
        for name in vars(layer.norms).values():
            if isinstance(name, str):
                found[f"{prefix}.{name}.weight"] = layer.norm.offset
        heads = getattr(layer.mixer, "qk_norm", None)  # a mixer that is no attention has none
        if isinstance(heads, QkNorm):
            for name in ("q_norm", "k_norm"):
                found[f"{prefix}.self_attn.{name}.weight"] = heads.offset
    return found


def _roundings(identity: Identity) -> Iterator[Finding]:
    rounded = [r for r in identity.initializers if r.dtype == "fp32" and any("rounded" in t for t in r.transforms)]
    if rounded:
        tensors = [name for record in rounded for name in record.tensors]
        yield Finding(
            "weight-rounded",
            "error",
            _places(tensors),
            f"{len(rounded)} fp32 initializers hold values {rounded[0].transforms[0]}, which the checkpoint's are not",
            "Load the checkpoint in the dtype it is stored in, and widen it to fp32.",
        )


def _rows(identity: Identity) -> Iterator[Finding]:
    for record in identity.initializers:
        for part in record.parts:
            zero = [row for row in part.wrong if row in record.zero]
            other = [row for row in part.wrong if row not in record.zero]
            of = f"of {part.stop - part.start:,} of {part.tensor}"
            if zero:
                yield Finding(
                    "weight-row-zero",
                    "error",
                    record.name,
                    f"{_rows_word(zero)} {of} hold zeros, the checkpoint's do not",
                    "Write the checkpoint's rows.",
                )
            if other:
                yield Finding(
                    "weight-row-differs",
                    "error",
                    record.name,
                    f"{_rows_word(other)} {of} are not the checkpoint's",
                    "Write the checkpoint's rows; if tokens were added or changed, give the checkpoint that has them.",
                )


def _rows_word(found: Sequence[int]) -> str:
    more = f" and {len(found) - 3:,} more" if len(found) > 3 else ""
    return f"row{'s' if len(found) > 1 else ''} {', '.join(f'{row:,}' for row in found[:3])}{more}"


def _permuted(identity: Identity, expected: Expected) -> Iterator[Finding]:
    found = [(r, part) for r in identity.initializers for part in r.parts if part.permuted and len(r.parts) == 1]
    # Without a spec nobody knows how a packed tensor is packed: taking it apart needs its rows in another order.
    packed = {part.tensor for _, part in found if expected.spec is None and _PACKED.search(part.tensor)}
    groups: tuple[tuple[Severity, list[str]], ...] = (
        ("error", [part.tensor for _, part in found if part.tensor not in packed]),
        ("warning", [part.tensor for _, part in found if part.tensor in packed]),
    )
    for severity, tensors in groups:
        if tensors:
            yield Finding(
                "weight-rows-permuted",
                severity,
                _places(tensors),
                f"{len(tensors)} initializers hold the checkpoint's rows in another order (rotated pairs side by side, "
                "or heads exchanged)",
                "Keep the order of the rows, or say so to the operator that takes them (interleaved rotation).",
            )


def _named_wrongly(identity: Identity) -> Iterator[Finding]:
    """An initializer that is called like one tensor of the checkpoint, and equals another one."""
    for record in identity.initializers:
        for part in record.parts:
            is_of = layer_of(record.name), layer_of(part.tensor)
            called = record.name in identity.sources and record.name not in (part.tensor, *part.also)
            elsewhere = None not in is_of and is_of[0] != is_of[1]
            if elsewhere and any(layer_of(other) == is_of[0] for other in part.also):
                continue
            if called or elsewhere:
                yield swapped(record.name, f"its name is {record.name}, its values are {part.tensor}")


def swapped(where: str, fact: str) -> Finding:
    """Right values in a wrong place."""
    return Finding("weight-swapped", "error", where, fact, "Put each tensor into its own place.")


def _unexplained(view: View, identity: Identity, expected: Expected) -> Iterator[Finding]:
    unused: dict[tuple[int, ...], str] = {
        (identity.sources[name].rows, identity.sources[name].columns): name
        for name in identity.unused
        if not expected.is_dropped(name)
    }
    for record in identity.initializers:
        if record.parts and not (record.rest and len(record.zero) < record.rest):
            continue
        if record.near:
            yield from _near(record)
            continue
        shape = "x".join(map(str, record.shape))
        taken = unused.get(_matrix(record)) or unused.get(_matrix(record)[::-1])
        held = f"holds {record.constant:g} everywhere" if record.constant is not None else "equals no tensor"
        if record.constant is not None and not taken:
            continue
        yield Finding(
            "weight-unexplained",
            "error" if taken or record.constant == 0 or _multiplies(view, record) else "warning",
            record.name,
            f"[{shape}] {held} of the checkpoint under any known transform"
            + (f"; {taken}, of the same shape, is used nowhere" if taken else ""),
            "Find out where these values come from; paritas verify says whether they matter.",
        )


def _multiplies(view: View, record: Provenance) -> bool:
    """Whether the graph multiplies by it: no table and no mask is used so."""
    uses = view.takers.get(record.name, ())
    return any(node.op_type in ("MatMul", "Gemm", "FusedMatMul") and place == 1 for node, place in uses)


def _is_whole(record: Provenance, identity: Identity) -> bool:
    """Whether all of a tensor is in the initializer, not a slice of it."""
    (part,) = record.parts or record.near
    source = identity.sources[part.tensor]
    return source.values is not None or part.stop - part.start == source.rows


def _matrix(record: Provenance) -> tuple[int, int]:
    long = [n for n in record.shape if n != 1]
    columns = long[-1] if long else 1
    size = 1
    for n in long:
        size *= n
    return size // columns, columns


def _near(record: Provenance) -> Iterator[Finding]:
    off = [(near.tensor, block) for near in record.near for block in near.off]
    if record.quantized and off:
        tensor, block = max(off, key=lambda each: each[1].steps)
        yield Finding(
            "weight-quantised-wrong",
            "error",
            record.name,
            f"{len(off):,} blocks of integers are no rounding of {tensor}; the one at row {block.row:,}, column "
            f"{block.column:,} is {block.steps:.3g} steps away (rounding to the nearest: 0.3)",
            "Look at the scales and zero points of these blocks, and at the order of the integers.",
        )
    if record.quantized or all(near.rounded for near in record.near):
        return
    near = max(record.near, key=lambda each: each.error)
    scaled = f" times {near.factor:.9g}" if near.factor != 1.0 else ""
    if near.error < 1e-5:
        yield Finding(
            "weight-scaled",
            "warning",
            record.name,
            f"is {near.tensor}{scaled} (relative L2 distance {near.error:.1e})",
            "Right if the graph leaves the same factor out elsewhere; paritas verify tells.",
        )
    else:
        yield Finding(
            "weight-differs",
            "error",
            record.name,
            f"is nearest to {near.tensor}{scaled}: relative L2 distance {near.error:.1e}, worst {near.worst:.1e}",
            "The package is of another checkpoint, has an adapter merged in, or was computed in a shorter type.",
        )


def _unused(identity: Identity, expected: Expected) -> Iterator[Finding]:
    tied = expected.spec.tied_head if expected.spec else bool(expected.checkpoint.config.get("tie_word_embeddings"))
    left = [n for n in identity.unused if not expected.is_dropped(n) and not (n == _HEAD and tied)]
    used = {name.split(".")[0] for name in identity.sources if name not in identity.unused}
    inside = [name for name in left if name.split(".")[0] in used or ("layers." not in name and len(left) < 3)]
    outside = [name for name in left if name not in inside]
    both: tuple[tuple[list[str], Severity], ...] = ((inside, "error"), (outside, "warning"))
    for found, severity in both:
        if found:
            yield Finding(
                "weight-unused",
                severity,
                _places(found),
                f"{len(found)} of {len(identity.sources)} tensors of the checkpoint are nowhere in the graph",
                "Export again with an exporter that uses them; a tensor left out changes the computation.",
            )


def _twice(view: View, identity: Identity) -> Iterator[Finding]:
    holders: dict[str, list[Provenance]] = defaultdict(list)
    for record in identity.initializers:
        if len(record.tensors) == 1 and _is_whole(record, identity):
            places = [view.tensors[other.name].place for other in holders[record.tensors[0]]]
            if view.tensors[record.name].place not in places:  # the same bytes in another shape are stored once
                holders[record.tensors[0]].append(record)
    for tensor, records in holders.items():
        extra = sum(record.bytes for record in records[1:])
        if extra > 1 << 10:
            yield Finding(
                "table-stored-twice",
                "warning",
                ", ".join(record.name for record in records),
                f"{tensor} is stored {len(records)} times: {extra:,} bytes more than needed",
                "Use one initializer for both (a tied head reads the embedding table as it lies).",
            )
