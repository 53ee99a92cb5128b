"""Styles: the catalogue of LoRA adapters that a person can pick."""
