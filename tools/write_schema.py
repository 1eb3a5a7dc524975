"""Write docs/reference/evidence.schema.json from the models of the evidence.

    python tools/write_schema.py

A test holds the file against what this writes.
"""

import json
from pathlib import Path

from paritas.verify.evidence import json_schema

FILE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "evidence.schema.json"


def schema() -> str:
    """The content of the file."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps({**head, **json_schema()}, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(schema(), encoding="utf-8")
