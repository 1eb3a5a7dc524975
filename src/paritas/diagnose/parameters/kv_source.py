"""Whose keys and values a layer attends to: its own, or those that an earlier layer keeps."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from paritas.audit.sites import Site
from paritas.audit.view import PASSES
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference, NotBrokenError
from paritas.diagnose.edit import Edit
from paritas.diagnose.live import Call

_HALVES = ("key", "value")
Sources = tuple[int, int]


def kv_source_differences(case: Case) -> Iterator[Difference]:
    """Every layer that attends to what another layer keeps than in the reference."""
    ports = {
        half.present: (cache.layer, place) for cache in case.ports.caches for place, half in enumerate(cache.halves)
    }
    for site in case.sites:
        facts = case.live.facts.get(site.layer)
        if facts is None or len(site.node.input) < 3:
            continue
        kept = [_kept(case, name, ports) for name in site.node.input[1:3]]
        if None in kept:
            continue
        got = tuple(ports[name][0] for name in kept if name is not None)
        if got != (facts.source, facts.source):
            yield _difference(case, site, (got[0], got[1]), facts.source)


def _kept(case: Case, name: str, ports: dict[str, tuple[int, int]]) -> str | None:
    """The graph's present keys or values that a value is, but for its shape."""
    while name not in ports and (node := case.view.maker.get(name)) is not None and node.op_type in PASSES:
        name = node.input[0]
    return name if name in ports else None


def _difference(case: Case, site: Site, got: Sources, wanted: int) -> Difference:
    words = f"layer {got[0]}" if got[0] == got[1] else f"the keys of layer {got[0]} and the values of layer {got[1]}"
    return Difference(
        parameter="kv-source",
        where=f"model.layers.{site.layer}.self_attn",
        layer=site.layer,
        package=got,
        reference=wanted,
        fact=f"attends to what {words} keeps, in the reference to what layer {wanted} keeps",
        breaks=lambda: _taking(case, site.layer, got),
        repairs=lambda edit: _take(edit, case, site, wanted),
    )


@contextmanager
def _taking(case: Case, layer: int, sources: Sources) -> Generator[None]:
    """Within, a layer of the reference attends to what other layers attended to in the same call."""
    memory: dict[int, tuple[Any, Any]] = {}

    def remembers(source: int) -> Callable[[Call], None]:
        def remember(call: Call) -> None:
            memory[source] = call.key, call.value

        return remember

    def change(call: Call) -> None:
        key, value = (memory[source][place] if source in memory else None for place, source in enumerate(sources))
        if key is None or value is None or key.shape != call.key.shape or value.shape != call.value.shape:
            raise NotBrokenError(f"layer {layer} cannot attend to what layers {sources} keep")
        call.key, call.value = key, value

    changes = {source: remembers(source) for source in sources} | {layer: change}
    with case.live.attending(changes):
        yield


def _take(edit: Edit, case: Case, site: Site, wanted: int) -> None:
    """Take the right layer's presents, on the way on which the wrong ones came."""
    ports = {
        half.present: (cache.layer, place) for cache in case.ports.caches for place, half in enumerate(cache.halves)
    }
    right = {place: name for name, (layer, place) in ports.items() if layer == wanted}
    for place, half in enumerate(_HALVES):
        now = site.node.input[place + 1]
        kept = _kept(case, now, ports)
        if kept is not None and kept != right[place]:
            new = right[place] if kept == now else edit.copy_way(kept, now, right[place])
            edit.replace_input(site.node.output[0], place + 1, new, f"{half}s that layer {wanted} keeps")
