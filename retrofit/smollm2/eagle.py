"""Train an EAGLE-3 head for a model on its own answers, and write it as `speculators` does.

    python generate.py --model FOLDER --split train --count 9216 --batch 3072 --most 512 --out out/train.jsonl
    python generate.py --model FOLDER --split train --count 6144 --batch 3072 --most 512 --temperature 0.4 --out out/cool.jsonl
    python generate.py --model FOLDER --split test --count 128 --batch 128 --most 256 --temperature 0 --out out/test.jsonl
    python eagle.py --model FOLDER --answers out/train.jsonl out/cool.jsonl --test out/test.jsonl --minutes 9 --out out/head
    dmschat -m FOLDER --draft ./out/head

One decoder layer over the token's embedding and the sum of maps of three layers' inputs: 2, n/2 and n - 3, or `--layers`, where n
is the last layer's output. Step j of the training goes on from the head's own output of step j - 1, with the text's tokens, as when
it drafts. Loss: cross entropy with the model's distribution over the head's tokens, which are the most frequent ones of the answers.
The accepted length is that of greedy drafts against the text: 1 + the mean number of first drafts, of `--steps`, that are the text's
next tokens. On a CPU take fewer answers (`--tokens 30000 --length 320 --batch 4 --draft-vocab 4096`), and more time.
"""
import argparse
import bisect
import collections
import itertools
import json
import os
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from generate import turn
from model import SYSTEM, Base, attend_blocks, grouped, norm, rotate


def rows_of(base, path, most, length):
    """Answers of at most `length` tokens, about `most` in all: ids [N, length] padded with 0, and whether a token was answered."""
    with open(path, encoding="utf-8") as f:
        lines = [line for line in map(json.loads, f) if line["user"] is not None]
    prompts = base.encode_all(turn("system", SYSTEM) + turn("user", x["user"]) + "<|im_start|>assistant\n" for x in lines)
    answers = base.encode_all(x["answer"] + "<|im_end|>" for x in lines)
    rows = [(len(prompt), (prompt + answer)[:length]) for prompt, answer in zip(prompts, answers)]
    totals = list(itertools.accumulate(len(ids) for _, ids in rows))
    rows = rows[: bisect.bisect_left(totals, most) + 1]
    ids, answered = torch.zeros(len(rows), length, dtype=torch.long), torch.zeros(len(rows), length, dtype=torch.bool)
    for i, (first, row) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        answered[i, first: len(row)] = True
    return ids, answered


@torch.no_grad()
def observe(base, ids, layers):
    """ids [B, T] -> inputs of the layers [B, T, 3 hidden], normed last hidden states [B, T, hidden]."""
    seen = []

    def attend(layer, x, q, k, v):
        if layer in layers:
            seen.append(x)
        return attend_blocks(q, k, v)

    last = base.hidden_states(ids, attend)
    if base.layers in layers:
        seen.append(last)
    return torch.cat(seen, -1).bfloat16(), norm(last, base.w["norm.weight"], base.eps).bfloat16()


