"""Run every Python block of the README, in order, in one namespace."""

import os
import re
import tempfile
from pathlib import Path

text = (Path(__file__).parent.parent / "README.md").read_text()
blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
namespace: dict[str, object] = {}
os.chdir(tempfile.mkdtemp())  # where the files go that they write
for number, block in enumerate(blocks, 1):
    exec(compile(block, f"README block {number}", "exec"), namespace)
print(f"{len(blocks)} README blocks ran")
assert blocks
