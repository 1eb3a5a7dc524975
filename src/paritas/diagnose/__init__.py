"""Why a package diverges: where, which cause, proven by one change both ways, and the repair."""
