"""The command line: training runs from start to sample, and what it says when something is wrong."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import rushlight as rl
from rushlight_cli import main

TEXT = "".join(f"The {n}th line says {n * n % 97}.\n" for n in range(400))
SMALL = [
    "--set",
    "layers=1",
    "--set",
    "heads=2",
    "--set",
    "width=16",
    "--set",
    "context=16",
    "--set",
    "batch=4",
]
QUICK = [*SMALL, "--set", "eval_every=10", "--set", "save_every=10", "--set", "dropout=0.1"]
WEIGHTS = ("resume.safetensors", "last.safetensors", "best.safetensors")


@pytest.fixture
def text(tmp_path, monkeypatch):
    """The name of a text file in the present folder."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)
    return "text.txt"


def train(*arguments):
    return main(["train", *QUICK, *arguments])


def files(folder):
    return {name: (Path(folder) / name).read_bytes() for name in WEIGHTS}


def program(*arguments, **options):
    """The command in a process of its own."""
    line = [sys.executable, "-m", "rushlight", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, **options)


# ---- help and info ----


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["sample", "--help"], ["info", "--help"], ["--version"]]
)  # fmt: skip
def test_help_loads_neither_numpy_nor_rushlight(arguments):
    code = f"""
import sys
from rushlight_cli import main
try:
    main({arguments!r})
except SystemExit as end:
    assert not end.code
assert not {{"numpy", "rushlight"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rushlight" in done.stdout


def test_help_of_train_tells_every_key(capsys):
    from rushlight_cli.config import TASKS, fields, kind_of

    with pytest.raises(SystemExit):
        main(["train", "--help"])
    printed = capsys.readouterr().out
    for task in TASKS:
        keys = printed.partition(f"--task {task}, with their defaults:")[2].partition("keys of")[0]
        assert all(f"\n  {name} " in keys for name in fields(kind_of(task)))


def test_info(capsys):
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    for fact in (rl.__version__, "levels", "chosen", "threads", "memory", "cpu", "matplotlib"):
        assert fact in printed


# ---- a run ----


def test_a_run_from_start_to_sample(text, capsys):
    assert train(text, "--steps", "30", "--out", "run") == 0
    printed = capsys.readouterr().out
    size, symbols = len(TEXT), len(set(TEXT))
    assert f"{size:,} characters, {symbols} symbols" in printed
    assert f"{int(size * 0.9):,} to learn" in printed
    for fact in ("parameters", "MFLOP per token", "GFLOP/s", "tokens/s", "of peak", "left"):
        assert fact in printed
    assert "held-out loss" in printed
    assert len(printed.split("rushlight sample run\n")[1].strip("\n")) > 300
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20, 30]
    assert {"step", "loss", "val_loss", "lr", "tokens_per_s", "tokens"} <= set(lines[0])
    assert lines[-1]["tokens"] == 30 * 4 * 16
    settings = tomllib.loads(Path("run/config.toml").read_text())
    assert (settings["steps"], settings["layers"], settings["files"]) == (30, 1, ["text.txt"])
    best = rl.load("run/best.safetensors")
    assert best.keys() == rl.load("run/last.safetensors").keys()
    assert "wte.weight" in best


def test_the_same_settings_give_the_same_run(text):
    assert train(text, "--steps", "20", "--out", "a", "--seed", "3", "--quiet") == 0
    assert main(["train", "--config", "a/config.toml", "--out", "b", "--quiet"]) == 0
    assert files("a") == files("b")
    assert train(text, "--steps", "20", "--out", "c", "--seed", "4", "--quiet") == 0
    assert files("a") != files("c")


def test_threads_and_workers_change_nothing(text):
    for n in (1, 2):
        rl.set_num_threads(n)
        assert (
            train(text, "--steps", "20", "--out", f"{n}", "--quiet", "--set", f"workers={n - 1}")
            == 0
        )
    left, right = files("1"), files("2")
    assert left["last.safetensors"] == right["last.safetensors"]
    assert left["best.safetensors"] == right["best.safetensors"]


def test_folders_are_numbered_and_the_latest_is_resumed(text, capsys):
    for _ in range(2):
        assert train(text, "--steps", "3", "--quiet") == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["gpt-nano", "gpt-nano-2"]
    os.utime("runs/gpt-nano/resume.safetensors")
    assert main(["train", "--resume"]) == 0
    assert "runs/gpt-nano, resumed" in capsys.readouterr().out


def test_bytes_and_folders(text, capsys):
    Path("more").mkdir()
    Path("more/a.txt").write_bytes(b"caf\xe9 and tea. " * 200)  # Latin-1: fine as bytes
    Path("more/b.bin").write_bytes(b"\0\1\2")
    Path("more/.hidden").write_text("no")
    assert train(text, "more", "--tokens", "byte", "--steps", "2", "--out", "run") == 0
    printed = capsys.readouterr().out
    assert f"{len(TEXT) + 200 * len('cafe and tea. '):,} bytes, 256 symbols" in printed
    assert "left out because they are no text: 1" in printed


def test_the_standard_library_is_the_default(text, capsys):
    assert (
        main(["train", "--steps", "0", "--out", "run", "--set", "held_out=0", "--tokens=byte"]) == 0
    )
    printed = capsys.readouterr().out
    assert "Python's standard library: " in printed
    size = int(printed.split("library: ")[1].split(" bytes")[0].replace(",", ""))
    assert size > 5_000_000


def test_averaged_weights_and_accumulation(text):
    options = ["--set", "ema=0.9", "--set", "accumulate=2", "--quiet"]
    assert train(text, *options, "--steps", "20", "--out", "run") == 0
    assert files("run")["best.safetensors"] != files("run")["last.safetensors"]


def test_sampling(text, capsys):
    assert train(text, "--steps", "20", "--out", "run", "--quiet") == 0
    capsys.readouterr()

    def sample(*arguments):
        assert main(["sample", "run", *arguments]) == 0
        return capsys.readouterr().out

    first = sample("--prompt", "The 7", "--length", "60", "--seed", "1")
    assert first.startswith("The 7")
    assert len(first) == 5 + 60 + 1
    assert sample("--prompt", "The 7", "--length", "60", "--seed", "1") == first
    assert sample("--prompt", "The 7", "--length", "60", "--seed", "2") != first
    greedy = sample("--prompt", "T", "--length", "20", "--temperature", "0")
    assert greedy == sample("--prompt", "T", "--length", "20", "--top-k", "1", "--seed", "9")
    assert len(sample("--top-p", "0.5", "--length", "5")) > 5


def test_text_without_new_lines(text, capsys):
    Path("line.txt").write_text("abcdefgh " * 300)
    assert train("line.txt", "--steps", "2", "--out", "run") == 0


def test_curve_and_events(text):
    pytest.importorskip("matplotlib")
    pytest.importorskip("tensorboardX")
    assert train(text, "--steps", "20", "--out", "run", "--quiet") == 0
    assert Path("run/loss.png").read_bytes().startswith(b"\x89PNG")
    assert any(p.stat().st_size > 100 for p in Path("run/tensorboard").iterdir())


# ---- interruption ----


def wait_for(path, text, process):
    end = time.monotonic() + 60
    while not path.exists() or text not in path.read_text():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed(text, number):
    arguments = [*QUICK, "--set", "save_every=1000", "--steps", "300", "--set", "log_every=1"]
    assert main(["train", text, *arguments, "--out", "whole", "--quiet"]) == 0
    line = [sys.executable, "-m", "rushlight", "train", text, *arguments, "--out", "cut it"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(Path("cut it/metrics.jsonl"), '"step": 20,', process)
    process.send_signal(number)
    out, error = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGTERM)
    assert error == ("rushlight train: interrupted\n" if number == signal.SIGINT else "")
    assert "is saved; go on with: rushlight train --resume --out 'cut it'" in out
    step = rl.load("cut it/resume.safetensors")["progress"]["step"]
    assert 20 <= step < 300
    assert main(["train", "--resume", "--out", "cut it", "--quiet"]) == 0
    assert files("cut it") == files("whole")


def test_nothing_to_resume(text, capsys):
    assert main(["train", "--resume", "--out", "nowhere"]) == 2
    assert "there is no run in nowhere" in capsys.readouterr().err
    assert not Path("nowhere").exists()


def test_resuming_before_a_checkpoint_begins(text):
    assert train(text, "--steps", "5", "--out", "run", "--resume", "--quiet") == 0
    for name in WEIGHTS:
        Path("run", name).unlink()
    assert main(["train", "--resume", "--out", "run", "--quiet"]) == 0
    assert rl.load("run/resume.safetensors")["progress"]["step"] == 5


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--steps", "9"], "steps was 5"),
        (["--seed", "1"], "seed was 1337"),
        (["--set", "lr=0.5"], "lr was 0.004"),
        (["--tokens", "byte"], "tokens was 'char'"),
        (["--preset", "gpt-char"], "preset was 'gpt-nano'"),
        (["other.txt"], r"files was ['text.txt']"),
    ],
)
def test_changed_flags_are_refused_by_name(text, capsys, flags, name):
    assert train(text, "--steps", "5", "--out", "run", "--quiet") == 0
    before = files("run")
    assert main(["train", "--resume", "--out", "run", *flags]) == 2
    error = capsys.readouterr().err
    assert f"--resume: {name}" in error
    assert error.count("\n") == 1
    assert files("run") == before
    assert train(text, "--steps", "5", "--out", "run", "--resume", "--quiet") == 0


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.toml", lambda old: old.replace(b"lr = 0.004", b"lr = 0.5"), "lr was 0.004"),
        ("config.toml", lambda old: old.replace(b"steps = 5", b"steps = 9"), "steps was 5"),
        ("tokens.bin", lambda old: old[:-1] + bytes([old[-1] ^ 1]), "data was"),
    ],
)
def test_edited_runs_are_refused(text, capsys, name, change, message):
    assert train(text, "--steps", "5", "--out", "run", "--quiet") == 0
    path = Path("run", name)
    path.write_bytes(change(path.read_bytes()))
    assert main(["train", "--resume", "--out", "run"]) == 2
    assert f"resume: {message}" in capsys.readouterr().err


def test_a_full_disk(text):
    """A limit on the size of files stands for the disk."""
    code = f"""
