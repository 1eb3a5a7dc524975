"""Write docs/reference/evidence.schema.json and report.schema.json from the models of the evidence and of the report.

    python tools/write_schema.py

A test holds the files against what this writes.
"""

import json
from pathlib import Path

from paritas.report import model
from paritas.verify import evidence

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
SCHEMAS = {"evidence": evidence.json_schema, "report": model.json_schema}


def schema(name: str = "evidence") -> str:
    """The content of a file."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps({**head, **SCHEMAS[name]()}, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for each in SCHEMAS:
        (FOLDER / f"{each}.schema.json").write_text(schema(each), encoding="utf-8")