class Head(torch.nn.Module):
    def __init__(self, base, tokens):
        super().__init__()
        h, qkv, ffn = base.hidden, (base.heads + 2 * base.kv_heads) * base.head_dim, base.layer[0]["mlp.gate_proj"].shape[0]
        linear = lambda out, of: torch.nn.Parameter(torch.randn(out, of, device=base.device) * of ** -0.5)
        self.base = [base]
        self.fc, self.qkv, self.o = linear(h, 3 * h), linear(qkv, 2 * h), linear(h, h)
        self.gate_up, self.down = linear(2 * ffn, h), linear(h, ffn)
        self.gains = torch.nn.ParameterDict({n: torch.nn.Parameter(torch.ones(h, device=base.device)) for n in ("input", "hidden", "post", "final")})
        self.tokens = tokens.to(base.device)
        # Begins as the model's last layer behind its last hidden state.
        last = base.layer[-1]
        with torch.no_grad():
            self.fc.mul_(0.1)[:, 2 * h:] += torch.eye(h, device=base.device)
            self.qkv.mul_(0.3)[:, h:] += torch.cat([last[f"self_attn.{n}_proj"] for n in "qkv"])
            self.o.copy_(last["self_attn.o_proj"])
            self.gate_up.copy_(torch.cat([last["mlp.gate_proj"], last["mlp.up_proj"]]))
            self.down.copy_(last["mlp.down_proj"])
            self.gains["hidden"].copy_(last["input_layernorm"])
            self.gains["post"].copy_(last["post_attention_layernorm"])
            self.gains["final"].copy_(base.w["norm.weight"])
            self.gains["input"].fill_(1.0)
        self.lm_head = torch.nn.Parameter(base.w["embed_tokens.weight"][self.tokens].float())

    def forward(self, features, ids, steps):
        """features [B, T, 3 hidden] and ids [B, T]: yields logits [B, T - 1 - j, tokens] of each step j."""
        base, t = self.base[0], ids.shape[1] - 1
        x, keys, values = F.linear(features[:, :-1].float(), self.fc), [], []
        future = torch.ones(t, t, dtype=torch.bool, device=ids.device).triu(1)
        for j in range(steps):
            n = t - j
            x = x[:, :n]
            e = norm(base.embed(ids[:, 1 + j:]).float(), self.gains["input"], base.eps)
            both = torch.cat([e, norm(x, self.gains["hidden"], base.eps)], -1)
            q, k, v = F.linear(both, self.qkv).split([base.heads * base.head_dim] + 2 * [base.kv_heads * base.head_dim], -1)
            q, k, v = [y.unflatten(-1, (-1, base.head_dim)).transpose(1, 2) for y in (q, k, v)]
            cos, sin = base.cos[1 + j: 1 + t], base.sin[1 + j: 1 + t]
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            keys.append(k)
            values.append(v)
            q = grouped(q, base.kv_heads)
            scores = (q @ keys[0][:, :, None, :n].transpose(-1, -2)).float().masked_fill(future[:n, :n], float("-inf"))
            own = [(q * past[:, :, None, :n]).float().sum(-1, keepdim=True) for past in keys[1:]]
            p = (torch.cat([scores, *own], -1) * base.head_dim ** -0.5).softmax(-1).to(v.dtype)
            out = p[..., :n] @ values[0][:, :, None, :n]
            for i, past in enumerate(values[1:]):
                out = out + p[..., n + i, None] * past[:, :, None, :n]
            x = x + F.linear(out.flatten(1, 2).transpose(1, 2).flatten(2), self.o)
            gate, up = F.linear(norm(x, self.gains["post"], base.eps), self.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, self.down)
            yield F.linear(norm(x, self.gains["final"], base.eps), self.lm_head)

    def save(self, folder, config, base, name, vocab, layers):
        """The folder that speculators writes, without the model's embeddings."""
        h, q, kv = base.hidden, base.heads * base.head_dim, base.kv_heads * base.head_dim
        wq, wk, wv = self.qkv.split([q, kv, kv])
        gate, up = self.gate_up.chunk(2)
        tensors = {"fc": self.fc, "norm": self.gains["final"], "lm_head": self.lm_head, "layers.0.hidden_norm": self.gains["hidden"],
                   "layers.0.input_layernorm": self.gains["input"], "layers.0.post_attention_layernorm": self.gains["post"],
                   "layers.0.self_attn.q_proj": wq, "layers.0.self_attn.k_proj": wk, "layers.0.self_attn.v_proj": wv,
                   "layers.0.self_attn.o_proj": self.o, "layers.0.mlp.gate_proj": gate, "layers.0.mlp.up_proj": up,
                   "layers.0.mlp.down_proj": self.down}
        tensors = {f"{k}.weight": v.detach().bfloat16().contiguous().cpu() for k, v in tensors.items()}
        tokens = self.tokens.cpu()
        tensors["d2t"] = tokens - torch.arange(len(tokens))
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, tokens, True)
        os.makedirs(folder, exist_ok=True)
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        inner = {k: config[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size",
                                        "rms_norm_eps", "max_position_embeddings", "hidden_act")}
        inner |= {"model_type": "llama", "num_hidden_layers": 1, "head_dim": base.head_dim,
                  "rope_theta": config.get("rope_theta") or config["rope_parameters"]["rope_theta"]}
        stated = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": len(self.tokens),
                  "norm_before_residual": False, "eagle_aux_hidden_state_layer_ids": layers, "transformer_layer_config": inner,
                  "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": name}}}
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(stated, f, indent=1)


@torch.no_grad()
def accepted(head, rows, steps, batch=32):
    """Accepted length over answered tokens, and the share of right drafts of each step, given that those before are right."""
    right = torch.zeros(steps + 1)
    for ids, answered, features, _ in zip(*(x.split(batch) for x in rows)):
        # Positions for which every step has a token of the answer; step j at i guesses token 2 + i + j.
        n = ids.shape[1] - 1 - steps
        going = answered[:, 1 + steps:] & answered[:, 1: 1 + n]
        right[0] += going.sum().item()
        for j, logits in enumerate(head(features, ids, steps)):
            going = going & (head.tokens[logits[:, :n].argmax(-1)] == ids[:, 2 + j: 2 + j + n])
            right[1 + j] += going.sum().item()
    return 1 + (right[1:].sum() / right[0]).item(), [round(x, 3) for x in (right[1:] / right[:-1].clamp(min=1)).tolist()]


