"""Weights as blocks of integers: the recipe, how scales are chosen, and how the integers lie in the file."""
