"""Vocabulary of the product: recipes, errors, settings, cost arithmetic. No torch, no I/O."""
