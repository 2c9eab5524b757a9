"""Sampling against distributions worked out by hand, generation, and `rushlight sample`."""

import argparse
import gc
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import rushlight as rl
from rushlight.generate import generate, load_run, probabilities, sample_token
from rushlight.io import save
from rushlight.models import GPT
from rushlight.text import ByteTokenizer, CharTokenizer
from rushlight_cli import sample

# ---- one token ----

LOGITS = np.log([0.1, 0.4, 0.2, 0.2, 0.1])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.1, 0.4, 0.2, 0.2, 0.1]),
        ({"temperature": 0.5}, np.array([1, 16, 4, 4, 1]) / 26),
        ({"temperature": 0}, [0, 1, 0, 0, 0]),
        ({"temperature": 1e-320}, [0, 1, 0, 0, 0]),
        ({"temperature": 1e300}, [0.2] * 5),
        ({"top_k": 1}, [0, 1, 0, 0, 0]),
        ({"top_k": 2}, [0, 0.5, 0.25, 0.25, 0]),  # both that equal the second
        ({"top_k": 4}, [0.1, 0.4, 0.2, 0.2, 0.1]),
        ({"top_k": 99}, [0.1, 0.4, 0.2, 0.2, 0.1]),
        ({"top_p": 1e-9}, [0, 1, 0, 0, 0]),
        ({"top_p": 0.39}, [0, 1, 0, 0, 0]),
        ({"top_p": 0.5}, [0, 2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.7}, [0, 0.5, 0.25, 0.25, 0]),
        ({"top_p": 1.0}, [0.1, 0.4, 0.2, 0.2, 0.1]),
        ({"temperature": 0.5, "top_p": 0.6}, [0, 1, 0, 0, 0]),  # 16/26 = 0.62 suffices
        ({"top_k": 2, "top_p": 0.7}, [0, 2 / 3, 1 / 3, 0, 0]),  # of what top-k left
    ],
)
def test_probabilities(options, expected):
    assert np.allclose(probabilities(LOGITS, **options), expected, rtol=1e-12, atol=0)


def test_draws_follow_the_probabilities():
    count = 8_000
    generator = rl.Generator().manual_seed(1)
    draws = [sample_token(LOGITS, top_k=2, generator=generator) for _ in range(count)]
    expected = np.array([0, 0.5, 0.25, 0.25, 0]) * count
    seen = np.bincount(draws, minlength=5)
    assert (abs(seen - expected) <= 4 * np.sqrt(expected)).all()


def test_one_uniform_number_per_token():
    first, second = rl.Generator().manual_seed(3), rl.Generator().manual_seed(3)
    for options in ({}, {"temperature": 0}, {"top_k": 1}):
        u = rl.rand(1, generator=first, dtype=rl.float64).item()
        token = sample_token(LOGITS, **options, generator=second)
        assert token == np.searchsorted(np.cumsum(probabilities(LOGITS, **options)), u, "right")
        assert first.get_state().tolist() == second.get_state().tolist()


def test_no_uniform_number_gives_what_cannot_be(monkeypatch):
    for u in (0.0, 1 - 2**-53):
        monkeypatch.setattr(rl, "rand", lambda *_, u=u, **__: rl.tensor([u], dtype=rl.float64))
        assert sample_token([0.0, 5.0, 0.0], top_k=1) == 1
        assert sample_token([-2000.0, 0.0, -2000.0]) == 1


@example([-4e-53, 0.0], 1.0, None, 0.5)
@given(
    st.lists(st.floats(-1e308, 1e308), min_size=1, max_size=20),
    st.floats(0, 10) | st.just(5e-324),
    st.none() | st.integers(1, 25),
    st.none() | st.floats(0, 1, exclude_min=True),
)
def test_any_logits(logits, temperature, top_k, top_p):
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    p = probabilities(logits, **options)
    assert p.sum() == pytest.approx(1)
    assert p[np.argmax(logits)] == p.max() > 0
    assert p[sample_token(logits, **options)] > 0


