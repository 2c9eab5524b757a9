"""What `rushlight train` leaves in a folder that is not its own, or where it could not begin."""

import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rushlight_cli import main

SMALL = ["--quiet", "--set", "context=8", "--set", "width=16", "--set", "layers=1"]
SMALL += ["--set", "heads=1", "--set", "batch=2", "--steps", "3"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    letters = random.Random(0).choices("abcdefgh \n", k=3000)
    Path("text.txt").write_text("".join(letters))


def contents(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir() if p.is_file()}


def start(*arguments, **options):
    command = [sys.executable, "-m", "rushlight", "train", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, **options)


@pytest.mark.parametrize("text", ["text.txt", "nofile.txt"])
@pytest.mark.parametrize("more", ["tokens.bin", "metrics.jsonl", "notes.txt"])
def test_a_configuration_of_something_else_is_no_run(text, more, capsys):
    Path("site").mkdir()
    Path("site/config.toml").write_text('title = "my site"\n')
    Path("site", more).write_text("precious")
    before = contents("site")
    assert main(["train", text, "--out", "site", *SMALL]) == 2
    assert "title" in capsys.readouterr().err
    assert contents("site") == before


def test_a_configuration_that_failed_to_begin_is_kept(capsys):
    assert main(["train", "text.txt", "--out", "first", *SMALL]) == 0
    Path("second").mkdir()
    Path("second/config.toml").write_bytes(Path("first/config.toml").read_bytes())
    before = contents("second")
    arguments = ["--config", "second/config.toml", "--out", "second", "--quiet"]
    assert main(["train", "nofile.txt", *arguments]) == 2
    assert "nofile.txt" in capsys.readouterr().err
    assert contents("second") == before
    Path("text.txt").rename("moved.txt")  # as a run that was killed while it read the text
    assert main(["train", "--resume", "--out", "second", "--quiet"]) == 2
    assert contents("second") == before
    Path("moved.txt").rename("text.txt")
    assert main(["train", "--resume", "--out", "second", "--quiet"]) == 0
    assert contents("second")["last.safetensors"] == contents("first")["last.safetensors"]


def test_a_run_that_cannot_save_leaves_no_folder():
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    arguments = ["text.txt", "--out", "run", *SMALL, "--set", "width=256", "--set", "heads=4"]
    result = start(*arguments, preexec_fn=small_files)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "File too large" in result.stderr
    assert not Path("run").exists()
    assert start(*arguments).returncode == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written_does_not_stop_training():
    loud = [a for a in SMALL if a != "--quiet"]
    command = f"{sys.executable} -m rushlight train text.txt {' '.join(loud)} --out "
    for number, where in enumerate(("> /dev/full", "| head -1 > first", ">&-")):
        line = f"set -o pipefail; {command} run{number} {where}"
        result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=100)
        assert result.returncode == 0, result.stderr
        assert not result.stderr
        assert Path(f"run{number}/last.safetensors").exists()
    for where, code, text in ((">&-", 0, ""), ("> /dev/full", 1, "standard output: No space")):
        sample = f"{sys.executable} -m rushlight sample run0 {where}"
        result = subprocess.run(["bash", "-c", sample], capture_output=True, text=True, timeout=100)
        assert result.returncode == code
        assert text in result.stderr
        assert result.stderr.count("\n") == code
