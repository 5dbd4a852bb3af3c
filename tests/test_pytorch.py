"""Step 06 beside PyTorch: every variant that both have, O and LSE.

In float64 on the same inputs, PyTorch is one more reference, written by others: a step must be within its own bound of it.
PyTorch's own 16-bit kernels are off by as much as the step may be, so that the two may be twice the bound apart; they
need a GPU.  Skipped where there is no PyTorch."""
import numpy as np
import pytest
from conftest import reference
from problem import Problem
from test_variants import OPTIONS, combine, generate

torch = pytest.importorskip("torch", "2.9", reason="compares with PyTorch 2.9 or newer")
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.attention.bias import causal_lower_right  # noqa: E402
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as sdpa  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="PyTorch has no GPU here")


def tensor(array, dtype=None):
    """On the device; uint16 arrays hold bfloat16."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(DEVICE, dtype)
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE, dtype)


def assert_near(result, theirs, expected, factor):
    """O and, where PyTorch tells it, LSE."""
    o, lse, _ = result
    theirs = [None if x is None else x.double().cpu().numpy() for x in theirs]
    o = reference.from_bf16(o) if o.dtype == np.uint16 else o.astype(np.float64)
    error = np.abs(o - theirs[0])
    assert np.all(error <= factor * expected.bound_o), f"o: worst {np.nanmax(error / expected.bound_o)} x bound"
    if theirs[1] is None:
        return
    finite = np.isfinite(lse)
    assert np.array_equal(lse[~finite], theirs[1][~finite])
    error = np.abs(lse[finite] - theirs[1][finite])
    assert np.all(error <= factor * expected.bound_lse[finite]), f"lse: worst {np.nanmax(error)}"


# ---- FlexAttention: each variant as a function of the place in the matrix of scores ----

def in_flex(problem, attend, dtype):
    """(o, lse) of a Problem.  Packed sequences are one long one, in which a row sees the keys of its own document;
    pages are put side by side, and keys beyond a length are hidden: what lies there may be NaN, which 0 would not hide."""
    indices = {name: torch.from_numpy(x.astype(np.int64)).to(DEVICE) for name, x in problem.indices.items()}
    masks = problem.masks
    q, k, v = (tensor(x, dtype) for x in (problem.q, problem.k, problem.v))
    if "cu_seqlens_q" in indices: # [T, H, D] -> [1, H, T, D]
        q = q.swapaxes(0, 1)[None]
    if "cu_seqlens_kv" in indices:
        k, v = (x.swapaxes(0, 1)[None] for x in (k, v))
    if "block_table" in indices: # [B, slots, page size, H, D] -> [B, H, keys, D]
        pages = indices["block_table"].clamp(min=0)
        k, v = (x[pages].flatten(1, 2).swapaxes(1, 2) for x in (k, v))
    k, v = k.nan_to_num(), v.nan_to_num()
    rows, keys = q.shape[2], k.shape[2]
    across, first, last = places(indices, len(k), rows, keys)
    if "cu_seqlens_q" in indices and "block_table" in indices: # one long sequence of keys, too
        first, last, across = (x + keys * document_of(indices["cu_seqlens_q"], rows) for x in (first, last, across))
        k, v = (x.swapaxes(0, 1).flatten(1, 2)[None] for x in (k, v))
        keys = k.shape[2]

    left, right = masks.get("window", (-1, -1))
    right = 0 if masks.get("causal") else right
    block, size = masks.get("block_causal", 0), masks.get("block_size", 0)
    block_mask = torch.from_numpy(np.asarray(masks.get("block_mask", [[True]]))).to(DEVICE)
    block_mask = block_mask.expand(len(q), q.shape[1], *block_mask.shape[-2:]).contiguous()

    def visible(b, h, i, j):
        c, start = across[b, i], first[b, i]
        seen = (j >= start) & (j < last[b, i])
        if left >= 0:
            seen = seen & (j >= c - left)
        if right >= 0:
            seen = seen & (j <= c + right)
        if block:
            seen = seen & (c >= start) & ((j - start) // block <= (c - start) // block)
        if size:
            seen = seen & block_mask[b, h, i // size, j // size]
        return seen

    cap = masks.get("softcap")

    def capped(score, b, h, i, j):
        return cap * torch.tanh(score / cap)

    o, more = attend(q, k, v, score_mod=capped if cap else None, scale=masks.get("scale"),
                    block_mask=create_block_mask(visible, len(q), q.shape[1], rows, keys, device=DEVICE),
                    enable_gqa=q.shape[1] != k.shape[1], return_aux=AuxRequest(lse=True))
    lse = more.lse
    if "sinks" in masks: # one more logit: it takes its part of every row
        sinks = tensor(masks["sinks"], lse.dtype)[:, None]
        o, lse = o * torch.sigmoid(lse - sinks).nan_to_num(0)[..., None], torch.logaddexp(lse, sinks)
    if "cu_seqlens_q" in indices:
        o, lse = o[0].swapaxes(0, 1), lse[0]
    return o, lse


def document_of(starts, rows):
    """[1, rows]: which sequence a row belongs to."""
    return (torch.searchsorted(starts, torch.arange(rows, device=DEVICE), right=True) - 1)[None]


def places(indices, batch, rows, keys):
    """Of each query row [B, rows]: the key across from it, and the first and one past the last key of its sequence."""
    i = torch.arange(rows, device=DEVICE)[None]
    lens = indices.get("kv_lens", torch.full((batch,), keys, device=DEVICE))
    if "cu_seqlens_q" not in indices:
        return i + lens[:, None] - rows, 0 * i + 0 * lens[:, None], 0 * i + lens[:, None]
    starts, document = indices["cu_seqlens_q"], document_of(indices["cu_seqlens_q"], rows)
    ends = starts[document + 1]
    if "cu_seqlens_kv" not in indices:
        return i + lens[document] - ends, 0 * i, lens[document]
    first, last = indices["cu_seqlens_kv"][document], indices["cu_seqlens_kv"][document + 1]
    return i - ends + last, first, last


ALONE = [{option} for option in OPTIONS]
TOGETHER = [{"causal", "gqa", "varlen", "sink", "splits"}, {"window", "gqa", "paged", "softcap"},
            {"block-causal", "block-mask", "kv-lens", "bshd"}, {"varlen", "paged", "causal", "window", "sink"},
            {"block-mask", "paged", "gqa", "causal"}]


@pytest.mark.parametrize("options", ALONE + TOGETHER, ids=lambda options: "+".join(sorted(options)))
@pytest.mark.parametrize("bf16", [False, True])
def test_flex_attention_in_float64(options, bf16, runner):
    problem = combine(options, [(100, 150), (37, 211), (90, 60)], bf16=bf16)
    assert_near(problem.run(runner, "--no-observe"), in_flex(problem, flex_attention, torch.float64), problem.expected(), 1)


# ---- scaled_dot_product_attention ----

def in_sdpa(q, k, v, dtype=None, **arguments):
    return sdpa(*(tensor(x, dtype) for x in (q, k, v)), enable_gqa=q.shape[1] != k.shape[1], **arguments), None


def diagonals(rows, keys, left, right):
    """A window as a matrix of booleans; torch.tril and triu count diagonals from the upper left."""
    ones = torch.ones(rows, keys, dtype=torch.bool, device=DEVICE)
    ones = ones if left < 0 else ones.triu(keys - rows - left)
    return ones if right < 0 else ones.tril(keys - rows + right)


@pytest.mark.parametrize("seq_q, seq_kv, masks, arguments", [
    (100, 150, {}, lambda rows, keys: {}),
    (150, 150, dict(causal=True), lambda rows, keys: dict(is_causal=True)),
    (100, 150, dict(causal=True), lambda rows, keys: dict(attn_mask=causal_lower_right(rows, keys))),
    (150, 100, dict(causal=True), lambda rows, keys: dict(attn_mask=diagonals(rows, keys, -1, 0))),
    (100, 150, dict(window=(30, 20)), lambda rows, keys: dict(attn_mask=diagonals(rows, keys, 30, 20))),
    (100, 150, dict(scale=-0.3), lambda rows, keys: dict(scale=-0.3))])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_sdpa_in_float64(seq_q, seq_kv, masks, arguments, kv_heads, runner):
    arrays = generate(51, 2, 4, kv_heads, seq_q, seq_kv, 64)
    problem = Problem(*arrays, **masks)
    with sdpa_kernel(SDPBackend.MATH):
        theirs = in_sdpa(*arrays, dtype=torch.float64, **arguments(seq_q, seq_kv))
    assert_near(problem.run(runner, "--no-observe"), theirs, problem.expected(), 1)


# ---- PyTorch's own 16-bit kernels ----

@on_gpu
@pytest.mark.parametrize("seq_q, seq_kv, causal", [(300, 300, False), (300, 300, True), (100, 400, False), (100, 400, True)])
@pytest.mark.parametrize("D, bf16", [(64, False), (128, False), (64, True)])
def test_flash_attention_2(seq_q, seq_kv, causal, D, bf16, runner):
    """The operator below scaled_dot_product_attention: it tells LSE, and its causal mask is aligned as ours is."""
    arrays = generate(52, 2, 4, 4, seq_q, seq_kv, D, bf16=bf16)
    problem = Problem(*arrays, **dict(causal=True) if causal else {})
    theirs = torch.ops.aten._scaled_dot_product_flash_attention(*map(tensor, arrays), 0.0, causal)
    assert_near(problem.run(runner), (theirs[0], theirs[1][..., :seq_q]), problem.expected(), 2)


@on_gpu
@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION],
                         ids=lambda backend: backend.name)
@pytest.mark.parametrize("seq_kv, causal", [(256, False), (256, True), (512, "lower right")])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_sdpa_backends(backend, seq_kv, causal, kv_heads, runner):
    arrays = generate(53, 2, 4, kv_heads, 256, seq_kv, 64)
    problem = Problem(*arrays, **dict(causal=True) if causal else {})
    arguments = dict(is_causal=True) if causal is True else dict(attn_mask=causal_lower_right(256, seq_kv)) if causal else {}
    try:
        with sdpa_kernel(backend):
            theirs = in_sdpa(*arrays, **arguments)
    except RuntimeError as error:
        if "No available kernel" not in str(error) and "No viable backend" not in str(error):
            raise
        pytest.skip(f"{backend.name} does not take this")
    assert_near(problem.run(runner), theirs, problem.expected(), 2)


@pytest.fixture(scope="module")
def compiled_flex():
    if DEVICE == "cpu":
        pytest.skip("PyTorch has no GPU here")
    compiled = torch.compile(flex_attention, dynamic=False)
    try:
        compiled(*(torch.zeros(1, 1, 256, 64, dtype=torch.float16, device=DEVICE) for _ in range(3)))
    except Exception as error: # a compiler or a header that is not installed
        pytest.skip(f"FlexAttention cannot be compiled here: {str(error).splitlines()[0]}")
    return compiled


@pytest.mark.parametrize("options", [{"causal"}, {"window", "gqa"}, {"softcap", "sink"}, {"varlen", "causal"}],
                         ids=lambda options: "+".join(sorted(options)))
def test_compiled_flex_attention(options, compiled_flex, runner):
    problem = combine(options, [(256, 384), (128, 256), (256, 128)])
    assert_near(problem.run(runner), in_flex(problem, compiled_flex, None), problem.expected(), 2)
