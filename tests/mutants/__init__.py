"""Wrong packages with what is true of them, and right ones: the corpus that says whether a diagnosis is right.

Nothing in ``paritas.diagnose`` knows of it. ``python benchmarks/corpus.py`` prints the table.
"""

from mutants.blind import BLIND
from mutants.blind_families import BLIND_OF_FAMILIES
from mutants.controls import CONTROLS
from mutants.gemmas import GEMMAS
from mutants.known import KNOWN
from mutants.more import MORE
from mutants.mutant import Control, Mutant, Topic
from mutants.others import OTHERS
from mutants.pairs import PAIRS
from mutants.reduced import REDUCED

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant for mutant in (*BLIND, *BLIND_OF_FAMILIES, *KNOWN, *MORE, *OTHERS, *PAIRS, *REDUCED, *GEMMAS)
}
"""By name."""

RIGHT: dict[str, Control] = {control.name: control for control in CONTROLS}
"""By name."""

__all__ = ["MUTANTS", "RIGHT", "Control", "Mutant", "Topic"]
