"""Holds a package against the checkpoint it was made from; see :func:`paritas.verify.run.verify`."""