def loss_of(head, rows, steps, target):
    """Mean cross entropy with the model's distribution over the head's tokens; step j weighs 0.8^j."""
    ids, answered, features, last = rows
    loss = 0.0
    for j, logits in enumerate(head(features, ids, steps)):
        # Row i of step j guesses the token behind token 1 + i + j.
        counted = answered[:, 1 + j:].clone()
        counted[:, :-1] |= answered[:, 2 + j:]
        with torch.no_grad():
            wanted = F.linear(last[:, 1 + j:][counted].to(target.dtype), target).float().softmax(-1)
        loss = loss - 0.8 ** j * (wanted * logits[counted].float().log_softmax(-1)).sum(-1).mean()
    return loss


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--name", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    p.add_argument("--answers", required=True, nargs="+")
    p.add_argument("--test", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--tokens", type=int, default=8_000_000, help="of the answers that are trained on")
    p.add_argument("--draft-vocab", type=int, default=8192)
    p.add_argument("--layers", type=int, nargs=3, help="whose inputs are read, without it 2, n/2 and n - 3")
    p.add_argument("--length", type=int, default=448)
    p.add_argument("--steps", type=int, default=4, help="drafts of the accepted length")
    p.add_argument("--ttt", type=int, default=4, help="steps that are trained")
    p.add_argument("--batch", type=int, default=48)
    p.add_argument("--minutes", type=float, default=12)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--threads", type=int, default=torch.get_num_threads())
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = p.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    with open(os.path.join(args.model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    gpu = args.device != "cpu"
    base = Base(args.model, args.device, dtype=torch.bfloat16 if gpu else torch.float32)
    layers = args.layers or [2, base.layers // 2, base.layers - 3]
    parts = [rows_of(base, path, args.tokens // len(args.answers), args.length) for path in args.answers]
    train = tuple(torch.cat(x) for x in zip(*parts))
    test = rows_of(base, args.test, 60_000, args.length)
    counts = collections.Counter(train[0][train[1]].tolist())
    counts.update({t: 0 for t in range(args.draft_vocab)})
    tokens = torch.tensor(sorted(t for t, _ in counts.most_common(args.draft_vocab)))
    share = sum(counts[t] for t in tokens.tolist()) / max(1, counts.total())
    begun = time.time()

    def seen(rows):
        ids, answered = (x.to(base.device) for x in rows)
        parts = [observe(base, x, layers) for x in ids.split(args.batch)]
        return ids, answered, torch.cat([f for f, _ in parts]), torch.cat([x for _, x in parts])

    train, test = seen(train), seen(test)
    print(f"{train[1].sum()} answered tokens in {len(train[0])} answers, {share:.2%} of them in the head's vocabulary, "
          f"hidden states after {time.time() - begun:.0f} s", flush=True)
    head = Head(base, tokens)
    target = base.w["embed_tokens.weight"][head.tokens]
    optimizer = torch.optim.AdamW(head.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)
    mixed = torch.autocast("cuda", torch.bfloat16, enabled=gpu)
    print(f"before: accepted length {accepted(head, test, args.steps)}", flush=True)
    step, loss_sum, begun = 0, 0.0, time.time()
    while (share := (time.time() - begun) / 60 / args.minutes) < 1:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1, (step + 1) / 50) * (1 - 0.95 * share)
        chosen = torch.randint(len(train[0]), (args.batch,), device=base.device)
        with mixed:
            loss = loss_of(head, [x[chosen] for x in train], args.ttt, target)
        loss.backward()
        loss_sum += loss.item()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 100 == 0:
            print(f"step {step}, {(time.time() - begun) / 60:.1f} min, loss {loss_sum / 100:.3f}", flush=True)
            loss_sum = 0.0
        if step % 1000 == 0:
            print(f"accepted length {accepted(head, test, args.steps)}", flush=True)
            head.save(args.out, config, base, args.name, base.vocab, args.layers)
    head.save(args.out, config, base, args.name, base.vocab, args.layers)
    print(f"after {step} steps: accepted length {accepted(head, test, args.steps)}, by step given those before", flush=True)


if __name__ == "__main__":
    main()
