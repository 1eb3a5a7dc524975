"""Model exports that are right, and proven right."""

__version__ = "0.1.0"
