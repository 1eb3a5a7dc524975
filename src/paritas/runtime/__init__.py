"""Runs any package, whoever exported it: what it takes is found in its own graph."""
