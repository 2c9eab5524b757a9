"""The exclusive or, learned by a network of two inputs, eight hidden units and two classes."""

import argparse
from typing import NamedTuple

import rushlight as rl
from rushlight import nn


class Result(NamedTuple):
    """What a run came to."""

    first_loss: float
    last_loss: float
    accuracy: float


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1500, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    options = parser.parse_args(argv)
    rl.manual_seed(options.seed)

    inputs = rl.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    targets = rl.tensor([0, 1, 1, 0])
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    for layer in (model[0], model[2]):
        nn.init.zeros_(layer.bias)
    optimizer = rl.optim.Adam(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()

    losses = []
    for _ in range(options.epochs):
        loss = criterion(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    with rl.no_grad():
        predictions = model(inputs).argmax(1)
    accuracy = (predictions == targets).float().mean().item()
    print(f"first loss {losses[0]:.4f}, last loss {losses[-1]:.3g}")
    print(f"predictions {predictions.tolist()}, accuracy {accuracy}")
    return Result(losses[0], losses[-1], accuracy)


if __name__ == "__main__":
    main()
