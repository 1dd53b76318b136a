"""Goldens of EAGLE-3 heads for tests/it/heads.rs, made by speculators, which shares no code with dmschat.

    python3 make_eagle.py      # speculators 0.9.0, transformers 5.17, torch 2.15, CPU; a minute

For the tiny checkpoints beside this script, a random head each: as speculators saves it, and in the form of EAGLE's own training
(`midlayer.*`, no embeddings). In golden.json: the tokens of a text, the hidden states [rows, hidden] that the head's layer leaves,
the tokens that it guesses behind each row, and those that it guesses one after another behind the last one, from its own hidden
states. Deterministic: fixed seeds, one thread, f32.
"""

import json
import os

import torch
import transformers
from safetensors.torch import save_file
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.version import version
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
N_TOKENS, GUESSES, DRAFT_VOCAB = 24, 5, 80
LAYERS = [1, 2, 3]
# The two most probable tokens closer than this would make a guess depend on rounding.
MIN_GAP = 1e-3
CASES = [("speculators", "qwen3_gqa", dict(norm_before_residual=True, fc_norm=True, norm_output=True)),
         ("plain", "llama_tied_llama3", {})]


def inputs_of_layers(model, tokens):
    """Hidden states before the layers of LAYERS, concatenated."""
    seen = {}
    hooks = [layer.register_forward_hook(lambda m, a, out, l=l: seen.update({l + 1: out[0] if isinstance(out, tuple) else out}))
             for l, layer in enumerate(model.model.layers)]
    with torch.no_grad():
        model(input_ids=torch.tensor([tokens]))
    for hook in hooks:
        hook.remove()
    return torch.cat([seen[l].reshape(1, len(tokens), -1) for l in LAYERS], dim=-1)


def layer(head, hidden, ids):
    """The head's layer over rows of hidden states [1, n, hidden] and token ids."""
    n = hidden.shape[1]
    x = torch.cat([head.embed_tokens(torch.tensor([ids])), hidden], dim=-1)
    at = 1 + torch.arange(n)[None]
    mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1)[None, None]
    out = head.layers[0](x, attention_mask=mask, position_ids=at, position_embeddings=head.rotary_emb(x, at))
    return out[0] if isinstance(out, tuple) else out


def outputs(head, out):
    """Logits, and the rows that are fed back."""
    normed = head.norm(out)
    return head.lm_head(normed), normed if head.config.norm_output else out


def most_probable(head, logits):
    top = logits.topk(2).values
    assert (top[..., 0] - top[..., 1]).min() > MIN_GAP, "two tokens are almost equally likely: take another seed"
    ids = logits.argmax(-1)
    return (ids + head.d2t[ids]).tolist()


def make(kind, base, extra, seed):
    model = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, base), dtype=torch.float32, attn_implementation="eager").eval()
    with open(os.path.join(HERE, base, "golden.json")) as f:
        tokens = json.load(f)["tokens"][:N_TOKENS]
    torch.manual_seed(seed)
    inner = type(model.config).from_dict(model.config.to_dict() | dict(num_hidden_layers=1, layer_types=["full_attention"]))
    inner._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=inner, draft_vocab_size=DRAFT_VOCAB, eagle_aux_hidden_state_layer_ids=LAYERS,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3", proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=GUESSES)],
            default_proposal_method="greedy", verifier=VerifierConfig(name_or_path=base, architectures=[])), **extra)
    head = Eagle3DraftModel(config).eval()
    known = torch.randperm(model.config.vocab_size)[:DRAFT_VOCAB].sort().values
    with torch.no_grad():
        for p in head.parameters():
            value = torch.randn(p.shape)
            p.copy_(1.5 * value / p.shape[-1] ** 0.5 if p.dim() == 2 else 1 + 0.2 * value)
        head.embed_tokens.weight.copy_(model.get_input_embeddings().weight)
        for p in head.parameters():
            p.copy_(p.to(torch.bfloat16).float())
        head.d2t = known - torch.arange(DRAFT_VOCAB)
        head.t2d = torch.zeros(model.config.vocab_size, dtype=torch.bool)
        head.t2d[known] = True

    folder = os.path.join(HERE, "eagle", kind)
    os.makedirs(folder, exist_ok=True)
    tensors = {k: (v if k in ("d2t", "t2d") else v.to(torch.bfloat16)).contiguous()
               for k, v in head.state_dict().items() if not k.startswith("verifier_")}
    stated = json.loads(json.dumps(config.to_dict(), default=lambda x: x.to_diff_dict() if hasattr(x, "to_diff_dict") else str(x)))
    if kind == "plain":
        del tensors["embed_tokens.weight"]
        tensors = {k.replace("layers.0.", "midlayer."): v for k, v in tensors.items()}
        stated = inner.to_dict() | dict(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=DRAFT_VOCAB,
                                        eagle_config=dict(eagle_aux_hidden_state_layer_ids=[l - 1 for l in LAYERS]))
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(stated, f, indent=1, sort_keys=True)

    hidden, ids = inputs_of_layers(model, tokens)[:, :-1], tokens[1:]
    with torch.no_grad():
        # speculators' own forward, of one step.
        theirs = head(hidden_states=hidden, input_ids=torch.tensor([ids]), document_ids=torch.zeros(1, len(ids), dtype=torch.long),
                      ttt_steps=1)[0][0]
        if head.fc_norm is not None:
            hidden = torch.cat([norm(part) for norm, part in zip(head.fc_norm, hidden.chunk(3, -1))], -1)
        hidden = head.fc(hidden)
        out = layer(head, hidden, ids)
        logits, back = outputs(head, out)
        assert (logits.argmax(-1)[0] == theirs).all(), "the composition is not speculators'"
        behind = most_probable(head, logits[0])
        guesses = [behind[-1]]
        while len(guesses) < GUESSES:
            hidden, ids = torch.cat([hidden, back[:, -1:]], 1), ids + [guesses[-1]]
            logits, back = outputs(head, layer(head, hidden, ids))
            guesses.append(most_probable(head, logits[0, -1:])[0])
    golden = dict(base=base, tokens=tokens, behind=behind, guesses=guesses, hidden=[round(v, 6) for v in out[0].flatten().tolist()],
                  versions=dict(speculators=version, transformers=transformers.__version__, torch=torch.__version__))
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump(golden, f)
    print(kind, behind, guesses)


def main():
    torch.set_num_threads(1)
    for i, (kind, base, extra) in enumerate(CASES):
        make(kind, base, extra, 700 + 20 * i)


if __name__ == "__main__":
    main()
