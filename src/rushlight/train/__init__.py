"""Training: the one loop, its checkpoints, and what it reports.

`rushlight.train(model, batches, loss, ...)` is `rushlight.train.train`.
"""

import sys
import types
from typing import Any

from rushlight.train.classification import classification_loss
from rushlight.train.language import adamw, next_token_loss, random_windows, spread_windows
from rushlight.train.loop import train
from rushlight.train.loss import evaluate
from rushlight.train.report import Callback, Curve, Metrics, Progress, TensorBoard
from rushlight.train.run import Options, Run


class _Callable(types.ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Run:
        return train(*arguments, **options)


sys.modules[__name__].__class__ = _Callable  # so that the package is the loop, too
