"""Newest-wins previews: what to run for a person who is still typing."""
