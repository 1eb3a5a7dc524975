"""README.md of a package: what it is, what it was proven to be, how to run it."""

from collections.abc import Mapping
from typing import Any

from paritas.providers import HERE

_CARD = """---
library_name: onnxruntime
tags: [onnx, onnxruntime, onnxruntime-genai, paritas]
---
# {name}, ONNX

Exported by Paritas {version} from `{source}` (`{model_type}`).

| | |
|---|---|
| Verdict | **{verdict}** |
| Target | `{target}`, {dtype}, {size} |
| Matrices | {stored} |
| Context | {context:,} positions |
| Parameters | {parameters:,} |

{meaning}

```bash
paritas generate . "Hello"
paritas verify . --against CHECKPOINT
```

`evidence/export.json` is the record of the export. {record}
"""

_MEANING = {
    "proven": "Every probe agrees with transformers within 5 times the reference's own noise floor.",
    "not tested": "**This package was not verified.** Whether it computes what the checkpoint computes is not known.",
}
_OF_ITS_OWN = (
    "Every probe agrees, within 5 times the reference's own noise floor, with transformers that has this package's own "
    "rounded weights; both compute in fp32. What the rounding costs is `precision.quality` in `evidence/evidence.json`."
)
_VERIFIED = (
    "`evidence/evidence.json` is that of its verification: versions, hashes, prompts, floors, differences; "
    "`evidence/report.html` shows it."
)
_UNPROVEN = (
    "**This package is not proven.** It was kept on request (`--allow-unproven`); do not ship it. See `evidence/`."
)


def card(facts: Mapping[str, Any]) -> str:
    """The card's text, from the facts of the export."""
    verdict, provider = str(facts["verdict"]), str(facts["provider"])
    size = f"{facts['bytes'] / 2**20:,.0f} MiB"
    meaning = _meaning(verdict, str(facts["dtype"]))
    if provider != HERE:
        meaning += f"\n\nThat was on the CPU, in fp32 arithmetic. On {provider}: **not tested**."
    record = "There is none of a verification." if verdict == "not tested" else _VERIFIED
    return _CARD.format(**facts, size=size, meaning=meaning, record=record)


def _meaning(verdict: str, dtype: str) -> str:
    narrow = verdict == "proven" and dtype != "fp32"
    return _OF_ITS_OWN if narrow else _MEANING.get(verdict, _UNPROVEN)
