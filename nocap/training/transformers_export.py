"""A run's model as Hugging Face's `transformers` reads it: its weights under the names of GPT-2 or
Llama, where the run's options have a counterpart there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from nocap.config.keys import require
from nocap.config.run import Run
from nocap.model.gpt import Branch
from nocap.model.language_model import LanguageModel
from nocap.options.model import NormPlacement
from nocap.store.file_writing import write_file
from nocap.training.trained import Log, trained

WITHOUT = "with --hf, because no model of transformers supports another value"
OWN_KINDS = {"model": "gpt", "attention": "global", "norm": "norm", "mlp": "mlp"}


def export_hf(run_dir: Path, folder: Path, *, log: Log) -> dict[str, Any]:
    """Write `config.json` and `model.safetensors` of the run's newest valid checkpoint, and return
    what kind of model that is.

    Errors:
        ValueError: an option of the run has no counterpart, or as for `trained`.
        OSError: it cannot be written.
    """
    run, model, step = trained(run_dir, log=log)
    kind = architecture(run)
    if run.data.document_mask or run.position.restart:
        log(
            "transformers does not see where documents end, so its logits are equal to the run's "
            "only within one document"
        )
    if kind == "gpt2":
        config, tensors = _gpt2(run, model)
    else:
        config, tensors = _llama(run, model)
    vocab_size = run.tokenizer.vocab_size
    end = run.tokenizer.end_of_text
    config |= {
        "model_type": kind,
        "vocab_size": vocab_size,
        "tie_word_embeddings": run.model.tie_head,
        "bos_token_id": end,
        "eos_token_id": end,
        "torch_dtype": "float32",
    }
    if run.model.tie_head:
        tensors.pop("lm_head.weight")
    fp32 = {name: tensor.detach().float().contiguous() for name, tensor in tensors.items()}
    weights = save(fp32, {"format": "pt"})
    text = json.dumps(config, indent=2, sort_keys=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "model.safetensors", weights)
    write_file(folder / "config.json", text.encode())
    return {"name": run_dir.name, "step": step, "model_type": kind, "folder": str(folder)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Counterpart:
    """A model of transformers, and the parts that it has."""

    model_type: str
    norm: str
    activation: str


# by the position embedding, which they do not share
COUNTERPARTS = {
    "learned": Counterpart(model_type="gpt2", norm="layer", activation="gelu"),
    "rope": Counterpart(model_type="llama", norm="rms", activation="swiglu"),
}


def architecture(run: Run) -> str:
    """Return the model of transformers that computes what the run's does: `gpt2` or `llama`.

    Errors:
        ValueError: there is none; it names the option.
    """
    m = run.model
    for group, own_kind in OWN_KINDS.items():
        kind = getattr(run, group).kind
        require(kind == own_kind, f"{group}.kind", f"be {own_kind} {WITHOUT}", kind)
    ideas = ", ".join(run.ideas)
    require(not run.ideas, "ideas", f"be empty {WITHOUT}", ideas)
    placement = m.norm_placement
    is_pre = placement is NormPlacement.pre
    require(is_pre, "model.norm_placement", f"be pre {WITHOUT}", placement.value)
    require(not m.qk_norm, "model.qk_norm", f"be false {WITHOUT}", m.qk_norm)
    require(m.logit_softcap is None, "model.logit_softcap", f"be null {WITHOUT}", m.logit_softcap)
    position = run.position.kind
    rule = "be rope (as in Llama) or learned (as in GPT-2) with --hf"
    require(position in COUNTERPARTS, "position", rule, position)
    theirs = COUNTERPARTS[position]
    beside = f"with --hf and position={position}, as in {theirs.model_type}"
    norm: str = run.norm.norm.value  # type: ignore[attr-defined]  # of this kind
    require(norm == theirs.norm, "norm.norm", f"be {theirs.norm} {beside}", norm)
    activation: str = run.mlp.activation.value  # type: ignore[attr-defined]  # of this kind
    rule = f"be {theirs.activation} {beside}"
    require(activation == theirs.activation, "mlp.activation", rule, activation)
    groups_heads = theirs.model_type == "llama"
    heads = run.attention.n_kv_heads
    rule = f"be model.n_head={m.n_head} {beside}"
    require(groups_heads or heads == m.n_head, "attention.n_kv_heads", rule, heads)
    return theirs.model_type


# the content of `config.json`, and the tensors by their names
Exported = tuple[dict[str, Any], dict[str, Tensor]]


def _gpt2(run: Run, model: LanguageModel) -> Exported:
    m = run.model
    tensors: dict[str, Tensor] = {
        "transformer.wte.weight": model.get_parameter("embedding.weight"),
        "transformer.wpe.weight": model.get_parameter("position.weight"),
        "lm_head.weight": model.get_parameter("head.unembed.weight"),
    }
    for name, tensor in _layer_norm(model.get_submodule("head.norm"), m.d_model):
        tensors[f"transformer.ln_f.{name}"] = tensor
    for i in range(m.n_layer):
        for name, tensor in _gpt2_block(model.get_submodule(f"blocks.{i}"), m.d_model):
            tensors[f"transformer.h.{i}.{name}"] = tensor
    up = model.get_parameter("blocks.0.mlp.f.up.weight")
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": m.n_layer,
        "n_head": m.n_head,
        "n_embd": m.d_model,
        "n_positions": m.seq_len,
        "n_inner": up.shape[0],
        "activation_function": "gelu",
        "layer_norm_epsilon": run.norm.eps,  # type: ignore[attr-defined]  # of this kind
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    return config, tensors


def _gpt2_block(block: nn.Module, d_model: int) -> Iterator[tuple[str, Tensor]]:
    """Yield a block's tensors by their names in GPT-2's."""
    attention = _branch(block, "attention")
    mlp = _branch(block, "mlp")
    parts: list[Tensor] = [attention.get_parameter(f"f.{part}_proj.weight") for part in "qkv"]
    # the factor of a branch is in the matrix that ends it
    maps = {
        "attn.c_attn": torch.cat(parts),
        "attn.c_proj": attention.get_parameter("f.out_proj.weight") * attention.scale,
        "mlp.c_fc": mlp.get_parameter("f.up.weight"),
        "mlp.c_proj": mlp.get_parameter("f.down.weight") * mlp.scale,
    }
    for name, weight in maps.items():
        yield f"{name}.weight", weight.t()
        yield f"{name}.bias", torch.zeros(weight.shape[0])
    for norm, branch in (("ln_1", attention), ("ln_2", mlp)):
        for name, tensor in _layer_norm(branch.norm, d_model):
            yield f"{norm}.{name}", tensor


def _layer_norm(norm: nn.Module, d_model: int) -> Iterator[tuple[str, Tensor]]:
    own = dict(norm.named_parameters())
    yield "weight", own.get("weight", torch.ones(d_model))
    yield "bias", own.get("bias", torch.zeros(d_model))


def _llama(run: Run, model: LanguageModel) -> Exported:
    m = run.model
    d_head = m.d_model // m.n_head
    tensors: dict[str, Tensor] = {
        "model.embed_tokens.weight": model.get_parameter("embedding.weight"),
        "model.norm.weight": _gain(model.get_submodule("head.norm"), m.d_model),
        "lm_head.weight": model.get_parameter("head.unembed.weight"),
    }
    for i in range(m.n_layer):
        maps = _llama_block(model.get_submodule(f"blocks.{i}"), m.d_model, d_head)
        for name, weight in maps.items():
            tensors[f"model.layers.{i}.{name}.weight"] = weight
    up = model.get_parameter("blocks.0.mlp.f.up.weight")
    base = run.position.base  # type: ignore[attr-defined]  # of this kind
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": m.n_layer,
        "num_attention_heads": m.n_head,
        "num_key_value_heads": run.attention.n_kv_heads,
        "head_dim": d_head,
        "hidden_size": m.d_model,
        "intermediate_size": up.shape[0],
        "max_position_embeddings": m.seq_len,
        "hidden_act": "silu",
        "rms_norm_eps": run.norm.eps,  # type: ignore[attr-defined]  # of this kind
        "rope_theta": base,  # as transformers 4 reads it, and as 5 does
        "rope_parameters": {"rope_type": "default", "rope_theta": base},
        "attention_bias": False,
        "mlp_bias": False,
    }
    return config, tensors


def _llama_block(block: nn.Module, d_model: int, d_head: int) -> dict[str, Tensor]:
    """Return a block's matrices and gains by their names in Llama's."""
    attention = _branch(block, "attention")
    mlp = _branch(block, "mlp")
    q = attention.get_parameter("f.q_proj.weight")
    k = attention.get_parameter("f.k_proj.weight")
    out = attention.get_parameter("f.out_proj.weight")
    down = mlp.get_parameter("f.down.weight")
    return {
        "self_attn.q_proj": _with_halves_swapped(q, d_head),
        "self_attn.k_proj": _with_halves_swapped(k, d_head),
        "self_attn.v_proj": attention.get_parameter("f.v_proj.weight"),
        "self_attn.o_proj": out * attention.scale,
        "mlp.gate_proj": mlp.get_parameter("f.gate.weight"),
        "mlp.up_proj": mlp.get_parameter("f.up.weight"),
        "mlp.down_proj": down * mlp.scale,
        "input_layernorm": _gain(attention.norm, d_model),
        "post_attention_layernorm": _gain(mlp.norm, d_model),
    }


def _with_halves_swapped(weight: Tensor, d_head: int) -> Tensor:
    """Swap the halves of each head: nocap turns a pair clockwise, Llama the other way."""
    first, second = weight.unflatten(0, (-1, 2, d_head // 2)).unbind(1)
    return torch.stack([second, first], dim=1).flatten(0, 2)


def _gain(norm: nn.Module, d_model: int) -> Tensor:
    return dict(norm.named_parameters()).get("gain", torch.ones(d_model))


def _branch(block: nn.Module, name: str) -> Branch:
    branch = block.get_submodule(name)
    assert isinstance(branch, Branch)  # of nocap's own block
    return branch
