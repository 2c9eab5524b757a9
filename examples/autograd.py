"""Autograd in ten lines: the gradient of w = sum(relu((x + y) * x))."""

import rushlight as rl


def main(argv=None):
    x = rl.tensor([3.0, 1.0, -2.0], requires_grad=True)
    y = rl.tensor([1.0, -4.0, 0.5], requires_grad=True)
    z = (x + y) * x  # 12, -3, 3
    w = z.relu().sum()  # 15: relu holds back the middle one, and its gradient
    w.backward()
    print("w     =", w.item())
    print("dw/dx =", x.grad.tolist(), " by hand: 2x + y where z > 0")
    print("dw/dy =", y.grad.tolist(), " by hand: x where z > 0")
    return w.item(), x.grad.tolist(), y.grad.tolist()


if __name__ == "__main__":
    main()
