"""Text from a trained model."""

from rushlight.generate.load import load_run
from rushlight.generate.sampling import generate, probabilities, sample_token

__all__ = ["generate", "load_run", "probabilities", "sample_token"]
