"""Training: the one loop, its checkpoints, and what it reports."""

from rushlight.train.language import adamw, next_token_loss, random_windows, spread_windows
from rushlight.train.loop import Options, Run, evaluate, train
from rushlight.train.report import Callback, Curve, Metrics, Progress, TensorBoard
