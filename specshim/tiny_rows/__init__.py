"""Rows of the table of tiny models, by kind; specshim.tiny_architectures joins them."""