import resource, signal, sys
from rushlight_cli import main
from rushlight.train import checkpoint
save = checkpoint.save_checkpoint
def save_some(run):
    if run.step == 20:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    save(run)
checkpoint.save_checkpoint = save_some
sys.exit(main(["train", {text!r}, "--out", "run", *{QUICK!r}, "--steps", "40"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "run/resume.safetensors: File too large; nothing was written or replaced" in done.stderr
    assert "step 10 of 40 is saved; go on with: rushlight train --resume --out run" in done.stdout
    assert rl.load("run/resume.safetensors")["progress"]["step"] == 10
    assert main(["train", "--resume", "--out", "run", "--quiet"]) == 0


def test_divergence(text, capsys):
    assert train(text, "--steps", "40", "--set", "lr=1e30", "--out", "run") == 1
    captured = capsys.readouterr()
    assert "step " in captured.err
    assert "batch " in captured.err
    assert "first not finite: " in captured.err
    assert "checkpoint in run is intact" in captured.err
    assert rl.load("run/resume.safetensors")["progress"]["step"] == 0


# ---- bad input ----

UNUSABLE = [
    (["missing.txt"], 2, "missing.txt: no such file or folder"),
    (["empty.txt"], 1, "empty.txt: no text to learn from"),
    (["short.txt"], 1, "short.txt: too short"),
    (["binary.bin"], 1, "binary.bin: not text: byte 3 is 0"),
    (["latin.txt"], 1, "latin.txt: not UTF-8 text near byte 3; convert it, or use --tokens byte"),
    (["fifo"], 2, "fifo: not an ordinary file"),
    (["text.txt", "--set", "min_lr=1"], 2, "min_lr 1.0 is above lr 0.004; set both"),
    ([""], 2, "empty or impossible name"),
    (["text.txt", "--steps", "9" * 30], 2, "steps must be at most"),
    (["text.txt", "--config", "fifo"], 2, "fifo: not an ordinary file"),
    (["empty"], 1, "empty: no text to learn from"),
    (["text.txt", "--preset", "gpt-nona"], 2, "unknown preset 'gpt-nona'; did you mean 'gpt-nano'"),
    (["text.txt", "--tokens", "words"], 2, "unknown tokens 'words'"),
    (["text.txt", "--set", "widht=8"], 2, "unknown key 'widht'; did you mean 'width'"),
    (["text.txt", "--set", "width=eight"], 2, "width must be a whole number, got 'eight'"),
    (["text.txt", "--set", "width"], 2, "expected key=value"),
    (["text.txt", "--set", "width=9"], 2, "width 9 is no multiple of heads 2"),
    (["text.txt", "--set", "dropout=1"], 2, "dropout must be at least 0 and below 1"),
    (["text.txt", "--set", "lr=nan"], 2, "lr must be at least 0"),
    (["text.txt", "--steps", "-1"], 2, "steps must be at least 0"),
    (["text.txt", "--steps", "ten"], 2, "--steps ten: steps must be a whole number, got 'ten'"),
    (["text.txt", "--config", "missing.toml"], 2, "missing.toml: No such file"),
    (["text.txt", "--config", "text.txt"], 2, "text.txt: not TOML"),
    (["text.txt", "--config", "odd.toml"], 2, "odd.toml: unknown key 'layer'; did you mean 'layers'"),
    (["text.txt", "--config", "type.toml"], 2, "type.toml: layers must be a whole number, got '4'"),
    (["text.txt", "--out", "text.txt"], 2, "--out text.txt is a file"),
    (["text.txt", "--out", ""], 2, "--out: give the name of a folder"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "message"), UNUSABLE)
def test_bad_input(text, capsys, arguments, code, message):
    Path("empty.txt").write_text("")
    Path("short.txt").write_text("abc" * 9)
    Path("binary.bin").write_bytes(b"abc\0def" * 99)
    Path("latin.txt").write_bytes(b"caf\xe9 " * 99)
    Path("empty").mkdir()
    os.mkfifo("fifo")
    Path("odd.toml").write_text("layer = 4\n")
    Path("type.toml").write_text('layers = "4"\n')
    before = sorted(Path().rglob("*"))
    assert train("--out", "run", "--steps", "3", *arguments) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("rushlight train: ")
    assert "Traceback" not in captured.err
    assert sorted(Path().rglob("*")) == before  # nothing is left behind


def test_other_files_are_not_overwritten(text, capsys):
    Path("mine").mkdir()
    Path("mine/tokens.bin").write_text("mine")
    for arguments in ([], ["--resume"]):
        assert train(text, "--steps", "3", "--out", "mine", *arguments) == 2
        assert "mine holds other files and no run" in capsys.readouterr().err
    assert [p.name for p in Path("mine").iterdir()] == ["tokens.bin"]
    assert Path("mine/tokens.bin").read_text() == "mine"


def test_a_preset_beside_a_configuration_of_another(text, capsys):
    assert train(text, "--steps", "3", "--out", "run", "--quiet") == 0
    assert main(["train", "--config", "run/config.toml", "--preset", "gpt-char"]) == 2
    assert "run/config.toml has the sizes of gpt-nano" in capsys.readouterr().err


def test_runs_are_no_text(text, capsys):
    assert train(".", "--steps", "3", "--quiet") == 0
    assert train(".", "--steps", "3", "--set", "held_out=0.2") == 0
    assert f"{len(TEXT):,} characters" in capsys.readouterr().out


def test_two_processes_in_one_folder(text):
    """The second, while the first trains."""
    line = [sys.executable, "-m", "rushlight", "train", text, *QUICK, "--out", "run"]
    first = subprocess.Popen([*line, "--steps", "100000", "--quiet"])
    try:
        wait_for(Path("run/metrics.jsonl"), '"step": 10,', first)
        second = program("train", "--resume", "--out", "run")
        assert (second.returncode, second.stdout) == (2, "")
        assert "run: another process is training there" in second.stderr
    finally:
        first.kill()
        first.wait()


def test_a_run_is_not_overwritten(text, capsys):
    assert train(text, "--steps", "3", "--out", "run", "--quiet") == 0
    before = files("run")
    assert train(text, "--steps", "3", "--out", "run") == 2
    assert (
        "run already holds a run: add --resume to go on, or choose --out" in capsys.readouterr().err
    )
    assert files("run") == before


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("resume.safetensors", False),  # without it, the run begins again
        *((name, gone) for name in ("tokens.bin", "tokens.json", "config.toml") for gone in (0, 1)),
    ],
)
def test_damaged_runs(text, capsys, name, gone):
    assert train(text, "--steps", "3", "--out", "run", "--quiet") == 0
    path = Path("run", name)
    good = path.read_bytes()
    path.unlink() if gone else path.write_bytes(good[: len(good) // 2])
    before = {p: p.read_bytes() for p in Path("run").iterdir() if p.is_file()}
    assert main(["train", "--resume", "--out", "run", "--set", "seed=9"]) in (1, 2)
    assert main(["train", "--resume", "--out", "run"]) in (1, 2)
    assert {p: p.read_bytes() for p in Path("run").iterdir() if p.is_file()} == before
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 2
    assert name in error[1]
    path.write_bytes(good)
    assert main(["train", "--resume", "--out", "run", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 2, "nowhere: no such run folder"),
        (["text.txt"], 2, "text.txt is a file"),
        (["run", "--prompt", "Thé"], 2, "had no 'é'"),
        (["run", "--prompt", ""], 2, "--prompt is empty"),
        (["run", "--temperature", "-1"], 2, "temperature"),
        (["run", "--top-k", "0"], 2, "top_k"),
        (["run", "--top-p", "1.5"], 2, "top_p"),
        (["run", "--length", "-1"], 2, "length"),
        (["cut"], 1, "best.safetensors"),
        (["foreign"], 1, "best.safetensors: does not fit"),
        (["pickle"], 1, "pickle"),
    ],
)
def test_bad_sampling(text, capsys, arguments, code, message):
    import shutil

    assert train(text, "--steps", "3", "--out", "run", "--quiet") == 0
    for name in ("cut", "foreign", "pickle"):
        shutil.copytree("run", name)
    Path("cut/best.safetensors").write_bytes(Path("run/best.safetensors").read_bytes()[:500])
    rl.save({"weight": rl.ones(2)}, "foreign/best.safetensors")
    Path("pickle/best.safetensors").write_bytes(b"\x80\x04K\x01.")
    assert main(["sample", *arguments]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert error.startswith("rushlight sample: ")


def test_debug_shows_the_traceback(text):
    done = program("train", "missing.txt", "--debug")
    assert "Traceback" in done.stderr
    assert done.returncode == 1


def test_no_command_and_unknown_commands(capsys):
    assert main([]) == 2
    assert main(["tarin"]) == 2
    assert "unknown command 'tarin'; did you mean 'train'?" in capsys.readouterr().err


def test_a_closed_pipe_is_no_error(text):
    assert train(text, "--steps", "3", "--out", "run", "--quiet") == 0
    line = f"{sys.executable} -m rushlight sample run --length 2000 | head -c 5"
    done = subprocess.run(line, shell=True, capture_output=True, check=False)
    assert (len(done.stdout), done.stderr) == (5, b"")
