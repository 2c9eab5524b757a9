"""The examples, run at a small size."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    """The module of one example."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name, options=""):
    """The result of an example with the options of a command line."""
    return example(name).main(options.split())


@pytest.fixture
def folder(tmp_path):
    """Twenty files of one kind of line, and one file that must not be read."""
    for i in range(20):
        lines = (f"def function_{i}_{j}(x):\n    return x + {i * j}\n" for j in range(30))
        (tmp_path / f"module_{i:02}.py").write_text("\n".join(lines), "ascii")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_module.py").write_text("\0" * 1000, "ascii")
    return tmp_path


SMALL = "--steps 60 --batch 4 --context 16 --layers 1 --heads 2 --width 32 --sample 30 --data"


def test_train_gpt(folder, capsys):
    result = run("train_gpt", f"{SMALL} {folder}")
    printed = capsys.readouterr().out
    assert len(result.losses) == 60
    assert result.losses[0] == pytest.approx(math.log(256), abs=0.2)
    assert result.losses[-1] < 0.8 * result.losses[0]
    assert result.held_out_loss < 0.8 * result.losses[0]
    assert isinstance(result.sample, bytes)
    assert len(result.sample) == 30
    assert "tokens/s" in printed
    assert "\r" not in printed  # plain lines where there is no terminal
    assert run("train_gpt", f"{SMALL} {folder}") == result
    assert run("train_gpt", f"{SMALL} {folder} --seed 1") != result


def test_train_gpt_on_a_terminal(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    run("train_gpt", f"{SMALL} {folder}")
    assert "\rstep    10 " in capsys.readouterr().out


def test_train_gpt_reads_code_only(folder):
    training, held_out = example("train_gpt").read_text(folder)
    text = [bytes(part.tolist()) for part in (training, held_out)]
    assert all(b"\0" not in part for part in text)
    assert b"function_17_" in text[0]
    assert b"function_18_" in text[1]


@pytest.mark.parametrize("wrong", ["--heads 3", "--steps 0", "--context 100000"])
def test_train_gpt_refuses(folder, wrong, capsys):
    with pytest.raises(SystemExit) as error:
        run("train_gpt", f"{SMALL} {folder} {wrong}")
    assert error.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_learning_rate():
    rate = example("train_gpt").learning_rate
    assert rate(99, 2000) < rate(100, 2000) == 1e-3
    assert rate(1999, 2000) == pytest.approx(1e-4, rel=1e-3)
    assert 0 < rate(0, 1) <= 1e-3


def test_autograd():
    assert run("autograd") == (15.0, [7.0, 0.0, -3.5], [3.0, 0.0, -2.0])


@pytest.mark.parametrize("seed", range(3))
def test_xor(seed):
    result = run("xor", f"--seed {seed}")
    assert result.accuracy == 1.0
    assert result.last_loss < 1e-2 < result.first_loss


def test_mlp():
    result = run("mlp", "--samples 3000 --batch 16 --epochs 3")
    assert result.accuracy > 0.9
    assert result == run("mlp", "--samples 3000 --batch 16 --epochs 3")


def test_mlp_one_sample_per_step():
    assert run("mlp", "--samples 300 --epochs 1").last_loss < math.log(10)
