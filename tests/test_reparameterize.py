"""Folding and the blocks that fold: the same outputs from fewer layers, and what is refused."""

import copy
import math

import numpy as np
import pytest

import rushlight as rl
from rushlight import models, nn
from rushlight.models import fastvit
from rushlight.models.mobileone import MobileOneBlock
from rushlight.nn import functional as F
from rushlight.nn.reparameterize import Filters
from rushlight.nn.utils import reparameterize
from test_image_models import COUNTS, count, randomised

LIMITS = [(rl.float32, 1e-4), (rl.float64, 1e-10)]
FOLDED = {  # parameters after folding of blocks
    "t8": 3_996_040,
    "t12": 7_508_840,
    "s12": 9_428_712,
    "sa12": 11_545_320,
    "sa24": 21_501_288,
    "sa36": 31_457_256,
    "ma36": 43_984_632,
}


def difference(a, b, x):
    with rl.no_grad():
        return abs(a(x).numpy() - b(x).numpy()).max()


def convolutions_and_norms(model):
    kinds = [type(module) for module in model.modules()]
    return kinds.count(nn.Conv2d), kinds.count(nn.BatchNorm2d)


# ---- whole networks ----


@pytest.mark.parametrize(("name", "after"), FOLDED.items())
def test_fastvit_folds(name, after):
    model = randomised(models.image_model(f"fastvit_{name}")).eval()
    x = rl.randn(1, 3, 64, 64)
    assert count(model) == COUNTS[f"fastvit_{name}"][-1]
    for folded in (reparameterize(model), reparameterize(model, x)):
        assert count(folded) == after
        assert difference(model, folded, x) <= 1e-4
    everything = reparameterize(model, extra=True)
    blocks = sum(fastvit.VARIANTS[name].depths)
    ffns = [m for m in everything.modules() if isinstance(m, fastvit.ConvFFN)]
    assert len(ffns) == blocks
    assert all(ffn.conv.conv.bias is not None for ffn in ffns)
    attention_only = fastvit.VARIANTS[name].depths[3] * fastvit.VARIANTS[name].attention
    assert convolutions_and_norms(everything)[1] == attention_only
    assert difference(model, everything, x) <= 1e-4
    model.double()
    x = x.double()
    assert difference(model, reparameterize(model), x) <= 1e-10
    assert difference(model, reparameterize(model, x, extra=True), x) <= 1e-10


@pytest.mark.parametrize(
    ("name", "after", "convolutions"),
    [
        ("resnet18", 11_689_512 - 4_800, 20),
        ("resnet50", 25_557_032 - 26_560, 53),
        ("mobileone_s0", 2_078_504, 43),
        ("efficientnet_lite0", 4_652_008 - 21_008, None),
        ("vit_tiny", 5_717_416, 1),
    ],
)
def test_other_networks_fold(name, after, convolutions):
    model = randomised(models.image_model(name), 0.1).eval()
    folded = reparameterize(model)
    assert count(folded) == after
    if convolutions is not None:
        assert convolutions_and_norms(folded) == (convolutions, 0)
    x = rl.randn(1, 3, *((224, 224) if name == "vit_tiny" else (64, 96)))
    scale = max(1, abs(model(x).detach().numpy()).max())
    assert difference(model, folded, x) <= 1e-5 * scale
    model.double()
    x = x.double()
    assert difference(model, reparameterize(model), x) <= 1e-12 * scale


def test_overparameterised_fastvit_folds_to_the_same_size():
    model = randomised(models.fastvit_t8(branches=4)).eval().double()
    folded = reparameterize(model)
    assert count(folded) == 3_996_040 < 4_026_232 < count(model)
    x = rl.randn(1, 3, 64, 32, dtype=rl.float64)
    assert difference(model, folded, x) <= 1e-10


