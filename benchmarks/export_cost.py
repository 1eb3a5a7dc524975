"""What an export costs: seconds, peak memory, and whether torch or transformers was imported for it.

    python benchmarks/export_cost.py MODEL [MODEL ...] [--target ort]

Each export (without verification) is a process of its own; a copy of the data file it wrote is the peer.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """
import json, resource, sys
from pathlib import Path
from paritas.export import export
from paritas.plan import Options
from paritas.targets import TARGETS
done = export(sys.argv[1], Path(sys.argv[2]), TARGETS[sys.argv[3]], Options(force=True))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": done.seconds, "bytes": done.bytes, "peak": peak,
    "imported": [name for name in ("torch", "transformers") if name in sys.modules]}))
"""


def main() -> None:
    """Measure and print one line a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--target", default="ort")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            out = Path(folder) / "package"
            command = [sys.executable, "-c", PROGRAM, model, str(out), arguments.target]
            told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            start = time.perf_counter()
            shutil.copy(out / "model.onnx.data", out / "copy")
            copy = time.perf_counter() - start
            print(
                f"{Path(model).name}: export {told['seconds']:.1f} s (copying its data: {copy:.1f} s), "
                f"{told['bytes'] / 2**20:,.0f} MiB written, peak RSS {told['peak'] / 2**20:,.0f} MiB, "
                f"imported: {', '.join(told['imported']) or 'neither torch nor transformers'}"
            )
            shutil.rmtree(out)


if __name__ == "__main__":
    main()
