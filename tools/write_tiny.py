"""Write one of the tests' tiny checkpoints into a folder, to look at it with `paritas` itself.

python tools/write_tiny.py NAME FOLDER
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME", help="of tests/tiny*.py, as qwen3-yarn")
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    import tiny

    if given.name not in tiny.every():
        raise SystemExit(f"no {given.name}; there are {', '.join(tiny.every())}")
    tiny.every()[given.name](given.folder)


if __name__ == "__main__":
    main()
