"""Facts of a machine, read from fixture trees, and what is said of them."""
