"""Which metadata a package gets."""

from enum import StrEnum


class Dialect(StrEnum):
    """The option's words."""

    DEFAULT = "default"  # that of the released wheel
    CANONICAL = "canonical-v1"  # that of August 2026
    NONE = "none"
