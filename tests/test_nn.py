"""Modules: registration, walking, state, modes, layers against PyTorch."""

import copy
import operator

import numpy as np
import pytest

import rushlight as rl
from rushlight import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Dropout(0.5)])
        self.named = nn.ModuleDict({"norm": nn.LayerNorm(4)})
        self.tied = nn.Linear(3, 4, bias=False)
        self.tied.weight = self.a.weight
        self.register_buffer("count", rl.zeros(1))
        self.register_buffer("scratch", rl.zeros(1), persistent=False)

    def forward(self, x):
        for layer in self.layers:
            x = layer(self.a(x))[:, :3]
        return x


NAMES = [
    "count",
    "a.weight",
    "a.bias",
    "layers.0.weight",
    "named.norm.weight",
    "named.norm.bias",
    "tied.weight",
]


def test_names():
    net = Net()
    assert list(net.state_dict()) == NAMES
    assert [n for n, _ in net.named_parameters()] == [
        n for n in NAMES if n not in ("count", "tied.weight")
    ]
    assert len(list(net.parameters())) == 5
    assert [n for n, _ in net.named_buffers()] == ["count", "scratch"]
    assert [n for n, _ in net.named_children()] == ["a", "layers", "named", "tied"]
    assert "layers.1" in dict(net.named_modules())
    assert net.get_submodule("named.norm") is net.named["norm"]
    with pytest.raises(AttributeError, match="nothing"):
        net.get_submodule("nothing")
    with pytest.raises(AttributeError, match="absent"):
        _ = net.absent


def test_strict_loading_reports_everything():
    net, other = Net(), Net()
    state = other.state_dict()
    before = {k: v.numpy().copy() for k, v in net.state_dict().items()}
    bad = {**state, "extra": rl.zeros(1), "a.bias": rl.zeros(7)}
    del bad["count"]
    with pytest.raises(RuntimeError) as error:
        net.load_state_dict(bad)
    for text in ("missing: count", "unexpected: extra", "a.bias: (7,)", "(4,)"):
        assert text in str(error.value)
    for key, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[key])
    with pytest.raises(RuntimeError, match="does not fit"):
        net.load_state_dict({"other": rl.zeros(1)}, strict=False)
    with pytest.raises(RuntimeError, match="shapes differ"):
        net.load_state_dict({"a.bias": rl.zeros(7)}, strict=False)
    result = net.load_state_dict({"a.bias": rl.ones(4)}, strict=False)
    assert result.missing_keys == [n for n in NAMES if n != "a.bias"]
    net.load_state_dict(state)
    for key, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), state[key].numpy())
    assert net.tied.weight is net.a.weight


def test_modes_apply_and_conversion():
    net = Net()
    x = rl.ones(2, 3)
    assert net.eval() is net
    assert not net.layers[1].training
    assert net(x).tolist() == net(x).tolist()
    net.train()
    seen = []
    net.apply(lambda m: seen.append(type(m).__name__))
    assert seen[-1] == "Net"
    assert len(seen) == 8
    net.double()
    assert all(p.dtype == rl.float64 for p in net.parameters())
    assert net(x.double()).dtype == rl.float64
    net.requires_grad_(False)
    assert not net(x.double()).requires_grad
    with pytest.raises(rl.DeviceError):
        net.to("cuda")
    twin = copy.deepcopy(net)
    assert twin.a.weight is twin.tied.weight
    assert twin.a.weight is not net.a.weight


def test_zero_grad_and_attributes():
    layer = nn.Linear(2, 2)
    layer(rl.ones(1, 2)).sum().backward()
    layer.zero_grad(set_to_none=False)
    assert layer.weight.grad.tolist() == [[0, 0], [0, 0]]
    layer.zero_grad()
    assert layer.weight.grad is None
    with pytest.raises(TypeError, match="weight"):
        layer.weight = 3
    del layer.bias
    assert "bias" not in layer.state_dict()

    class Early(nn.Module):
        def __init__(self):
            self.x = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match="super"):
        Early()
    with pytest.raises(NotImplementedError, match="forward"):
        nn.Module()(1)
    assert "in_features=2" in repr(nn.Sequential(nn.Linear(2, 2)))


