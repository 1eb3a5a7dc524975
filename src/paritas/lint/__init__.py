"""A package's metadata against the standard, against its own graphs, and against what no runtime looks at."""
