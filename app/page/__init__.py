"""The page: one HTML component inside Gradio Blocks, plain ES modules and CSS in static/."""
