"""Gradio Blocks whose one visible component is the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

HERE = Path(__file__).parent
STATIC_DIR = HERE / "static"

HEAD = """
<meta name="description" content="Type, and watch the picture form.">
<meta name="color-scheme" content="dark light">
<link rel="stylesheet" href="static/firstlight.css">
<link rel="stylesheet" href="static/renders.css">
<link rel="modulepreload" href="static/main.js">
"""

# Runs when Gradio has put page.html into the document; `element` and `props` are Gradio's.
ON_LOAD = """
import(new URL('static/main.js', document.baseURI).href)
  .then((page) => page.start(element, props.boot))
  .catch((error) => {
    const box = element.querySelector('#fl-fatal');
    box.hidden = false;
    box.textContent = 'The page could not start: ' + error.message + '. Reload it to try again.';
  });
"""

# Until the stylesheet is there: no white flash, and none of Gradio's frame.
FIRST_PAINT = """
html, body, gradio-app, .gradio-container { background: #f3f3f1; }
@media (prefers-color-scheme: dark) { html, body, gradio-app, .gradio-container { background: #0f1114; } }
footer { display: none; }
"""


def build_page(
    models: dict[str, Any],
    styles: list[dict[str, Any]],
    endpoints: Callable[[], None] | None = None,
) -> gr.Blocks:
    """Builds the page; `endpoints` is called inside the Blocks, to add named API endpoints.

    models and styles are the bodies of GET api/v1/models and the list of GET api/v1/styles: the page starts with them
    and asks again only for what can change.
    """
    template = (HERE / "page.html").read_text(encoding="utf-8")
    with gr.Blocks(title="Firstlight", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(
            html_template=template,
            js_on_load=ON_LOAD,
            apply_default_css=False,
            elem_id="firstlight-root",
            boot={"models": models, "styles": styles},
        )
        if endpoints is not None:
            endpoints()
    return page


def mount_kwargs() -> dict[str, Any]:
    """Arguments for gr.mount_gradio_app: our head and favicon, Gradio's plainest theme, no footer, no history."""
    return {
        "theme": gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
        "css": FIRST_PAINT,
        "head": HEAD,
        "favicon_path": str(STATIC_DIR / "favicon.svg"),
        "footer_links": [],
        "run_history": False,
        "ssr_mode": False,
    }
