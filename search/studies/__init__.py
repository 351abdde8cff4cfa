"""What-if studies: many questions to the same engine, and what their answers have in common."""
