"""Our stages as models of a Triton Inference Server, for teams that run one; see docs/triton.md."""
