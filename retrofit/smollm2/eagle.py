"""Train an EAGLE-3 head for a model on its own answers, on a CPU, and write it as `speculators` does.

    python generate.py --model FOLDER --split train --count 1536 --batch 96 --most 200 --out out/train.jsonl
    python generate.py --model FOLDER --split test --count 24 --batch 24 --most 160 --out out/test.jsonl
    python eagle.py --model FOLDER --answers out/train.jsonl --test out/test.jsonl --minutes 15 --out out/head
    dmschat -m FOLDER --draft ./out/head

One decoder layer over the token's embedding and the sum of maps of three layers' inputs (2, n/2, n - 3). Step j of the training
goes on from the head's own output of step j - 1, with the text's tokens, as when it drafts. Loss: cross entropy with the model's
distribution over the head's tokens, which are the most frequent ones of the answers. The accepted length is that of greedy drafts
against the text: 1 + the mean number of first drafts, of `--steps`, that are the text's next tokens.
"""
import argparse
import collections
import json
import os
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from generate import turn
from model import SYSTEM, Base, attend_blocks, grouped, norm, rotate


def rows_of(base, path, most, length):
    """Token ids of answers with the position of the first answered token, `most` tokens in all."""
    rows, total = [], 0
    with open(path, encoding="utf-8") as f:
        for line in map(json.loads, f):
            if line["user"] is None:
                continue
            prompt = base.encode(turn("system", SYSTEM) + turn("user", line["user"]) + "<|im_start|>assistant\n")
            ids = (prompt + base.encode(line["answer"] + "<|im_end|>"))[:length]
            rows.append((torch.tensor(ids), len(prompt)))
            total += len(ids)
            if total >= most:
                break
    return rows, total


@torch.no_grad()
def observe(base, ids, layers):
    """ids [T] -> inputs of the layers [T, 3 hidden], last hidden states [T, hidden]."""
    seen = []

    def attend(layer, x, q, k, v):
        if layer in layers:
            seen.append(x[0])
        return attend_blocks(q, k, v)

    last = base.hidden_states(ids[None], attend)[0]
    return torch.cat(seen, -1).bfloat16(), norm(last, base.w["norm.weight"], base.eps).bfloat16()


class Head(torch.nn.Module):
    def __init__(self, base, tokens):
        super().__init__()
        h, qkv, ffn = base.hidden, (base.heads + 2 * base.kv_heads) * base.head_dim, base.layer[0]["mlp.gate_proj"].shape[0]
        linear = lambda out, of: torch.nn.Parameter(torch.randn(out, of) * of ** -0.5)
        self.base = [base]
        self.fc, self.qkv, self.o = linear(h, 3 * h), linear(qkv, 2 * h), linear(h, h)
        self.gate_up, self.down = linear(2 * ffn, h), linear(h, ffn)
        self.gains = torch.nn.ParameterDict({n: torch.nn.Parameter(torch.ones(h)) for n in ("input", "hidden", "post", "final")})
        self.tokens = tokens
        # Begins as the model's last layer behind its last hidden state.
        last = base.layer[-1]
        with torch.no_grad():
            self.fc.mul_(0.1)[:, 2 * h:] += torch.eye(h)
            self.qkv.mul_(0.3)[:, h:] += torch.cat([last[f"self_attn.{n}_proj"] for n in "qkv"])
            self.o.copy_(last["self_attn.o_proj"])
            self.gate_up.copy_(torch.cat([last["mlp.gate_proj"], last["mlp.up_proj"]]))
            self.down.copy_(last["mlp.down_proj"])
            self.gains["hidden"].copy_(last["input_layernorm"])
            self.gains["post"].copy_(last["post_attention_layernorm"])
            self.gains["final"].copy_(base.w["norm.weight"])
            self.gains["input"].fill_(1.0)
        self.lm_head = torch.nn.Parameter(base.w["embed_tokens.weight"][tokens].clone())

    def forward(self, features, ids, steps):
        """features [T, 3 hidden] and ids [T] of one text: yields logits [T - 1 - j, tokens] of each step j."""
        base, t = self.base[0], len(ids) - 1
        x, keys, values = F.linear(features[:-1].float(), self.fc), [], []
        for j in range(steps):
            n = t - j
            x = x[:n]
            e = norm(base.embed(ids[1 + j:]), self.gains["input"], base.eps)
            both = torch.cat([e, norm(x, self.gains["hidden"], base.eps)], -1)
            q, k, v = F.linear(both, self.qkv).split([base.heads * base.head_dim] + 2 * [base.kv_heads * base.head_dim], -1)
            q, k, v = [y.unflatten(-1, (-1, base.head_dim)).transpose(0, 1)[None] for y in (q, k, v)]
            cos, sin = base.cos[1 + j: 1 + t], base.sin[1 + j: 1 + t]
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            keys.append(k)
            values.append(v)
            q = grouped(q, base.kv_heads)
            scores = (q @ keys[0][:, :, None, :n].transpose(-1, -2)).masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
            own = [(q * past[:, :, None, :n]).sum(-1, keepdim=True) for past in keys[1:]]
            p = (torch.cat([scores, *own], -1) * base.head_dim ** -0.5).softmax(-1)
            out = p[..., :n] @ values[0][:, :, None, :n]
            for i, past in enumerate(values[1:]):
                out = out + p[..., n + i, None] * past[:, :, None, :n]
            x = x + F.linear(out.flatten(1, 2)[0].transpose(0, 1).flatten(1), self.o)
            gate, up = F.linear(norm(x, self.gains["post"], base.eps), self.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, self.down)
            yield F.linear(norm(x, self.gains["final"], base.eps), self.lm_head)

    def save(self, folder, config, base, name, vocab):
        """The folder that speculators writes, without the model's embeddings."""
        h, q, kv = base.hidden, base.heads * base.head_dim, base.kv_heads * base.head_dim
        wq, wk, wv = self.qkv.split([q, kv, kv])
        gate, up = self.gate_up.chunk(2)
        tensors = {"fc": self.fc, "norm": self.gains["final"], "lm_head": self.lm_head, "layers.0.hidden_norm": self.gains["hidden"],
                   "layers.0.input_layernorm": self.gains["input"], "layers.0.post_attention_layernorm": self.gains["post"],
                   "layers.0.self_attn.q_proj": wq, "layers.0.self_attn.k_proj": wk, "layers.0.self_attn.v_proj": wv,
                   "layers.0.self_attn.o_proj": self.o, "layers.0.mlp.gate_proj": gate, "layers.0.mlp.up_proj": up,
                   "layers.0.mlp.down_proj": self.down}
        tensors = {f"{k}.weight": v.detach().bfloat16().contiguous() for k, v in tensors.items()}
        tensors["d2t"] = self.tokens - torch.arange(len(self.tokens))
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, self.tokens, True)
        os.makedirs(folder, exist_ok=True)
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        inner = {k: config[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size",
                                        "rms_norm_eps", "max_position_embeddings", "hidden_act")}
        inner |= {"model_type": "llama", "num_hidden_layers": 1, "head_dim": base.head_dim,
                  "rope_theta": config.get("rope_theta") or config["rope_parameters"]["rope_theta"]}
        stated = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": len(self.tokens),
                  "norm_before_residual": False, "eagle_aux_hidden_state_layer_ids": None, "transformer_layer_config": inner,
                  "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": name}}}
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(stated, f, indent=1)


