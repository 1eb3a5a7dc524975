"""What test files share: tiny checkpoints, built once for all workers, and one reference run for each of them."""

import gc
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from paritas.verify.evidence import Evidence

# Before torch is loaded: on tiny models a second thread costs more than it does, and much more where workers compete.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def own_cache(shared_folder: Path) -> None:
    """The reference's answers of a run are kept within it: nothing comes from earlier runs or goes to later ones."""
    os.environ["PARITAS_CACHE"] = str(shared_folder / "cache")


@pytest.fixture(scope="session")
def checkpoint(shared_folder: Path) -> Callable[[str], Path]:
    """The folder of a checkpoint of :func:`tiny.every`, by its name.

    Workers that build the same one at the same time each build it aside; the first rename wins.
    """
    import tiny  # torch takes seconds, which tests without a checkpoint are spared

    @cache
    def build(name: str) -> Path:
        final = shared_folder / "checkpoints" / name
        if not final.exists():
            final.parent.mkdir(exist_ok=True)
            aside = Path(tempfile.mkdtemp(dir=final.parent)) / name
            tiny.every()[name](aside)
            try:
                aside.rename(final)
            except OSError:
                shutil.rmtree(aside)
        return final

    return build


@pytest.fixture(scope="session")
def judge(checkpoint: Callable[[str], Path]) -> "Callable[..., Evidence]":
    """``judge(name, package, *runtimes)`` is ``verify``, but asks transformers once for each checkpoint and worker."""
    from paritas.checkpoint import open_checkpoint
    from paritas.runtime.package import open_package
    from paritas.verify import run
    from paritas.verify.truth import find_truths

    gc.freeze()  # verify collects after every probe; torch's and transformers' million objects need no visit
    truths = cache(lambda name: find_truths(open_checkpoint(checkpoint(name))))
    return lambda name, package, *runtimes: run.judge(open_package(package), truths(name), runtimes)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With ``-v``, what tests measured: ``record_property("measured", "...")``."""
    lines = [
        f"{report.nodeid.rpartition('::')[2]:<92} {dict(report.user_properties)['measured']}"
        for report in terminalreporter.getreports("passed")
        if "measured" in dict(report.user_properties)
    ]
    if lines and terminalreporter.config.get_verbosity() > 0:
        terminalreporter.section("measured")
        terminalreporter.write("\n".join(sorted(lines)) + "\n")
