"""Benchmarks: each prints a table and appends one JSON line to benchmarks/results/NAME.jsonl."""
