"""The gate: a fixed set of pictures, scored, timed and held against a reference."""
