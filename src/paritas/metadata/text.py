"""Metadata as text: YAML with one spelling for one content, no aliases, sizes of a tensor on one line.

libyaml writes it in a tenth of the time where PyYAML was built with it; what it spells otherwise than PyYAML itself are
characters beyond U+FFFF, which it escapes.
"""

from typing import Any

import yaml

from paritas.metadata.spelling import Shape, Values

FILE = "inference_metadata.yaml"
_SAFE: type[yaml.SafeDumper] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_SAFE):
    """Block style, but for the sizes of a tensor; a value that occurs twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    Shape, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)
)


def dump(values: Values) -> str:
    """The text of a document, keys in the order in which they are given."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
