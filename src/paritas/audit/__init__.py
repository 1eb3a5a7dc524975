"""Facts read from a foreign graph without running it, held against the checkpoint and, for a known family, its spec."""
