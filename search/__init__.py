"""The space of strategies, the exact solver and its refinement."""
