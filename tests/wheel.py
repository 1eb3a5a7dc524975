"""Asks the released onnx-genai, in a process of its own, what it makes of packages."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PROGRAM = """
import json, sys
import onnx_genai
asked, into = json.loads(sys.stdin.read())
answers = []
for folder, prompts, options in asked:
    engine = onnx_genai.Engine.from_dir(folder)
    answers.append([list(engine.generate(prompt, **options).token_ids) for prompt in prompts])
open(into, "w").write(json.dumps(answers))
"""
Question = tuple[Path, Sequence[str], Mapping[str, Any]]


def generate(questions: Sequence[Question], scratch: Path) -> list[list[list[int]]]:
    """Of each package, the new tokens for each of its prompts; the options are those of ``Engine.generate``."""
    into = scratch / "answers.json"
    given = json.dumps([[[str(folder), list(prompts), dict(how)] for folder, prompts, how in questions], str(into)])
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], input=given, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(into.read_text())


def shows(folder: Path) -> str | None:
    """Why its ``show`` refuses a package; None if it takes it."""
    program = "import sys; from onnx_genai_server import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "show", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return None if done.returncode == 0 else done.stderr
