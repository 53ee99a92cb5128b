"""A UNet made to run as its tuning says, once its weights are settled."""

from __future__ import annotations

import torch
from diffusers.hooks import apply_group_offloading
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

from sampling.slots import OneThread, install, layer_shapes
from sampling.tuning import Tuning

SMALLEST_SIDE = 256  # of a matrix that is worth it: below, what it costs to turn it up is more than what it saves


def tune(unet: UNet2DConditionModel, tuning: Tuning, device: torch.device) -> None:
    """In place. With offload the weights must still be in the host's memory."""
    if tuning.quantised:
        quantise(unet, str(tuning.weights))
    if tuning.attention_slicing:
        unet.set_attention_slice("auto")
    if tuning.offload:
        install(unet, OneThread())  # before: offloading calls the forward that a layer has now
        apply_group_offloading(unet, onload_device=device, offload_type="leaf_level")


def quantise(unet: torch.nn.Module, weights: str) -> None:
    """In place. int8: weights alone, turned up as they compute. fp8: activations too, row by row, in fp8 kernels.

    Convolutions and small layers stay as they are. Source: torchao's configs for weight-only int8 and dynamic fp8.
    """
    from torchao.quantization import (
        Float8DynamicActivationFloat8WeightConfig,
        Int8WeightOnlyConfig,
        PerRow,
        quantize_,
    )

    large = {name for name, shape in layer_shapes(unet).items() if is_large(shape)}
    int8 = weights == "int8"
    config = Int8WeightOnlyConfig() if int8 else Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())
    quantize_(unet, config, lambda module, name: name in large)


def is_large(shape: tuple[int, ...]) -> bool:
    """Whether a layer's weight is a matrix that is quantised."""
    return len(shape) == 2 and min(shape) >= SMALLEST_SIDE and all(side % 16 == 0 for side in shape)