def test_folded_names_are_those_of_apple():
    folded = reparameterize(models.fastvit_sa12().eval())
    state = folded.state_dict()
    for name, shape in {
        "patch_embed.0.reparam_conv.weight": (64, 3, 3, 3),
        "network.0.0.token_mixer.reparam_conv.weight": (64, 1, 3, 3),
        "network.0.0.convffn.conv.bn.running_var": (64,),
        "network.1.proj.0.lkb_reparam.bias": (128,),
        "network.1.proj.1.reparam_conv.weight": (128, 128, 1, 1),
        "network.6.reparam_conv.weight": (512, 1, 7, 7),
        "conv_exp.reparam_conv.weight": (1024, 1, 3, 3),
        "conv_exp.se.reduce.weight": (64, 1024, 1, 1),
    }.items():
        assert state[name].shape == shape
    assert not [name for name in state if "rbr" in name or "small" in name]
    again = reparameterize(models.fastvit_sa12().eval())
    assert again.load_state_dict(state) == ([], [])
    assert [y.shape[1] for y in again.features(rl.zeros(1, 3, 32, 32)).values()] == [
        64, 64, 128, 256, 512,
    ]  # fmt: skip


# ---- blocks ----


@pytest.mark.parametrize(("dtype", "limit"), LIMITS)
@pytest.mark.parametrize("branches", [0, 1, 4])
@pytest.mark.parametrize(
    ("channels", "out", "window", "stride", "groups", "scale", "se"),
    [
        (16, 16, 3, 1, 1, True, False),
        (16, 16, 3, 1, 16, True, True),
        (16, 16, 3, 1, 4, False, False),
        (16, 16, 1, 1, 1, True, False),
        (6, 16, 3, 2, 1, True, True),
        (8, 16, 5, 2, 8, True, False),
        (8, 16, 7, 1, 2, True, False),
    ],
)
def test_mobileone_block(channels, out, window, stride, groups, scale, se, branches, dtype, limit):
    options = {"scale": scale, "se": se, "branches": branches, "activation": nn.GELU()}
    block = MobileOneBlock(channels, out, window, stride, groups, **options)
    block = randomised(block).eval().to(dtype)
    folded = reparameterize(block)
    behind = ["se", "activation"] if se else []  # without it, the convolution ends with GELU
    assert list(dict(folded.named_children())) == ["reparam_conv", *behind]
    if branches == 0 and (channels != out or stride > 1):
        window = 1  # all that is left is the 1 x 1 branch
    assert folded.reparam_conv.weight.shape == (out, channels // groups, window, window)
    assert all(parameter.dtype == dtype for parameter in folded.parameters())
    assert difference(block, folded, rl.randn(2, channels, 9, 8, dtype=dtype)) <= limit


@pytest.mark.parametrize(("dtype", "limit"), LIMITS)
@pytest.mark.parametrize(
    ("build", "weights"),
    [
        (lambda: fastvit.RepMixer(8), 8 * 9),
        (lambda: fastvit.RepMixer(8, branches=3), 8 * 9),
        (lambda: fastvit.ReparamLargeKernelConv(8, 16), 16 * 49),
        (lambda: fastvit.ReparamLargeKernelConv(8, 16, 1, act=True), 16 * 49),
        (lambda: fastvit.RepCPE(8), 8 * 49),
    ],
    ids=["RepMixer", "RepMixer-3", "LargeKernel", "LargeKernel-act", "RepCPE"],
)
def test_blocks_of_fastvit(build, weights, dtype, limit):
    block = randomised(build(), 0.6).eval().to(dtype)
    folded = reparameterize(block)
    parameters = [parameter.numel() for parameter in folded.parameters()]
    assert parameters[0] == weights
    assert len(parameters) == 2
    assert difference(block, folded, rl.randn(2, 8, 9, 12, dtype=dtype)) <= limit


def test_repmixer_with_scale_zero_folds_to_the_identity():
    mixer = randomised(fastvit.RepMixer(4))
    nn.init.zeros_(mixer.layer_scale)
    conv = reparameterize(mixer.eval()).reparam_conv
    expected = np.zeros((4, 1, 3, 3))
    expected[:, :, 1, 1] = 1
    assert np.array_equal(conv.weight.detach().numpy(), expected)
    assert (conv.bias.detach().numpy() == 0).all()


def test_windows_without_a_common_centre():
    with pytest.raises(ValueError, match=r"windows \(2, 2\) and \(3, 3\) have no common centre"):
        Filters.of(nn.Conv2d(3, 3, 2)) + Filters.of(nn.Conv2d(3, 3, 3))


# ---- blocks as they train ----


@pytest.mark.parametrize("training", [True, False])
def test_repmixer_with_scale_zero_is_the_identity(training):
    mixer = randomised(fastvit.RepMixer(8, 0.5)).train(training)
    nn.init.zeros_(mixer.layer_scale)
    x = rl.randn(2, 8, 5, 6)
    assert np.array_equal(mixer(x).detach().numpy(), x.numpy())


def test_large_kernel_has_an_activation_on_request_only():
    plain = randomised(fastvit.ReparamLargeKernelConv(4, 8)).eval()
    acting = fastvit.ReparamLargeKernelConv(4, 8, act=True).eval()
    acting.load_state_dict(plain.state_dict())
    x = rl.randn(1, 4, 9, 8)
    assert np.allclose(acting(x).detach().numpy(), F.gelu(plain(x)).detach().numpy(), atol=1e-6)
    assert plain(x).shape == (1, 8, 5, 4)


def test_attention_against_numpy():
    model = fastvit.MHSA(64).double()
    with rl.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    x = np.random.default_rng(0).standard_normal((2, 64, 3, 5))
    places = x.reshape(2, 64, 15).swapaxes(1, 2)
    q, k, v = np.split(places @ model.qkv.weight.detach().numpy().T, 3, -1)
    heads = []
    for head in (slice(0, 32), slice(32, 64)):
        scores = np.exp(q[..., head] @ k[..., head].swapaxes(1, 2) / math.sqrt(32))
        heads.append(scores / scores.sum(-1, keepdims=True) @ v[..., head])
    y = np.concatenate(heads, -1) @ model.proj.weight.detach().numpy().T
    y = (y + model.proj.bias.detach().numpy()).swapaxes(1, 2).reshape(2, 64, 3, 5)
    assert np.allclose(model(rl.tensor(x)).detach().numpy(), y, 1e-12, 1e-12)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "build",
    [
        lambda: fastvit.RepMixer(32, 0.5, branches=2),
        lambda: nn.SqueezeExcite(32),
        lambda: MobileOneBlock(32, 32, 3, se=True, activation=nn.GELU()),
        lambda: fastvit.MHSA(32),
        lambda: fastvit.RepCPE(32),
        lambda: fastvit.PatchEmbed(32, 64),
        lambda: fastvit.AttentionBlock(32, 2, 0.5, 0.0),
        lambda: fastvit.RepMixerBlock(32, 2, 0.5, 0.0, 1),
    ],
    ids=[
        "RepMixer",
        "SE",
        "MobileOne",
        "MHSA",
        "RepCPE",
        "PatchEmbed",
        "AttentionBlock",
        "RepMixerBlock",
    ],
)
def test_gradient_along_one_direction(build, training):
    model = randomised(build().double()).train(training)
    x = rl.randn(2, 32, 4, 6, dtype=rl.float64).requires_grad_()
    with rl.no_grad():
        probe = rl.randn(model(x).shape, dtype=rl.float64)
    tensors = [x, *model.parameters()]
    (model(x) * probe).sum().backward()
    directions = [rl.randn(t.shape, dtype=rl.float64) for t in tensors]
    along = sum((t.grad * u).sum().item() for t, u in zip(tensors, directions, strict=True))

    def moved(by):
        with rl.no_grad():
            for t, u in zip(tensors, directions, strict=True):
                t += by * u
            return (model(x) * probe).sum().item()

    step = 1e-6
    up, down = moved(step), moved(-2 * step)
    assert along == pytest.approx((up - down) / (2 * step), rel=2e-6, abs=1e-6)