@pytest.mark.parametrize(
    ("options", "name"),
    [({"temperature": -0.1}, "temperature"), ({"temperature": np.nan}, "temperature")]
    + [({"temperature": np.inf}, "temperature"), ({"top_k": 0}, "top_k"), ({"top_k": -3}, "top_k")]
    + [({"top_p": p}, "top_p") for p in (0, -0.1, 1.1, np.nan)],
)
def test_options_refused(options, name):
    with pytest.raises(rl.ConfigError, match=name):
        sample_token(LOGITS, **options)
    with pytest.raises(rl.ConfigError, match=name):
        generate(model(), [1], 5, **options)


def test_logits_refused():
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="not finite"):
            sample_token([0.0, bad])
    for shape in ((0,), (1, 3), ()):
        with pytest.raises(ValueError, match="expected"):
            sample_token(np.zeros(shape))


# ---- many tokens ----


def model(context=8, vocabulary=11, **options):
    rl.manual_seed(7)
    made = GPT(vocabulary, context, 2, 2, 12, **options)
    with rl.no_grad():
        for parameter in made.parameters():
            parameter += rl.randn(parameter.shape) * 0.3
    return made


def tokens_of(model, prompt=(1, 2), length=30, seed=5, **options):
    generator = rl.Generator().manual_seed(seed)
    return list(generate(model, prompt, length, generator=generator, **options))


def test_seed_decides():
    made = model(dropout=0.5)
    assert tokens_of(made) == tokens_of(made)
    assert tokens_of(made) != tokens_of(made, seed=6)
    assert tokens_of(made, temperature=0) == tokens_of(made, temperature=0, seed=6)
    assert tokens_of(made, top_k=1) == tokens_of(made, temperature=0)


