"""The step-batched denoising core and the torch stages around it."""