# ---- pairs ----


def wrong_statistics(bn):
    with rl.no_grad():
        for tensor in (bn.running_mean, bn.bias):
            if tensor is not None:
                tensor.normal_(0, 0.5)
        for tensor in (bn.running_var, bn.weight):
            if tensor is not None:
                tensor.uniform_(0.5, 1.5)
    return bn


@pytest.mark.parametrize(("dtype", "limit"), LIMITS)
@pytest.mark.parametrize(
    ("conv", "bn", "shape"),
    [
        (nn.Conv1d(4, 6, 3, 2), nn.BatchNorm1d(6), (2, 4, 9)),
        (nn.Conv2d(4, 6, (3, 2), padding=1, dilation=2), nn.BatchNorm2d(6, eps=0.1), (2, 4, 9, 8)),
        (nn.Conv2d(4, 6, 2, bias=False, groups=2), nn.BatchNorm2d(6, affine=False), (2, 4, 9, 8)),
        (nn.Conv2d(4, 6, 3, padding="same"), nn.BatchNorm2d(6, bias=False), (2, 4, 9, 8)),
        (nn.Conv3d(4, 6, 2), nn.BatchNorm3d(6, momentum=None), (2, 4, 3, 4, 5)),
    ],
)
def test_neighbours_in_a_sequential(conv, bn, shape, dtype, limit):
    model = nn.Sequential(conv, wrong_statistics(bn), nn.ReLU()).eval().to(dtype)
    folded = reparameterize(model)
    assert [type(module) for module in folded] == [type(conv), nn.Identity, nn.ReLU]
    assert folded[0].weight.dtype == folded[0].bias.dtype == dtype
    assert difference(model, folded, rl.randn(shape, dtype=dtype)) <= limit


