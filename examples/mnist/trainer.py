"""One pass over the training set, and one over the test set."""

import rushlight as rl
from rushlight.nn import functional as F


def train(model, loader, optimizer, loss_function=F.nll_loss, schedule=None, augment=None):
    """An epoch; returns the loss of its last batch."""
    model.train()
    for x, y in loader:
        loss = loss_function(model(augment(x) if augment else x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return loss.item()


@rl.no_grad()  # nothing to remember: no graph is built
def test(model, loader):
    """Mean loss and share of right answers."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    for x, y in loader:
        scores = model(x)
        loss += F.nll_loss(scores, y, reduction="sum").item()
        right += (scores.argmax(1) == y).sum().item()
        count += len(y)
    return loss / count, right / count
