"""LeNet for MNIST, as LibTorch's example has it.

Source: LeCun et al. 1998; github.com/pytorch/examples, cpp/mnist.
"""

from __future__ import annotations

from rushlight import nn
from rushlight.nn import functional as F
from rushlight.tensor import Tensor


class LeNet(nn.Module):
    """Images in, logarithms of class probabilities out.  (B, C, 28, 28) -> (B, num_classes).

    21 840 parameters for one channel and ten classes.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 1, *, dropout: float = 0.5):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.conv2_drop = nn.Dropout2d(dropout)
        self.fc1 = nn.Linear(320, 50)
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(50, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))  # (B, 10, 12, 12)
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))  # (B, 20, 4, 4)
        x = self.dropout(F.relu(self.fc1(x.flatten(1))))  # (B, 50)
        return F.log_softmax(self.fc2(x), 1)


def lenet(num_classes: int = 10, in_channels: int = 1, *, dropout: float = 0.5) -> LeNet:
    """See `LeNet`."""
    return LeNet(num_classes, in_channels, dropout=dropout)
