"""Goldens of TrimKV's retention gates for tests/it/golden.rs, made by its own package, which shares no code with dmschat.

    python3 make_trimkv.py     # trimkv 0.1.5, transformers 4.57.1, torch 2.9.1, CPU; a minute

For a tiny checkpoint beside this script, random gates of each kind as training saves them (`trimkv_weights.pth`, `config.json`),
and in golden.json: the tokens, which were fed one by one; log_beta [n_tokens, n_layers, n_kv_heads]; the position that each of
them dropped, or -1; the last logits. Deterministic: fixed seeds, one thread, f32. flash_attn is needed by an import alone.
Also pth/*.pth, files of torch.save for src/checkpoint/pth.
"""

import json
import sys
import types
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

HERE = Path(__file__).parent
# transformers looks for flash_attn while it is imported, and must not find this.
import transformers.integrations.flash_attention  # noqa: E402

for name in ["flash_attn", "flash_attn.flash_attn_interface"]:
    sys.modules[name] = types.ModuleType(name)
for name in ["flash_attn_varlen_func", "flash_attn_with_kvcache"]:
    setattr(sys.modules["flash_attn.flash_attn_interface"], name, None)

from trimkv.cache_utils import TrimKVCache  # noqa: E402
from trimkv.models.qwen3 import TrimKVQwen3Config, TrimKVQwen3ForCausalLM  # noqa: E402

N_TOKENS, MEMORY = 80, 24
# Least distance of the two least scores, relative to them.
MARGIN = 1e-3
MODEL, CASES = "qwen3_gqa", [("rg", torch.float32, 40), ("rg10", torch.bfloat16, 24)]


def make_model(kind, dtype, units, seed):
    config = json.loads((HERE / MODEL / "config.json").read_text())
    # Keys of transformers 5.
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    for key in ["dtype", "transformers_version", "architectures"]:
        config.pop(key)
    config = TrimKVQwen3Config(
        **config, retention_gate=kind, retention_gate_intermediate_size=units, memory_size=MEMORY, global_capacity=False,
        tie_retention_gate_layers=True, trainable_params="retention_gate",
    )
    config.base_model = f"someone/{MODEL}"
    model = TrimKVQwen3ForCausalLM(config).float().eval()
    model.config._attn_implementation = "attn_eager"
    weights = {key: value.float() for key, value in load_file(HERE / MODEL / "model.safetensors").items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and all("retention_gate" in key for key in missing), (missing, unexpected)
    torch.manual_seed(seed)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "retention_gate" in key:
                own = 2.5 * torch.randn(p.shape) / p.shape[-1] ** 0.5 if p.dim() == 2 else torch.randn(p.shape)
                own = own + 2 if key.endswith("retention_gate.bias") else own
                p.copy_(own.to(dtype).float())
    return model, config


def run(model, config, tokens):
    """Feeds the tokens one by one -> (log_beta, dropped positions, last logits, margin)."""
    log_beta, dropped, margin = [], [], float("inf")
    cache = TrimKVCache(memory_size=MEMORY, buffer_size=1, device="cpu")
    before = {}
    for layer in model.model.layers:
        gate = layer.self_attn.retention_gate
        gate.register_forward_hook(lambda module, args, out: log_beta[-1].append(out[0, 0].tolist()))
    with torch.no_grad():
        for at, token in enumerate(tokens):
            log_beta.append([])
            out = model(input_ids=torch.tensor([[token]]), attention_mask={"full_attention": None},
                        past_key_values=cache, use_cache=True)
            now = {(l, h): set(lane.tolist()) for l, layer in enumerate(cache.kv_positions) for h, lane in enumerate(layer[0])}
            step = [[-1] * config.num_key_value_heads for _ in range(config.num_hidden_layers)]
            for (l, h), stored in now.items():
                had = before.get((l, h), set()) | {at}
                gone = had - stored
                assert stored <= had and len(gone) <= 1 and len(stored) == min(at + 1, MEMORY)
                if gone:
                    step[l][h] = gone.pop()
                    scores = sorted(log_beta[p][l][h] * (at + 2 - p) for p in had)
                    margin = min(margin, (scores[1] - scores[0]) / -scores[0])
            dropped.append(step)
            before = now
    return log_beta, dropped, out.logits[0, -1].tolist(), margin


def pth_files(folder):
    """Files as torch writes them: state_dicts, parameters, tied tensors; and some that are refused."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(7)
    linear, a = torch.nn.Linear(3, 2), torch.arange(6.0).reshape(2, 3)
    tied = torch.arange(4.0)
    files = {
        "state_dict": linear.state_dict(),
        "parameters": {"weight": linear.weight},
        "tensors": {"f32": a, "bf16": a.bfloat16(), "f16": a.half(), "tied": tied, "again": tied, "part": tied[2:],
                    "row": torch.arange(12.0).reshape(4, 3)[1:3], "one": a[:, :1].contiguous(), "scalar": torch.tensor(3.0)},
        "view": {"turned": a.t()},
        "int": {"count": torch.arange(3)},
        "nested": {"model": {"a": a}},
        "number": {"a": a, "step": 3.5},
        "module": linear,
    }
    for name, value in files.items():
        torch.save(value, folder / f"{name}.pth")
    torch.save({"a": a}, folder / "legacy.pth", _use_new_zipfile_serialization=False)


def main():
    torch.set_num_threads(1)
    tokens = json.loads((HERE / MODEL / "golden.json").read_text())["tokens"][:N_TOKENS]
    for i, (kind, dtype, units) in enumerate(CASES):
        for seed in range(100 * i, 100 * i + 100):
            model, config = make_model(kind, dtype, units, seed)
            log_beta, dropped, logits, margin = run(model, config, tokens)
            if margin > MARGIN:
                break
        assert margin > MARGIN
        own = sum(step[l][h] == at for at, step in enumerate(dropped) for l in range(len(step)) for h in range(len(step[l])))
        print(kind, "seed", seed, "margin", margin, "incoming tokens dropped", own)
        folder = HERE / "trimkv" / kind
        folder.mkdir(parents=True, exist_ok=True)
        gates = {k: v.to(dtype) for k, v in model.state_dict().items() if "retention_gate" in k}
        torch.save(gates, folder / "trimkv_weights.pth")
        config.to_json_file(folder / "config.json")
        golden = {"model": MODEL, "tokens": tokens, "dropped": dropped, "logits": logits,
                  "log_beta": [[[float(f"{x:.8g}") for x in lane] for lane in step] for step in log_beta],
                  "versions": {"torch": torch.__version__, "transformers": transformers.__version__}}
        (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    pth_files(HERE / "trimkv" / "pth")


main()
