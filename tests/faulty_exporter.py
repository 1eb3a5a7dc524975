"""An exporter with a fault, as a program of its own: python tests/faulty_exporter.py FAULT MODEL PACKAGE [LEAST]

FAULT is one of tests/test_mutants.py, or ``none``. A model whose hidden size is below LEAST is refused.
"""

import json
import sys
from pathlib import Path

from paritas.export import export
from paritas.plan import Options
from paritas.targets import TARGETS


def main(fault: str, model: str, package: str, least: str = "0") -> None:
    """Export, with the fault."""
    hidden = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))["hidden_size"]
    if hidden < int(least):
        sys.exit(f"ValueError: hidden_size {hidden} is too small")
    if fault == "none":
        export(model, Path(package), TARGETS["ort"])
        return
    import pytest

    from test_mutants import MUTANTS  # brings torch, which takes seconds

    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[fault].fault(patch)
        export(model, Path(package), TARGETS["ort"], Options(drop=MUTANTS[fault].drop))


if __name__ == "__main__":
    main(*sys.argv[1:])