def test_names_of_members():
    net = nn.Module()
    net.first, net.second = nn.Parameter(rl.zeros(1)), nn.Parameter(rl.zeros(2))
    net.first = nn.Parameter(rl.ones(3))  # a new value keeps its place
    assert [(name, p.shape) for name, p in net.named_parameters()] == [
        ("first", (3,)),
        ("second", (2,)),
    ]
    net.first = None
    assert net.first is None
    assert [name for name, _ in net.named_parameters()] == ["second"]
    net.first = nn.ReLU()
    assert [name for name, _ in net.named_children()] == ["first"]
    for name in ("forward", "a.b", ""):
        with pytest.raises(KeyError, match="cannot have a member"):
            net.add_module(name, nn.ReLU())
    names = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Linear(1, 1)})
    with pytest.raises(KeyError, match="keys"):
        names["keys"] = nn.ReLU()
    del names["a"]
    assert list(names.keys()) == ["b"]
    layers = nn.ModuleList([nn.ReLU(), nn.ReLU()])
    layers[1] = nn.Linear(1, 1)
    assert list(layers.state_dict()) == ["1.weight", "1.bias"]


def test_sequential():
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert list(net.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert len(net) == 3
    assert isinstance(net[0], nn.Linear)
    assert isinstance(net[:2], nn.Sequential)
    assert net(rl.ones(4, 2)).shape == (4, 1)


@pytest.mark.peer
def test_layers_match_pytorch(torch):
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    for name, arguments in (
        ("Linear", (6, 3)), ("LayerNorm", (6,)), ("RMSNorm", (6,)), ("GELU", ()), ("GELU", ("tanh",)), ("SiLU", ()), ("ReLU", ()), ("Sigmoid", ()),
        ("Tanh", ()), ("Softmax", (1,)), ("LogSoftmax", (1,)), ("Flatten", (0,)), ("Identity", ()),
    ):  # fmt: skip
        ours, theirs = getattr(nn, name)(*arguments), getattr(torch.nn, name)(*arguments)
        assert list(ours.state_dict()) == list(theirs.state_dict())
        ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
        out = ours(rl.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(
            out, theirs(torch.from_numpy(x)).detach().numpy(), rtol=1e-5, atol=1e-6
        )


def test_initial_values():
    layer = nn.Linear(400, 300)
    bound = 1 / np.sqrt(400)
    w = layer.weight.detach().numpy()
    assert np.abs(w).max() <= bound
    assert w.std() == pytest.approx(bound / np.sqrt(3), rel=0.02)
    w = rl.empty(200, 300)
    assert nn.init.xavier_uniform_(w).numpy().max() == pytest.approx(np.sqrt(6 / 500), rel=0.01)
    assert nn.init.xavier_normal_(w).numpy().std() == pytest.approx(np.sqrt(2 / 500), rel=0.02)
    assert nn.init.kaiming_normal_(w, nonlinearity="relu").numpy().std() == pytest.approx(
        np.sqrt(2 / 300), rel=0.02
    )
    assert nn.init.kaiming_uniform_(w, mode="fan_out").numpy().max() == pytest.approx(
        np.sqrt(6 / 200), rel=0.01
    )
    assert nn.init.normal_(w, 3, 0.1).numpy().mean() == pytest.approx(3, abs=0.01)
    assert not nn.init.zeros_(w).numpy().any()
    with pytest.raises(rl.ShapeError):
        nn.init.xavier_normal_(rl.empty(3))
    table = nn.Embedding(10, 4, padding_idx=-1)
    assert table.weight[9].tolist() == [0] * 4
    table(rl.tensor([9, 1])).sum().backward()
    assert table.weight.grad[9].tolist() == [0] * 4


def test_containers_are_edited_like_lists():
    first, second, third = nn.ReLU(), nn.Tanh(), nn.Linear(2, 2)
    for kind in (nn.ModuleList, lambda modules: nn.Sequential(*modules)):
        modules = kind([first, third])
        modules.insert(1, second)
        assert list(modules) == [first, second, third]
        assert [*modules.state_dict()] == ["2.weight", "2.bias"]
        assert modules.pop(0) is first
        assert [*modules.state_dict()] == ["1.weight", "1.bias"]
        modules[0] = first
        del modules[1:]
        assert list(operator.add(modules, [second])) == [first, second]
        assert type(modules[:1]) is type(modules)
    named = nn.ModuleDict([("a", first), ("b", second)])
    assert named.pop("a") is first
    named.clear()
    assert len(named) == 0


def test_slices_of_a_sequence_keep_their_names():
    model = rl.nn.Sequential(rl.nn.ReLU(), rl.nn.Linear(2, 2), rl.nn.Linear(2, 2))
    assert [*model[2:].state_dict()] == ["2.weight", "2.bias"]


def test_copies_of_modules_start_without_gradients():
    model = rl.nn.Linear(2, 2)
    model(rl.ones(1, 2)).sum().backward()
    assert copy.deepcopy(model).weight.grad is None
    assert model.double().weight.grad.dtype == rl.float64
