"""Goldens of Qwen3.5's layer for multi-token prediction, for tests/it/heads.rs, made of transformers' own layers.

    python3 make_mtp.py      # transformers 5.17, torch 2.11 or 2.15, CPU; some seconds

transformers does not compute that layer, but has all of its parts: as vLLM (qwen3_5_mtp) puts them together, `fc` of the normed
embedding of the next token and the normed output of the model, a layer of full attention, a norm, and the model's output head;
the normed output goes on to the next step. For the checkpoint `qwen3_5` beside this script: mtp.safetensors with random tensors,
and golden.json as make_eagle.py writes it. Deterministic: fixed seeds, one thread, f32.
"""

import json
import os

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

HERE = os.path.dirname(os.path.abspath(__file__))
BASE, SEED = "qwen3_5", 901
N_TOKENS, GUESSES = 24, 5
# The two most probable tokens closer than this would make a guess depend on rounding.
MIN_GAP = 1e-3


class Predictor(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        h, eps = config.hidden_size, config.rms_norm_eps
        self.fc = torch.nn.Linear(2 * h, h, bias=False)
        one = type(config).from_dict(config.to_dict() | dict(num_hidden_layers=1, layer_types=["full_attention"]))
        one._attn_implementation = "eager"
        self.layers = torch.nn.ModuleList([Qwen3_5DecoderLayer(one, 0)])
        self.norm, self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = (Qwen3_5RMSNorm(h, eps=eps) for _ in range(3))

    def forward(self, model, hidden, ids):
        """The layer's output for rows of hidden states [1, n, hidden] and the tokens behind them."""
        n = hidden.shape[1]
        embedded = model.get_input_embeddings()(torch.tensor([ids]))
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], -1))
        at = torch.arange(n)[None]
        mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1)[None, None]
        # Positions in time, height and width are the same for text.
        angles = model.model.rotary_emb(x, at.expand(3, 1, n))
        out = self.layers[0](x, position_embeddings=angles, attention_mask=mask, position_ids=at)
        return out[0] if isinstance(out, tuple) else out


def most_probable(logits):
    top = logits.topk(2).values
    assert (top[..., 0] - top[..., 1]).min() > MIN_GAP, "two tokens are almost equally likely: take another seed"
    return logits.argmax(-1).tolist()


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, BASE), dtype=torch.float32, attn_implementation="eager").eval()
    with open(os.path.join(HERE, BASE, "golden.json")) as f:
        tokens = json.load(f)["tokens"][:N_TOKENS]
    torch.manual_seed(SEED)
    head = Predictor(model.config).eval()
    for p in head.parameters():
        value = torch.randn(p.shape)
        # Weights of norms are stored less 1.
        value = 1.4 * value / p.shape[-1] ** 0.5 if p.dim() == 2 else 0.2 * value
        p.copy_(value.to(torch.bfloat16).float())
    folder = os.path.join(HERE, "mtp")
    os.makedirs(folder, exist_ok=True)
    tensors = {f"mtp.{name}": p.to(torch.bfloat16).contiguous() for name, p in head.state_dict().items()}
    save_file(tensors, os.path.join(folder, "mtp.safetensors"), metadata={"format": "pt"})

    # Behind the model's final norm.
    hidden, ids = model.model(input_ids=torch.tensor([tokens])).last_hidden_state[:, :-1], tokens[1:]
    out = head(model, hidden, ids)
    behind = most_probable(model.lm_head(head.norm(out))[0])
    guesses, back = [behind[-1]], head.norm(out)
    while len(guesses) < GUESSES:
        hidden, ids = torch.cat([hidden, back[:, -1:]], 1), ids + [guesses[-1]]
        back = head.norm(head(model, hidden, ids))
        guesses.append(most_probable(model.lm_head(back)[0, -1:])[0])
    golden = dict(base=BASE, tokens=tokens, behind=behind, guesses=guesses, hidden=[round(v, 6) for v in out.flatten().tolist()],
                  versions=dict(transformers=transformers.__version__, torch=torch.__version__))
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump(golden, f)
    print(sorted(tensors), behind, guesses)


if __name__ == "__main__":
    main()
