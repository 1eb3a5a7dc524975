"""A fixture for the tests of those who export: ``assert_parity(package, checkpoint)``."""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from paritas.errors import ParitasError
    from paritas.verify.evidence import Evidence

_NAMES = {"genai": "onnxruntime-genai"}  # as `paritas verify --runtime` calls it


class AssertParity(Protocol):
    """What the fixture gives."""

    def __call__(
        self, package: str | PathLike[str], checkpoint: str | PathLike[str], runtimes: Sequence[str] | None = None
    ) -> "Evidence":
        """Fail unless ``package`` is proven to compute what ``checkpoint`` does in transformers.

        Args:
            package: a package's folder, or its graph.
            checkpoint: a folder, a GGUF file, or a Hub id.
            runtimes: ``onnxruntime``, ``genai``; both if None.

        Returns:
            The evidence of a proven package, for whoever wants to insist on more.
        """
        ...


@pytest.fixture(scope="session")
def assert_parity() -> AssertParity:
    """``assert_parity(package, checkpoint, runtimes=None)`` fails with the report of a package that is not proven."""
    return _assert_parity


def _assert_parity(
    package: str | PathLike[str], checkpoint: str | PathLike[str], runtimes: Sequence[str] | None = None
) -> "Evidence":
    __tracebackhide__ = True
    from pathlib import Path

    from paritas.checkpoint.opening import locate
    from paritas.errors import ParitasError
    from paritas.verify.run import RUNTIMES, verify
    from paritas.verify.verdict import Verdict

    asked = RUNTIMES if runtimes is None else [_NAMES.get(name, name) for name in runtimes]
    try:
        evidence = verify(Path(package), locate(str(Path(checkpoint))), runtimes=asked)
    except ParitasError as error:
        pytest.fail(_told(error), pytrace=False)
    if evidence.verdict is not Verdict.PROVEN:
        pytest.fail(_report(evidence), pytrace=False)
    return evidence


def _told(error: "ParitasError") -> str:
    return "\n".join(line for line in (str(error), error.hint) if line)


def _report(evidence: "Evidence") -> str:
    """What the command would print."""
    import io

    from rich.console import Console

    from paritas.verify.report import render

    console = Console(file=io.StringIO(), width=120, color_system=None, force_terminal=False)
    with console.capture() as text:
        console.print(render(evidence))
    return f"the package is not proven\n{text.get().rstrip()}"
