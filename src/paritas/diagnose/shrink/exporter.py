"""Another exporter, known by nothing but its command line."""

import json
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paritas.errors import ParitasError

MODEL, PACKAGE = "{model}", "{package}"
PATIENCE = 3600  # seconds for one export

_ASK = """
import importlib.metadata as found, json, sys
name, telling = sys.argv[1], sys.argv[2].split()
own = found.packages_distributions().get(name.split(".")[0], [])
own += [each.dist.name for each in found.entry_points(group="console_scripts", name=name) if each.dist]
versions = {}
for each in dict.fromkeys([*own, *telling]):
    try:
        versions[each] = found.version(each)
    except found.PackageNotFoundError:
        pass
print(json.dumps({"own": own[:1], "versions": versions}))
"""
_TELLING = "onnxruntime onnxruntime-genai onnx onnx-ir onnxscript optimum optimum-onnx transformers torch"


class Refused(Exception):  # noqa: N818 - it reads as what it says
    """The exporter made nothing of a model. ``str`` is the last that it said."""


@dataclass(frozen=True)
class Exporter:
    """A command line of an exporter.

    Attributes:
        words: of the command, with ``{model}`` and ``{package}`` to be filled in.
    """

    words: tuple[str, ...]

    def filled(self, model: str, package: str) -> tuple[str, ...]:
        """The words for one model."""
        return tuple(word.replace(MODEL, model).replace(PACKAGE, package) for word in self.words)

    def shown(self, model: str, package: str) -> str:
        """The command as a person types it."""
        return shlex.join((Path(self.words[0]).name, *self.filled(model, package)[1:]))

    def run(self, model: Path, package: Path) -> None:
        """Make ``package`` of ``model``; no shell takes part.

        Raises:
            Refused: it ends with an error, or never.
            ParitasError: ``shrink-command-unclear`` if it cannot be started.
        """
        words = self.filled(str(model), str(package))
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=PATIENCE, errors="replace"
            )
        except subprocess.TimeoutExpired:
            raise Refused(f"it took more than {PATIENCE} s") from None
        except OSError as error:
            raise _unclear(f"cannot be started: {error.strerror}", words[0]) from None
        if done.returncode:
            lines = [line for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
            errors = [line for line in lines if "Error" in line]
            raise Refused((errors or lines or [""])[-1].strip()[:300] or f"exit code {done.returncode}")

    def versions(self) -> tuple[str | None, Mapping[str, str]]:
        """The exporter's distribution and the versions that its environment has; nothing if it is no Python."""
        python = self._python()
        if python is None:
            return None, {}
        asked = self._asked()
        try:
            done = subprocess.run(
                [*python, "-c", _ASK, asked, _TELLING], capture_output=True, check=True, timeout=60, text=True
            )
            told = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            return None, {}
        return next(iter(told["own"]), None), told["versions"]

    def _python(self) -> tuple[str, ...] | None:
        """The interpreter: the command itself, or the one in the first line of its script."""
        if Path(self.words[0]).name.startswith("python"):
            return self.words[:1]
        try:
            with Path(shutil.which(self.words[0]) or self.words[0]).open("rb") as script:
                first = script.readline(500)
        except OSError:
            return None
        if not first.startswith(b"#!") or b"python" not in first:
            return None
        return tuple(first[2:].decode(errors="replace").split())

    def _asked(self) -> str:
        """The module or script whose distribution is the exporter's."""
        if "-m" in self.words[:-1] and self._python() == self.words[:1]:
            return self.words[self.words.index("-m") + 1]
        return Path(self.words[0]).name


def exporter(line: str) -> Exporter:
    """The exporter of a command line.

    Raises:
        ParitasError: ``shrink-command-unclear`` if it does not name ``{model}`` and ``{package}``, or its program is
            not there.
    """
    try:
        words = tuple(shlex.split(line))
    except ValueError as error:
        raise _unclear(str(error), line) from None
    for part in (MODEL, PACKAGE):
        if not any(part in word for word in words):
            raise _unclear(f"does not say where {part} goes", line)
    if shutil.which(words[0]) is None:
        raise _unclear(f"starts with {words[0]!r}, which is no program here", line)
    return Exporter(words)


def _unclear(why: str, place: str) -> ParitasError:
    return ParitasError(
        "shrink-command-unclear",
        f"the command of --with {why}",
        place=place,
        hint="--with 'python -m EXPORTER --model {model} --output {package}'; it is run without a shell.",
    )