@pytest.mark.parametrize("context", [1, 2, 5, 8])
@pytest.mark.parametrize("prompt", [(1,), (1, 2, 3, 4, 5), tuple(range(11))])
def test_past_the_context(context, prompt):
    made = model(context)
    tokens = tokens_of(made, prompt)
    assert len(tokens) == 30
    assert tokens == tokens_of(made, prompt, cache=False)
    assert tokens == tokens_of(made, np.array(prompt, np.uint8))
    # Each is the likeliest after the window that the docstring promises.
    greedy, window = tokens_of(made, prompt, temperature=0), list(prompt)[-context:]
    made.eval()
    for token in greedy:
        if len(window) > context:
            window = window[-max(1, context // 2) :]
        assert token == made(rl.tensor([window])).argmax().item()
        window.append(token)


def test_modes_are_restored():
    made = model(dropout=0.5)
    made.h[0].eval()
    before = [module.training for module in made.modules()]
    tokens = generate(made, [1], 5)
    for _ in range(2):
        next(tokens)
        assert [module.training for module in made.modules()] == before
        assert rl.is_grad_enabled()
    del tokens
    gc.collect()
    with pytest.raises(IndexError):
        next(generate(made, [99], 5))
    assert [module.training for module in made.modules()] == before
    assert rl.is_grad_enabled()


def test_what_generate_refuses():
    with pytest.raises(ValueError, match="at least one token"):
        generate(model(), [], 5)
    with pytest.raises(rl.ConfigError, match="length"):
        generate(model(), [1], -1)
    assert tokens_of(model(), length=0) == []


# ---- a run folder, and the command ----

CONFIG = """task = "text"\ncontext = 8\nlayers = 2\nheads = 2\nwidth = 12\ndropout = 0.1\nbias = false\n
steps = 100\ntext = "x"\n"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG, "utf-8")
    tokenizer = CharTokenizer.of("abc\né👧")
    (tmp_path / "tokens.json").write_text(json.dumps({"tokenizer": tokenizer.to_dict()}), "utf-8")
    save(model(vocabulary=6, bias=False).state_dict(), tmp_path / "last.safetensors")
    return tmp_path


def run(folder, *arguments):
    parser = argparse.ArgumentParser()
    sample.add_arguments(parser)
    return sample.run(parser.parse_args([str(folder), *arguments]))


def test_load_run(folder):
    last, tokenizer = load_run(folder)
    assert not last.training
    assert (last.dropout, tokenizer.symbols) == (0.1, "\nabcé👧")
    best = {name: value * 2 for name, value in last.state_dict().items()}
    save(best, folder / "best.safetensors")
    for weights, scale in (("best", 2), ("last", 1)):
        loaded, _ = load_run(folder, weights)
        assert loaded.wte.weight.tolist() == (last.wte.weight * scale).tolist()
    with pytest.raises(rl.ConfigError, match="'best' or 'last'"):
        load_run(folder, "first")


def test_sample_writes_prompt_and_text(folder, capsys):
    assert run(folder, "--prompt", "é👧", "--length", "40") == 0
    first = capsys.readouterr().out
    assert first.startswith("é👧")
    assert len(first) == 2 + 40 + 1
    run(folder, "--prompt", "é👧", "--length", "40")
    assert capsys.readouterr().out == first
    run(
        folder, "--prompt", "é👧", "--length", "40", "--seed", "1", "--top-k", "3", "--top-p", "0.9"
    )
    assert capsys.readouterr().out != first


def test_sample_with_bytes(folder, capsys):
    (folder / "tokens.json").write_text(json.dumps({"tokenizer": ByteTokenizer().to_dict()}))
    save(model(vocabulary=256, bias=False).state_dict(), folder / "best.safetensors")
    assert run(folder, "--prompt", "👧\udc80", "--temperature", "0", "--length", "9") == 0
    assert capsys.readouterr().out.startswith("👧\ufffd")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "axyz"], "--prompt.*no 'x', 'y', 'z'"),
        (["--prompt", ""], "--prompt is empty"),
        (["--temperature", "-1"], "temperature"),
        (["--top-k", "0"], "top_k"),
        (["--top-p", "2"], "top_p"),
        (["--length", "-2"], "length"),
    ],
)
def test_wrong_use(folder, arguments, message):
    with pytest.raises(rl.ConfigError, match=message) as caught:
        run(folder, *arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("config.toml", None, rl.ConfigError, "config.toml is missing"),
        ("config.toml", b"width = \xff", rl.FormatError, "no TOML"),
        ("config.toml", b"width = = 3", rl.FormatError, "no TOML"),
        ("config.toml", CONFIG.replace("= 12", "= 13").encode(), rl.FormatError, "no multiple"),
        ("config.toml", CONFIG.replace("= 12", "= 24").encode(), rl.FormatError, "does not fit"),
        ("config.toml", CONFIG.replace("= 12", "= true").encode(), rl.FormatError, "width is True"),
        (
            "config.toml",
            CONFIG.replace("heads", "head").encode(),
            rl.FormatError,
            "heads is missing",
        ),
        ("tokens.json", None, rl.FormatError, "is missing"),
        ("tokens.json", b"{", rl.FormatError, "tokens.json: damaged"),
        ("tokens.json", b"[]", rl.FormatError, "tokens.json: damaged"),
        (
            "tokens.json",
            b'{"tokenizer": {"kind": "x"}}',
            rl.FormatError,
            "tokens.json: damaged: tokenizer",
        ),
        ("last.safetensors", None, rl.ConfigError, "no weights yet"),
        ("last.safetensors", b"\1\2\3", rl.FormatError, "last.safetensors"),
    ],
)
def test_damaged_folders(folder, name, content, error, message):
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(error, match=message) as caught:
        load_run(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_such_folder(tmp_path):
    with pytest.raises(rl.ConfigError, match="no such run folder"):
        load_run(tmp_path / "nothing")


def test_a_reader_that_leaves_and_an_ascii_terminal(folder):
    command = [sys.executable, "-m", "rushlight", "sample", str(folder), "--prompt", "👧é"]
    command.append("--length")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUNBUFFERED": ""}
    done = subprocess.run([*command, "3"], capture_output=True, env=environment, check=True)
    assert done.stdout.startswith(b"??")
    with subprocess.Popen(
        [*command, "100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        process.stdout.read(20)  # while it still writes
        process.stdout.close()
        errors = process.stderr.read()
        assert (process.wait(timeout=20), errors) == (0, b"")
