"""Goldens of KVzap predictors for tests/it/golden.rs, made by kvpress, which shares no code with dmschat.

    python3 make_kvzap.py      # kvpress 0.5.5, transformers 5.2, torch 2.15, CPU; a minute

For the tiny checkpoints beside this script, a random KVzap of each kind, as save_pretrained writes it, and in golden.json: the
tokens, which were fed one by one under DMSPress(decoding=True), the scores [n_tokens, n_layers, n_kv_heads] that KVzapPress
gave them, the positions that were masked in the end, and the last logits. Deterministic: fixed seeds, one thread, f32.
"""

import json
import os

import torch
import transformers
from kvpress import DMSPress, KVzapPress
from kvpress.presses.kvzap_press import KVzapConfig, KVzapModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache

HERE = os.path.dirname(os.path.abspath(__file__))
WINDOW, N_TOKENS, UNITS = 16, 80, 40
CASES = [("qwen3_gqa", None, torch.float32), ("qwen3_gqa", UNITS, torch.bfloat16),
         ("llama_tied_llama3", None, torch.bfloat16), ("llama_tied_llama3", UNITS, torch.float32)]


def make_kvzap(folder, config, units, dtype, seed):
    torch.manual_seed(seed)
    kvzap = KVzapModel(KVzapConfig(input_dim=config.hidden_size, output_dim=config.num_key_value_heads, hidden_dim=units,
                                   n_modules=config.num_hidden_layers))
    with torch.no_grad():
        for p in kvzap.parameters():
            p.copy_(1.5 * torch.randn(p.shape) / p.shape[-1] ** 0.5 if p.dim() == 2 else torch.randn(p.shape))
    kvzap.to(dtype).save_pretrained(folder)


def run(model, folder, kind, tokens, threshold):
    """Feeds the tokens one by one -> (scores, masked positions, last logits)."""
    scorer = KVzapPress(model_type=kind)
    scorer.kvzap_model_name = f"nvidia/KVzap-{kind}-{model.config.name_or_path.split('/')[-1]}"
    scorer.kvzap_model = KVzapModel.from_pretrained(folder, dtype=torch.float32)
    scores, own = {}, scorer.score

    def score(module, *args):
        out = own(module, *args)
        scores.setdefault(module.layer_idx, []).append(out[0, :, 0].tolist())
        return out

    scorer.score = score
    press = DMSPress(scorer, threshold=threshold, sliding_window_size=WINDOW, decoding=True)
    cache = DynamicCache()
    with torch.no_grad(), press(model):
        for i, token in enumerate(tokens):
            at = torch.tensor([i])
            out = model(input_ids=torch.tensor([[token]]), past_key_values=cache, cache_position=at, use_cache=True)
    layers, heads = model.config.num_hidden_layers, model.config.num_key_value_heads
    masked = [[[] for _ in range(heads)] for _ in range(layers)]
    for l, layer in enumerate(model.model.layers):
        if layer.self_attn.masked_key_indices is not None:
            for head, token in zip(*[x.tolist() for x in layer.self_attn.masked_key_indices[1:]]):
                masked[l][head].append(token)
        layer.self_attn.masked_key_indices = None
    return [[scores[l][t] for l in range(layers)] for t in range(len(tokens))], masked, out.logits[0, -1].tolist()


def main():
    torch.set_num_threads(1)
    for i, (name, units, dtype) in enumerate(CASES):
        base, kind = os.path.join(HERE, name), "linear" if units is None else "mlp"
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="sdpa").eval()
        with open(os.path.join(base, "golden.json")) as f:
            tokens = json.load(f)["tokens"][:N_TOKENS]
        folder = os.path.join(HERE, "kvzap", f"{kind}-{name}")
        make_kvzap(folder, model.config, units, dtype, 900 + i)
        if i == 0:
            # Older files call the list of modules otherwise.
            path = os.path.join(folder, "model.safetensors")
            save_file({k.replace("layers.", "module_list."): v for k, v in load_file(path).items()}, path)
            load = {k.replace("module_list.", "layers."): v for k, v in load_file(path).items()}
            read = KVzapModel.from_pretrained
            KVzapModel.from_pretrained = classmethod(lambda c, f, dtype: with_weights(c, f, load))
        # A threshold that no score is near, so that rounding changes no mark.
        for threshold in [0.1 * step for step in range(0, 12)]:
            scores, masked, logits = run(model, folder, kind, tokens, threshold)
            gap = min(abs(s - threshold) for t in scores for l in t for s in l)
            if gap > 1e-3:
                break
        if i == 0:
            KVzapModel.from_pretrained = read
        assert gap > 1e-3, gap
        share = sum(len(h) for l in masked for h in l) / sum(len(tokens) - WINDOW for l in masked for h in l)
        print(name, kind, "threshold", threshold, "gap", gap, "masked", round(share, 2))
        golden = {"model": name, "threshold": threshold, "window": WINDOW, "tokens": tokens, "scores": scores,
                  "masked": masked, "logits": logits,
                  "versions": {"torch": torch.__version__, "transformers": transformers.__version__}}
        text = json.dumps(golden, separators=(",", ":"), default=float)
        with open(os.path.join(folder, "golden.json"), "w") as f:
            f.write(text + "\n")


def with_weights(cls, folder, weights):
    kvzap = cls(KVzapConfig.from_pretrained(folder))
    kvzap.load_state_dict(weights)
    return kvzap.float().eval()


main()
