"""Spec -> graph: one module a part of the decoder, in the semantic operations of a target."""
