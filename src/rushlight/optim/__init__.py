"""Optimizers: each rule once in readable Python and once as a kernel over all parameters."""

from rushlight.optim import lr_scheduler
from rushlight.optim.adam import Adam, AdamW
from rushlight.optim.ema import EMA
from rushlight.optim.optimizer import Optimizer
from rushlight.optim.sgd import SGD
