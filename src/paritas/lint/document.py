"""The metadata of a package as it lies in the folder: which file, which dialect, plain values."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from paritas.audit.finding import Finding
from paritas.lint.fault import Values, fault, mapping

NAMES = ("inference_metadata.yaml", "inference_metadata.yml", "inference_metadata.json")
"""In the order in which onnx-genai looks for them."""
_MOST = 32 << 20  # bytes of a file that is read


@dataclass(frozen=True)
class Document:
    """Metadata that could be read.

    Attributes:
        folder: the package's.
        name: of the file.
        values: its content.
        canonical: whether it is in the dialect of August 2026; else in that of the released wheel.
    """

    folder: Path
    name: str
    values: Values
    canonical: bool

    def at(self, *path: object) -> str:
        """A place in the file."""
        return f"{self.name}, {'.'.join(map(str, path))}" if path else self.name

    def at_group(self, *path: object) -> str:
        """A place among the groups of states."""
        return self.at("pipeline", "workflow", "serving", "state_service", "groups", *path)

    @property
    def version(self) -> str:
        """What it says of its schema; ``v1`` if nothing."""
        return str(self.values.get("schema_version", "v1"))

    @property
    def workflow(self) -> Values:
        """What runs."""
        return self.values["pipeline"]["workflow"]

    def part(self, name: str) -> Values:
        """A named part of the workflow: ``inputs``, ``components``, ``state``."""
        return self.workflow.get(name) or {}

    @property
    def groups(self) -> Values:
        """Groups of states by name."""
        serving: Values = self.workflow.get("serving") or {}
        return mapping(serving, "state_service").get("groups") or {}


class _Loader(yaml.SafeLoader):
    """Plain values alone; no key twice and no alias: readers differ in what they make of those."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        events: Any = self  # its methods have no types
        if events.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("it has an alias (*name)")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        if twice := sorted({str(name) for name in names if names.count(name) > 1}):
            raise yaml.YAMLError(f"{', '.join(twice)} is given twice, line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


def find(folder: Path) -> Path | None:
    """The file that onnx-genai reads, if there is one."""
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def read(file: Path) -> Document | Finding:
    """Its content, or why it cannot be read."""
    try:
        content = file.read_bytes()
        if len(content) > _MOST:
            raise ValueError(f"it has {len(content):,} bytes")
        values: object = json.loads(content) if file.suffix == ".json" else yaml.load(content, _Loader)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        return _unreadable(file, " ".join(str(error).split()))
    if not isinstance(values, dict):
        return _unreadable(file, "it is no mapping")
    found = cast(Values, values)
    return Document(file.parent, file.name, found, canonical=_canonical(found))


def _unreadable(file: Path, why: str) -> Finding:
    return fault("metadata-unreadable", file.name, f"not readable: {why}", "Write it again; one spelling, no aliases.")


def _canonical(values: Values) -> bool:
    """Versions above 1.0 are the wheel's; in 1.0, ranks and lists of capabilities are those of August."""
    if str(values.get("schema_version", "v1")).lower() not in ("v1", "1", "1.0", "v1.0"):
        return False
    return _has(values, ("rank", "capabilities", "required_capabilities"))


def _has(values: object, keys: tuple[str, ...], groups: bool = False) -> bool:
    """Whether a key is somewhere in it; ``capabilities`` of a group of states are no list."""
    if isinstance(values, list):
        return any(_has(each, keys) for each in cast(list[object], values))
    if not isinstance(values, dict):
        return False
    found = cast(dict[str, object], values)
    hit = any(key in found and (key != "capabilities" or isinstance(found[key], list)) for key in keys)
    return hit or any(_has(each, keys) for each in found.values())
