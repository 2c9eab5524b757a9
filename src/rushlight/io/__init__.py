"""Files: nested state with tensors, and writing that never leaves half a file."""

from rushlight.io.files import replacing, write_atomic
from rushlight.io.state import load, save
