"""A failing checkpoint becomes the smallest random model that fails for the same cause."""
