"""Runs that are killed with -9, at any moment: they resume and end in the same bytes (fault 23)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

# Children are forked from a process of its own, which has no threads and has loaded everything.
PROGRAM = """
import os, random, signal, sys, time
import numpy as np
sys.path.insert(0, {tests!r})
import small_run

def child(folder, prepare=lambda: None):
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            random.seed(0)
            np.random.seed(0)
            small_run.start(folder, small_run.TOTAL, resume=True, save_every=1)
            os._exit(0)
        except BaseException as error:
            print("failed:", repr(error), flush=True)
            os._exit(1)
    return pid

def end(pid):
    return os.waitpid(pid, 0)[1]

begun = time.perf_counter()
assert end(child("whole")) == 0
longest = time.perf_counter() - begun
whole = small_run.contents("whole")

def finish(folder):
    assert end(child(folder)) == 0
    assert small_run.contents(folder) == whole, folder
    assert not [name for name in os.listdir(folder) if name.endswith(".part")]
"""

RANDOM = """
times = random.Random(7)
kills = number = 0
while kills < 50:
    pid = child(f"run{number}")
    time.sleep(times.uniform(0, longest / 3))
    os.kill(pid, signal.SIGKILL)
    status = end(pid)
    if os.WIFSIGNALED(status):
        kills += 1
    else:
        assert status == 0
    if kills % 10 == 0 or status == 0:
        finish(f"run{number}")
        number += 1
print("kills", kills)
"""

SAVING = """
def dying(name, after, count):
    def prepare():
        original, calls = getattr(os, name), [0]
        def replaced(*args, **kwargs):
            calls[0] += 1
            if calls[0] == count and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*args, **kwargs)
            if calls[0] == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        setattr(os, name, replaced)
    return prepare

kills = 0
for name in ("fsync", "replace"):
    for after in (False, True):
        for count in range(1, 12):
            folder = f"{name}{after}{count}"
            assert os.WIFSIGNALED(end(child(folder, dying(name, after, count))))
            kills += 1
            finish(folder)
print("kills", kills)
"""


def run(tmp_path, program):
    text = PROGRAM.format(tests=str(Path(__file__).parent)) + program
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_fifty_random_kills(tmp_path):
    assert run(tmp_path, RANDOM) == "kills 50\n"


def test_kills_while_saving(tmp_path):
    """Before and after every flush and every renaming."""
    assert run(tmp_path, SAVING) == "kills 44\n"
