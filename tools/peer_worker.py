"""Run one command-line module many times in the environment that it is installed in; see make_peers.py.

    python peer_worker.py MODULE < jobs.json

A job is ``{"arguments": [...], "log": FILE, "part": FOLDER, "package": FOLDER}``. The module's imports, which take
longer than the work on a tiny model, are done once; each job then runs in a process forked off. What it made in
``part`` takes the name ``package`` if the command ended well.
"""

import contextlib
import json
import os
import runpy
import shutil
import sys
import traceback
from importlib.util import find_spec
from pathlib import Path


def main(module: str) -> None:
    """Work through the jobs on stdin."""
    jobs = json.load(sys.stdin)
    warm(module)
    for job in jobs:
        shutil.rmtree(job["part"], ignore_errors=True)
        child = os.fork()
        if child == 0:
            os._exit(run(module, job))
        _, status = os.waitpid(child, 0)
        if status == 0:
            Path(job["part"]).rename(job["package"])
        shutil.rmtree(job["part"], ignore_errors=True)


def warm(module: str) -> None:
    """Import the module for the sake of what it imports."""
    for name in ("transformers", "torch"):
        __import__(name)
    if find_spec(module).submodule_search_locations is None:  # a package's __main__ would run here
        with contextlib.suppress(SystemExit):
            __import__(module)
    else:
        __import__(module)


def run(module: str, job: dict) -> int:
    """The module as a program; its output goes to the log. Returns the exit code."""
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = [module, *job["arguments"]]
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        if isinstance(exit_.code, str):
            print(exit_.code)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    main(sys.argv[1])
