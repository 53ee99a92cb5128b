"""The obvious alternative: a Gradio app whose text box runs the stock pipeline at every change, through the queue."""

from __future__ import annotations

import sys
from typing import Any

from core.settings import BUNDLED_MODEL


def main(port: int) -> None:
    import gradio as gr
    import torch
    from diffusers import LCMScheduler, StableDiffusionXLPipeline

    pipe = StableDiffusionXLPipeline.from_pretrained(BUNDLED_MODEL, torch_dtype=torch.float32)
    pipe.load_lora_weights(BUNDLED_MODEL / "preview_lcm.safetensors")
    pipe.scheduler = LCMScheduler.from_config(pipe.scheduler.config)
    pipe.set_progress_bar_config(disable=True)

    def paint(prompt: str) -> Any:
        generator = torch.Generator().manual_seed(7)
        return pipe(
            prompt or " ", num_inference_steps=4, guidance_scale=1.0, generator=generator, height=128, width=128
        ).images[0]

    with gr.Blocks() as page:
        text, picture = gr.Textbox(), gr.Image(format="jpeg")
        text.change(paint, text, picture, api_name="paint")
    page.queue().launch(server_port=port, quiet=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
