"""Training: the one loop, its checkpoints, and what it reports."""

from rushlight.train.language import adamw, next_token_loss, random_windows, spread_windows
from rushlight.train.loop import train
from rushlight.train.loss import evaluate
from rushlight.train.report import Callback, Curve, Metrics, Progress, TensorBoard
from rushlight.train.run import Options, Run
