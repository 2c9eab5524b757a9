"""The golden vectors of the operations built so far, at rtol 2e-6 and atol 1e-6.

`ref_*` is the float64 truth. Where the original library that made the vectors is wrong, only the truth counts.
"""

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from vectors import vector


def ids(x):
    return rl.from_numpy(np.asarray(x).astype(np.int64))


def heads(x, width):
    return x.view(1, x.shape[0], -1, width).transpose(1, 2)


def joined(y):
    return y.transpose(1, 2).flatten(2)[0]


def attend(q, k, v, width):
    return joined(
        F.scaled_dot_product_attention(
            heads(q, width), heads(k, width), heads(v, width), is_causal=True
        )
    )


# name: (inputs, function of the vector's metadata and the inputs)
CASES = {
    "linear": ("W x", lambda v, w, x: F.linear(x, w)),
    "linear_bias": ("W x b", lambda v, w, x, b: F.linear(x, w, b)),
    "add": ("a b", lambda v, a, b: a + b),
    "add_broadcast": ("a b", lambda v, a, b: a + b),
    "mul": ("a b", lambda v, a, b: a * b),
    "scale": ("x", lambda v, x: x * float(v["meta_s"])),
    "softmax": ("x", lambda v, x: F.softmax(x, 0)),
    "rmsnorm": ("x gamma", lambda v, x, g: F.rms_norm(x, x.shape, g, 1e-6)),
    "rmsnorm_nogamma": ("x", lambda v, x: F.rms_norm(x, x.shape, eps=1e-6)),
    "seq_rmsnorm": ("x gamma", lambda v, x, g: F.rms_norm(x, x.shape[-1:], g, 1e-6)),
    "seq_rmsnorm_nogamma": ("x", lambda v, x: F.rms_norm(x, x.shape[-1:], eps=1e-6)),
    "silu": ("x", lambda v, x: F.silu(x)),
    "gelu": ("x", lambda v, x: F.gelu(x, approximate="tanh")),
    "sigmoid": ("x", lambda v, x: F.sigmoid(x)),
    "relu": ("x", lambda v, x: F.relu(x)),
    "layernorm": ("x gamma beta", lambda v, x, g, b: F.layer_norm(x, x.shape, g, b)),
    "layernorm_plain": ("x", lambda v, x: F.layer_norm(x, x.shape)),
    "seq_layernorm": ("x gamma beta", lambda v, x, g, b: F.layer_norm(x, x.shape[-1:], g, b)),
    "embedding": ("wte", lambda v, w: F.embedding(ids(v["meta_token"]), w).flatten()),
    "seq_embedding": ("wte wpe", lambda v, w, p: F.embedding(ids(v["tokens"]), w) + p),
    "seq_embedding_nopos": ("wte", lambda v, w: F.embedding(ids(v["tokens"]), w)),
    "seq_linear": ("W x", lambda v, w, x: F.linear(x, w)),
    "seq_linear_t": ("W x", lambda v, w, x: x @ w),
    "causal_attention": ("q k v", lambda v, q, k, w: attend(q, k, w, q.shape[1])),
    "mh_causal_attention": ("q k v", lambda v, q, k, w: attend(q, k, w, int(v["meta_head_dim"]))),
    "cross_entropy": ("logits", lambda v, x: F.cross_entropy(x, ids(v["meta_target"]))),
    "seq_cross_entropy": ("logits", lambda v, x: F.cross_entropy(x, ids(v["targets"]))),
    "concat": ("a b", lambda v, a, b: rl.cat([a, b], 1)),
    "swiglu": ("gate up", lambda v, a, b: F.silu(a) * b),
    "geglu": (
        "x W1 W2",
        lambda v, x, a, b: F.gelu(F.linear(x, a), approximate="tanh") * F.linear(x, b),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_vector(name):
    v = vector(name)
    inputs, function = CASES[name]
    x = {key: rl.tensor(v[key], requires_grad=True) for key in inputs.split()}
    if name == "seq_embedding":  # every position of the table is used once, in order
        assert len(v["tokens"]) == len(v["wpe"])
    out = function(v, *x.values())
    close = {"rtol": 2e-6, "atol": 1e-6}
    np.testing.assert_allclose(out.detach().numpy(), v["ref_out"].reshape(out.shape), **close)
    out.backward(rl.tensor(np.asarray(v["dout"], np.float32).reshape(out.shape)))
    for key, tensor in x.items():
        np.testing.assert_allclose(
            tensor.grad.numpy(), v[f"ref_g_{key}"].reshape(tensor.shape), **close
        )


def test_products_and_plain_attention():
    v = vector("blas")
    a, b, x = (rl.tensor(v[key]) for key in ("A", "B", "x"))
    np.testing.assert_allclose((a @ b).numpy(), v["ref_mm"], rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose((a @ rl.tensor(v["BT"]).T).numpy(), v["mmT"], rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose((a @ x).numpy(), v["ref_matvec"], rtol=2e-6, atol=1e-6)
    v = vector("attention")
    out = F.scaled_dot_product_attention(*(rl.tensor(v[key]) for key in "qkv"))
    np.testing.assert_allclose(out.numpy(), v["ref_out"], rtol=2e-6, atol=1e-6)


def test_masked_and_out_of_range_targets():
    v = vector("seq_cross_entropy_masked")
    assert set(np.unique(v["mask"])) <= {0.0, 1.0}  # so that leaving rows out says the same
    x = rl.tensor(v["logits"], requires_grad=True)
    loss = F.cross_entropy(x, ids(np.where(v["mask"] > 0, v["targets"], -100)))
    loss.backward(rl.tensor(np.asarray(v["dout"], np.float32).reshape(())))
    np.testing.assert_allclose(loss.item(), v["ref_out"], rtol=2e-6)
    np.testing.assert_allclose(x.grad.numpy(), v["ref_g_logits"], rtol=2e-6, atol=1e-6)
    v = vector("seq_cross_entropy_oob")  # the original clamps such labels to class 0
    with pytest.raises(IndexError):
        F.cross_entropy(rl.tensor(v["logits"]), ids(v["targets"]))


def test_group_norm():
    """Also of numbers around 1000 with a spread of 0.01, where the original loses its digits."""
    v = vector("group_norm")
    close = {"rtol": 2e-6, "atol": 1e-6}
    x, gamma, beta = (rl.tensor(v[key])[None] for key in ("x", "gamma", "beta"))
    groups, eps = int(v["meta_groups"]), float(v["meta_eps"])
    out = F.group_norm(x, groups, gamma[0], beta[0], eps)
    np.testing.assert_allclose(out[0].numpy(), v["ref_out"], **close)
    out = F.instance_norm(x, eps=eps)
    np.testing.assert_allclose(out[0].numpy(), v["out_instance"], rtol=2e-6, atol=2e-6)
    out = F.group_norm(rl.tensor(v["x_offset"])[None], 1, eps=eps)
    np.testing.assert_allclose(out[0].numpy(), v["ref_out_offset"], **close)


def test_upsampling():
    v = vector("upsample_nearest")
    out = F.interpolate(rl.tensor(v["x"])[None], scale_factor=int(v["meta_scale"]))
    np.testing.assert_array_equal(out[0].numpy(), v["out"])
