"""Accepted renders: admission, hand-off, denoise, decode, check and publish."""
