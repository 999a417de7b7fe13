"""Logits of an exported model with torch and safetensors alone: python docs/read_export.py
model.safetensors 72 101 108 108 111"""

import json
import sys

import torch
import torch.nn.functional as F
from safetensors import safe_open


def logits(config, w, tokens_T):
    """(T, V) of a GPT with rope, global attention and a plain or gated MLP; without ideas, which
    would change it."""
    m, n = config["model"], config["norm"]
    kinds = [config[group]["kind"] for group in ("model", "norm", "mlp", "position", "attention")]
    kinds += [m.get("norm_placement"), *config["ideas"]]
    if config["data"].get("document_mask") or config["position"].get("restart"):
        kinds.append("documents")
    if kinds != ["gpt", "norm", "mlp", "rope", "global", "pre"]:
        sys.exit(f"a model of {', '.join(map(str, kinds))} is not read here")
    act = config["mlp"]["activation"]
    D, small = m["d_model"] // m["n_head"], (2 * m["n_layer"]) ** -0.5
    scale = {"attention": (small, 1), "both": (small, small), "none": (1, 1)}[m["residual_scale"]]
    angle_T1D = torch.outer(
        torch.arange(len(tokens_T)), config["position"]["base"] ** (-torch.arange(0, D, 2) / D)
    )[:, None]

    def norm(x, name):
        if n["norm"] == "layer":
            return F.layer_norm(
                x, x.shape[-1:], w.get(f"{name}.weight"), w.get(f"{name}.bias"), n["eps"]
            )
        return F.rms_norm(x, x.shape[-1:], w.get(f"{name}.gain"), n["eps"])

    def heads(x, name, turn):
        x = (x @ w[name].T).unflatten(1, (-1, D))
        if not turn:
            return x.transpose(0, 1)
        (a, b), cos, sin = (
            (F.rms_norm(x, [D], eps=1e-6) if m["qk_norm"] else x).chunk(2, -1),
            angle_T1D.cos(),
            angle_T1D.sin(),
        )
        return torch.cat([a * cos + b * sin, b * cos - a * sin], -1).transpose(0, 1)

    x = w["embedding.weight"][tokens_T]
    for at in (f"blocks.{layer}" for layer in range(m["n_layer"])):
        y = norm(x, f"{at}.attention.norm")
        q, k, v = (heads(y, f"{at}.attention.f.{part}_proj.weight", part != "v") for part in "qkv")
        y = (
            F.scaled_dot_product_attention(
                q[None], k[None], v[None], is_causal=True, enable_gqa=True
            )[0]
            .transpose(0, 1)
            .flatten(1)
        )
        x = x + scale[0] * (y @ w[f"{at}.attention.f.out_proj.weight"].T)
        y = norm(x, f"{at}.mlp.norm")
        h, gate = y @ w[f"{at}.mlp.f.up.weight"].T, w.get(f"{at}.mlp.f.gate.weight")
        h = (
            F.silu(y @ gate.T) * h
            if act == "swiglu"
            else F.relu(h).square()
            if act == "relu2"
            else F.gelu(h)
        )
        x = x + scale[1] * (h @ w[f"{at}.mlp.f.down.weight"].T)
    y = norm(x, "head.norm") @ w.get("head.unembed.weight", w["embedding.weight"]).T
    return m["logit_softcap"] * torch.tanh(y / m["logit_softcap"]) if m["logit_softcap"] else y


def read(path):
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["config"]), {
            name: file.get_tensor(name)
            for name in file.keys()  # noqa: SIM118
        }


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    config, weights = read(sys.argv[1])
    best = (
        logits(config, weights, torch.tensor([int(token) for token in sys.argv[2:]]))[-1]
        .softmax(-1)
        .topk(5)
    )
    print(
        *(f"token {i}: {p:.4f}" for p, i in zip(best.values, best.indices, strict=True)), sep="\n"
    )
