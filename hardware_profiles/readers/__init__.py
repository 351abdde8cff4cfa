"""Readers of what benchmarks and training runs print: text of other programs in, measured rows out."""
