"""Rushlight: neural networks on the machine you already have."""

from rushlight import nn, optim
from rushlight._core import empty_cache, get_num_threads, memory_stats, set_num_threads
from rushlight.autograd import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from rushlight.compat import autocast, cuda, device
from rushlight.creation import (
    arange,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    multinomial,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    tensor,
    zeros,
    zeros_like,
)
from rushlight.creation import from_numpy_array as from_numpy
from rushlight.dtypes import (
    bfloat16,
    bool_,
    double,
    dtype,
    float16,
    float32,
    float64,
    half,
    int8,
    int16,
    int32,
    int64,
    long,
    short,
    uint8,
)
from rushlight.errors import (
    CompileError,
    ConfigError,
    DeviceError,
    DtypeError,
    FormatError,
    GraphError,
    ShapeError,
)
from rushlight.ops import *  # noqa: F403
from rushlight.random import (
    Generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    set_rng_state,
)
from rushlight.tensor import Size, Tensor
from rushlight.version import __version__

bool, float, int = bool_, float32, int32
