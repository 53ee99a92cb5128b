"""Tests mirror the rooms of the house; those of the whole app stand at the top."""

import os

# Read when torch is loaded. Two test processes share the cores, and threads that spin while they wait starve the other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
