"""What is measured on a package of fp32 before a smaller one is written: what matrices cost, how large values are."""
