"""The network: two convolutions and two linear layers, 21 840 parameters."""

from rushlight import nn
from rushlight.nn import functional as F


class LeNet(nn.Module):
    """(B, 1, 28, 28) -> logarithms of probabilities (B, 10)."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(320, 50)
        self.dropout = nn.Dropout()
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))  # (B, 10, 12, 12)
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))  # (B, 20, 4, 4)
        x = self.dropout(F.relu(self.fc1(x.flatten(1))))  # (B, 50)
        return F.log_softmax(self.fc2(x), 1)