class Weighted(nn.Conv2d):
    """Uses its weight in a way that folding cannot know."""

    def forward(self, x):
        return F.conv2d(x, self.weight * self.weight, self.bias)


def shared():
    conv = nn.Conv2d(3, 3, 1)
    return nn.Sequential(conv, nn.BatchNorm2d(3), conv, nn.BatchNorm2d(3))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.BatchNorm2d(3)),
        nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)),
        nn.Sequential(nn.ConvTranspose2d(3, 3, 1), nn.BatchNorm2d(3)),
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)),
        nn.Sequential(Weighted(3, 3, 1), nn.BatchNorm2d(3)),
        shared(),
    ],
    ids=["ReLU between", "order", "transposed", "no statistics", "subclass", "shared"],
)
def test_what_is_not_a_pair_stays(model):
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            wrong_statistics(module)
    folded = reparameterize(model.eval())
    assert [type(m) for m in folded] == [type(m) for m in model]
    assert difference(model, folded, rl.randn(2, 3, 4, 4)) == 0


def test_a_weight_with_two_norms_becomes_two():
    model = nn.Sequential(
        nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
    )
    model[2].weight = model[0].weight
    randomised(model).eval().double()
    folded = reparameterize(model)
    assert folded[0].weight is not folded[2].weight
    assert difference(model, folded, rl.randn(2, 3, 4, 4, dtype=rl.float64)) <= 1e-10


def test_a_block_that_stands_in_two_places_does_so_afterwards():
    block = randomised(MobileOneBlock(4, 4, 3))
    model = nn.Sequential(block, nn.ReLU(), block).eval().double()
    folded = reparameterize(model)
    assert folded[0] is folded[2]
    assert difference(model, folded, rl.randn(2, 4, 5, 5, dtype=rl.float64)) <= 1e-10


