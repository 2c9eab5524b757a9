"""`rushlight.data`, under PyTorch's address."""

from rushlight.data import *  # noqa: F403
from rushlight.data import __all__  # noqa: F401