@torch.no_grad()
def accepted(head, rows, steps):
    """Accepted length over answered tokens, and the share of right drafts of each step, given that those before are right."""
    right = torch.zeros(steps + 1)
    for ids, first, features, _ in rows:
        going = None
        for j, logits in enumerate(head(features, ids, steps)):
            hits = head.tokens[logits.argmax(-1)][:-1] == ids[2 + j:]
            hits[: max(0, first - 1)] = False
            counted = torch.arange(len(hits)) >= first - 1
            # Positions for which every step has a token of the text.
            n = len(ids) - 2 - (steps - 1)
            hits, counted = hits[:n], counted[:n]
            if j == 0:
                right[0] += counted.sum()
            going = hits if going is None else going & hits
            right[1 + j] += going.sum()
    return 1 + (right[1:].sum() / right[0]).item(), [round(x, 3) for x in (right[1:] / right[:-1].clamp(min=1)).tolist()]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--name", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    p.add_argument("--answers", required=True)
    p.add_argument("--test", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--tokens", type=int, default=60_000, help="of the answers that are trained on")
    p.add_argument("--draft-vocab", type=int, default=4096)
    p.add_argument("--length", type=int, default=320)
    p.add_argument("--steps", type=int, default=4, help="drafts of the accepted length")
    p.add_argument("--ttt", type=int, default=3, help="steps that are trained")
    p.add_argument("--minutes", type=float, default=15)
    p.add_argument("--lr", type=float, default=5e-4)
    p.add_argument("--threads", type=int, default=1)
    args = p.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    with open(os.path.join(args.model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    base = Base(args.model, dtype=torch.float32)
    layers = [2, base.layers // 2, base.layers - 3]
    train, total = rows_of(base, args.answers, args.tokens, args.length)
    test, _ = rows_of(base, args.test, 3_000, args.length)
    counts = collections.Counter(t for ids, first in train for t in ids[first:].tolist())
    counts.update({t: 0 for t in range(args.draft_vocab)})
    tokens = torch.tensor(sorted(t for t, _ in counts.most_common(args.draft_vocab)))
    begun = time.time()
    seen = lambda rows: [(ids, first, *observe(base, ids, layers)) for ids, first in rows]
    train, test = seen(train), seen(test)
    print(f"{total} tokens in {len(train)} answers, hidden states after {time.time() - begun:.0f} s", flush=True)
    head, begun = Head(base, tokens), time.time()
    target = base.w["embed_tokens.weight"][tokens]
    optimizer = torch.optim.AdamW(head.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    print(f"before: accepted length {accepted(head, test, args.steps)}", flush=True)
    batch, step, loss_sum, minutes = 4, 0, 0.0, args.minutes
    while (share := (time.time() - begun) / 60 / minutes) < 1:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1, (step + 1) / 20) * (1 - 0.95 * share)
        for i in torch.randint(len(train), (batch,)).tolist():
            ids, first, features, last = train[i]
            loss = 0.0
            for j, logits in enumerate(head(features, ids, args.ttt)):
                # Row i of step j guesses the token behind token 1 + i + j.
                with torch.no_grad():
                    wanted = F.linear(last[1 + j:].float(), target).softmax(-1)
                cross = -(wanted * logits.log_softmax(-1)).sum(-1)
                loss = loss + 0.8 ** j * cross[max(0, first - 1 - j):].mean()
            (loss / batch).backward()
            loss_sum += loss.item() / batch
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 50 == 0:
            print(f"step {step}, {(time.time() - begun) / 60:.1f} min, loss {loss_sum / 50:.3f}", flush=True)
            loss_sum = 0.0
        if step % 200 == 0:
            print(f"accepted length {accepted(head, test, args.steps)}", flush=True)
            head.save(args.out, config, base, args.name, base.vocab)
    head.save(args.out, config, base, args.name, base.vocab)
    print(f"after {step} steps: accepted length {accepted(head, test, args.steps)}, by step given those before", flush=True)


if __name__ == "__main__":
    main()
