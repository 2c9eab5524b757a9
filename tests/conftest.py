"""Shared by all tests: reproducible random numbers, and PyTorch where it is installed."""

import signal

import numpy as np
import pytest

import rushlight as rl

# Where the suite runs in the background, shells have Ctrl-C ignored, by children as well.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def seed():
    rl.manual_seed(0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def threads():
    before = rl.get_num_threads()
    yield
    rl.set_num_threads(before)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="the peer extra is not installed")
