"""How fast packages are, beside each other: a fresh process for every measurement, in alternation, with a control."""
