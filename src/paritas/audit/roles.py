"""What a weight is used for against what it is: queries from q_proj, of the layer whose cache they meet."""

import re
from collections.abc import Container, Iterator, Mapping, Sequence

from paritas.audit.finding import Finding, layer_of
from paritas.audit.identity import Identity, Provenance
from paritas.audit.match import Part
from paritas.audit.nearest import Near
from paritas.audit.projections import Projection
from paritas.audit.sites import Site, Trail
from paritas.audit.weights import swapped
from paritas.audit.written import Written

_ROLES = ("q", "k", "v")
_NAMED = re.compile(r"[._](q|k|v)_?proj\.weight$")


def role_findings(
    identity: Identity,
    tensors: Container[str],
    made: Mapping[str, Provenance],
    found: Sequence[Site],
    ways: Sequence[Written],
) -> Iterator[Finding]:
    """Projections whose values go where another one's belong.

    Args:
        identity: where every initializer comes from.
        tensors: names that the checkpoint has; where it has no ``v_proj``, values are what ``k_proj`` gives.
        made: those of a known origin, by name.
        found: attention operators.
        ways: written-out attentions.
    """
    uses = [*_of_operators(made, found), *_of_products(ways)]
    used = {tensor for record in identity.initializers for tensor in record.tensors}
    for stored, role, layer, tensor in uses:
        named = _NAMED.search(tensor)
        if named and named[1] != role and _renamed(tensor, named, role) in tensors:
            yield swapped(stored, f"the attention takes {tensor} for {role}")
        elif layer is not None and (other := layer_of(tensor)) is not None and other != layer:
            own = tensor.replace(f".{other}.", f".{layer}.", 1)
            if own in used:  # a layer without a projection of its own shares another one's
                yield swapped(stored, f"the attention of layer {layer} takes {tensor}, {own} is used elsewhere")


def _renamed(tensor: str, named: re.Match[str], role: str) -> str:
    """The tensor beside it that has the role."""
    return f"{tensor[: named.start(1)]}{role}{tensor[named.end(1) :]}"


Use = tuple[str, str, int | None, str]


def _of_operators(made: Mapping[str, Provenance], found: Sequence[Site]) -> Iterator[Use]:
    for site in found:
        trails = (site.q, site.k, site.v)
        record = made.get(site.q.weight or "")
        if site.k is None and record is not None:
            parts = _parts(record)
            if len(parts) == len(_ROLES):
                for role, part in zip(_ROLES, parts, strict=True):
                    yield record.name, role, site.layer, part.tensor
            continue
        for role, trail in zip(_ROLES, trails, strict=True):
            if trail is not None and (tensor := _tensor(made, trail)):
                yield trail.weight or "", role, site.layer, tensor


def _tensor(made: Mapping[str, Provenance], trail: Trail) -> str | None:
    """The checkpoint tensor that values on a trail come from; of a packed projection, the Split's part."""
    record = made.get(trail.weight or "")
    if record is None:
        return None
    parts = _parts(record)
    if len(parts) == 1:
        return parts[0].tensor
    return parts[trail.outputs].tensor if trail.outputs is not None and trail.outputs < len(parts) else None


def _parts(record: Provenance) -> list[Part | Near]:
    return sorted((*record.parts, *record.near), key=lambda part: part.start)


def _of_products(ways: Sequence[Written]) -> Iterator[Use]:
    for way in ways:
        for role, projection in (("q", way.q), ("k", way.k)):
            if len(projection.record.tensors) == 1:
                yield projection.record.name, role, _layer(way, projection), projection.tensor


def _layer(way: Written, projection: Projection) -> int | None:
    """Keys belong to the layer of their queries."""
    return None if projection is way.q else way.layer
