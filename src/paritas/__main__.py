"""`python -m paritas`, and the `paritas` command."""

from paritas.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
