"""The audit of other exporters' packages: nothing wrong is said of right ones, and the cause of each wrong one.

The small ones lie in tests/data/peers; all of them, if `make peers` has built them, are audited with `-m peers`, and
`python benchmarks/peers.py --audit` prints a table of them.
"""

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import pytest

import peers
from paritas.audit.run import audit
from test_peers import BUILT, DATA, folders

ROUNDED, SCALE = "norm-offset-rounded", "embedding-scale-wrong"
ROPE, WINDOW, SOFTCAP = "rope-table-wrong", "window-wrong", "attention-softcap-wrong"
GEMMA3 = {SCALE, "attention-scale-wrong", "logit-softcap-wrong"}

_BUILDER: Mapping[str, set[str]] = {
    "gemma": {ROUNDED, SCALE},
    "gemma-144": {ROUNDED},
    "gemma2": {ROUNDED, SCALE},
    "gemma2-144": {ROUNDED},
    "gemma2-wide": {ROUNDED},
    "kept-gemma2": {ROUNDED, SCALE},
    "kept-mistral": {WINDOW},
    "kept-phi": {"norm-epsilon-wrong"},
    "kept-yarn": {ROPE},
    "llama-linear": {ROPE},
    "llama-yarn": {ROPE},
    "mistral-window": {WINDOW},
    "nemotron": {ROUNDED, "norm-epsilon-wrong"},
    "olmo": {"norm-kind-wrong", "norm-epsilon-wrong"},
    "phi": {"norm-epsilon-wrong"},
    "phi3-window": {WINDOW},
    "qwen3-yarn": {ROPE},
}
_MOBIUS: Mapping[str, set[str]] = {
    "gemma": {SCALE},
    "gemma2": {SCALE, WINDOW},
    "gemma2-144": {WINDOW},
    "gemma3": GEMMA3,
    "gemma3-144-scale": {"attention-scale-wrong"},
    "helium": {"rope-pairing-wrong"},
    "kept-gemma2": {SCALE, WINDOW},
    "kept-gemma3": GEMMA3,
    "llama-biased": {"weight-unused"},
}
_WINDOWS = dict.fromkeys(["kept-mistral", "mistral-window", "phi3-window", "qwen2-window"], frozenset({WINDOW}))
_LOCAL = {ROPE, WINDOW}  # of Gemma 3: one RoPE for all layers, and no window
_SDPA = dict.fromkeys(["gemma2", "gemma2-144", "gemma2-wide", "kept-gemma2"], frozenset({SOFTCAP}))

CAUSES: Mapping[str, Mapping[str, Set[str]]] = {
    "builder": _BUILDER,
    "builder-growing": _BUILDER,
    "mobius": {**_MOBIUS, **_WINDOWS},
    "mobius-cpu": {
        **_MOBIUS,
        "gemma3": GEMMA3 | _LOCAL,
        "gemma3-144": _LOCAL,
        "gemma3-144-scale": {"attention-scale-wrong"} | _LOCAL,
        "kept-gemma3": GEMMA3 | _LOCAL,
        "qwen2-window": {WINDOW},
        "nemotron": {"operator-attribute-unknown"},
    },
    "mobius-static": {"llama-biased": {"weight-unused"}, **_WINDOWS},
    "optimum": _SDPA,
    "optimum-no-cache": _SDPA,
}
"""Exporter -> case -> codes of all errors that the audit finds; of what is not listed it finds none."""


def named(root: Path) -> list[Any]:
    return [pytest.param(*pair, id="/".join(pair)) for pair in folders(root)]


def errors(exporter: str, case: str, root: Path, checkpoints: Path) -> set[str]:
    found = audit(root / exporter / case, checkpoints / case).findings
    return {finding.code for finding in found if finding.severity == "error"}


@pytest.mark.parametrize(("exporter", "case"), named(DATA))
def test_causes_in_kept_packages_are_named(exporter: str, case: str) -> None:
    assert errors(exporter, case, DATA, DATA / "checkpoints") == CAUSES[exporter].get(case, set())


@pytest.mark.peers
@pytest.mark.parametrize(("exporter", "case"), named(BUILT / "packages"))
def test_causes_in_packages_are_named(exporter: str, case: str) -> None:
    assert errors(exporter, case, BUILT / "packages", BUILT / "checkpoints") == CAUSES[exporter].get(case, set())


def test_a_cause_is_named_of_every_package_that_verify_calls_wrong() -> None:
    assert {name: set(cases) for name, cases in CAUSES.items()} == {
        name: set(cases) for name, cases in peers.WRONG.items()
    }