class Named(nn.Module):
    """Attributes that are named like three pairs; the second is none, the third is unused."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.bn2, self.conv2 = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.conv2(F.relu(self.bn2(x)))
        return {"out": [self.norm(self.conv(x)), x], "size": x.shape[2]}


@pytest.mark.parametrize("dtype", [rl.float32, rl.float64])
def test_names_count_with_an_example_only(dtype):
    model = randomised(Named()).eval().to(dtype)
    x = rl.randn(2, 3, 6, 6, dtype=dtype)
    assert reparameterize(model).state_dict().keys() == model.state_dict().keys()
    for example in (x, (x,)):
        folded = reparameterize(model, example)
        assert isinstance(folded.bn1, nn.Identity)
        assert isinstance(folded.norm, nn.Identity)
        assert isinstance(folded.bn2, nn.BatchNorm2d)
        kept = folded.conv2.weight.detach().numpy()
        assert np.array_equal(kept, model.conv2.weight.detach().numpy())
        assert folded.conv1.bias is not None
        with rl.no_grad():
            ours, theirs = folded(x)["out"], model(x)["out"]
        for a, b in zip(ours, theirs, strict=True):
            assert abs(a.numpy() - b.numpy()).max() < 1e-5
    same = reparameterize(model, x, pairs=False)
    assert same.state_dict().keys() == model.state_dict().keys()


def test_a_wrong_declaration_is_found_with_an_example():
    class Declared(Named):
        conv_bn_pairs = (("conv1", "bn1"), ("conv2", "bn2"))

    model = randomised(Declared()).eval()
    with pytest.raises(RuntimeError, match=r"output differs from the model's by .* times"):
        reparameterize(model, rl.randn(2, 3, 6, 6))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_output_that_is_not_finite_is_no_agreement(value):
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)).eval()
    with pytest.raises(RuntimeError, match="output differs"):
        reparameterize(model, rl.full((1, 1, 2, 2), value))


# ---- what stays as it was ----


def test_the_model_is_left_alone():
    model = randomised(models.fastvit_sa12(10)).eval()
    before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    modules = list(model.modules())
    x = rl.randn(1, 3, 32, 32)
    with rl.no_grad():
        y = model(x).numpy()
    numbers = rl.get_rng_state()
    folded = reparameterize(model, x)
    assert np.array_equal(rl.get_rng_state().numpy(), numbers.numpy())
    for parameter in folded.parameters():
        nn.init.zeros_(parameter)
    assert list(map(id, model.modules())) == list(map(id, modules))
    after = {name: value.numpy() for name, value in model.state_dict().items()}
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    with rl.no_grad():
        assert np.array_equal(model(x).numpy(), y)


def test_gradients_go_on_in_both():
    model = randomised(fastvit.RepMixer(4, 0.5)).eval()
    folded = reparameterize(model)
    x = rl.randn(1, 4, 5, 5)
    for each in (model, folded):
        each(x).sum().backward()
        assert all(parameter.is_leaf for parameter in each.parameters())
        assert all(np.isfinite(parameter.grad.numpy()).all() for parameter in each.parameters())


def test_frozen_parts_stay_frozen():
    model = models.fastvit_t8(10).eval()
    model.network.requires_grad_(False)
    folded = reparameterize(model)
    for name, parameter in folded.named_parameters():
        assert parameter.requires_grad is not name.startswith("network"), name
    half = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).eval()
    half[0].requires_grad_(False)
    assert all(p.requires_grad for p in reparameterize(half).parameters())  # the norm is trained


def test_training_mode_is_refused():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    with pytest.raises(RuntimeError, match=r"the model is in training mode.*call model.eval\(\)"):
        reparameterize(model)
    model.eval()
    model[1].train()
    with pytest.raises(RuntimeError, match="reparameterize: 1 is in training mode"):
        reparameterize(model)


def test_a_block_without_statistics_is_refused():
    block = MobileOneBlock(4, 4, 3)
    block.rbr_skip = nn.BatchNorm2d(4, track_running_stats=False)
    with pytest.raises(ValueError, match="without running statistics cannot be folded"):
        reparameterize(block.eval())


def test_what_has_nothing_to_fold_is_copied():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).eval()
    folded = reparameterize(model, rl.randn(2, 3))
    assert folded is not model
    assert folded[0].weight is not model[0].weight
    assert not any(module.training for module in folded.modules())
