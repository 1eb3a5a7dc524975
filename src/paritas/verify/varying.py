"""The ways in which the reference is asked again for a floor, in an order in which none spoils the next."""

from collections.abc import Callable, Mapping

from paritas.errors import Invalid
from paritas.verify.floor import FP64, NUDGED, SDPA
from paritas.verify.reference import Reference

_REFUSALS = ("reference-refused", "variant-not-finite")


def vary(reference: Reference, ask: Callable[[str], None]) -> Mapping[str, str]:
    """Call ``ask`` with the name of each variant while the reference is in it; it ends nudged, which cannot be undone.

    Returns:
        Variants that were refused, each with why: they say nothing.

    Raises:
        Invalid: what ``ask`` raises for another reason than that the variant cannot be asked.
    """
    refused: dict[str, str] = {}

    def tried(variant: str) -> None:
        try:
            ask(variant)
        except Invalid as refusal:
            _note(refused, variant, refusal)

    try:
        with reference.sdpa():
            tried(SDPA)
    except Invalid as refusal:
        _note(refused, SDPA, refusal)
    reference.to_fp64()
    tried(FP64)
    for seed, variant in enumerate(NUDGED):
        reference.nudge(seed)
        tried(variant)
    return refused


def _note(refused: dict[str, str], variant: str, refusal: Invalid) -> None:
    if refusal.code not in _REFUSALS:
        raise refusal
    refused[variant] = refusal.fact
