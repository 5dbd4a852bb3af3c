/* The seams of step06: which keys a row sees, and where they live.  Every variant is one of these small functions; the
 * kernel calls them and knows nothing else of masks, sequences and pages.
 *
 * A mask is an interval of keys for each row, [first, last), never a matrix.  Both ends rise with the row, so that the
 * first and the last row of a block bound what the whole block sees. */
#ifndef VARIANTS_H
#define VARIANTS_H

#include "../common/attention.h"

typedef struct Interval {
    int first, last; /* keys first .. last - 1; empty if last <= first */
} Interval;

typedef struct Sequence {
    int len_q, len_kv;
    int64_t q_row, kv_row; /* where it starts in packed arrays; 0 in dense ones */
} Sequence;

/* Varlen and dense caches: the lengths of one batch entry, and its place in packed arrays. */
static __device__ inline Sequence sequence(const AttentionParams p, int batch)
{
    Sequence s = {p.seq_q, p.seq_kv, 0, 0};
    if (p.cu_seqlens_q) {
        s.q_row = p.cu_seqlens_q[batch];
        s.len_q = (int)(p.cu_seqlens_q[batch + 1] - s.q_row);
    }
    if (p.cu_seqlens_kv) {
        s.kv_row = p.cu_seqlens_kv[batch];
        s.len_kv = (int)(p.cu_seqlens_kv[batch + 1] - s.kv_row);
    }
    if (p.kv_lens) s.len_kv = (int)p.kv_lens[batch];
    return s;
}

/* GQA and MQA: consecutive query heads share a KV head.  MHA: each has its own. */
static __device__ inline int group_size(const AttentionParams p)
{
    return p.heads / p.kv_heads;
}

/* Heads whose rows share a block: the whole group, unless each head has a block mask of its own. */
static __host__ __device__ inline int heads_together(const AttentionParams *p)
{
    return p->mask_head ? 1 : p->heads / p->kv_heads;
}

static __device__ inline int clamp(int64_t x, int low, int high)
{
    return x < low ? low : x > high ? high : (int)x;
}

/* Causal, window, block-causal: the keys that a query row sees.  Aligned to the bottom right: the last row is across
 * from the last key, row i from key c = i + len_kv - len_q, which is negative for a row before the first key. */
static __device__ inline Interval row_keys(const AttentionParams p, const Sequence s, int row)
{
    const int64_t c = (int64_t)row + s.len_kv - s.len_q;
    Interval keys = {0, s.len_kv};
    if (p.window_left >= 0) keys.first = clamp(c - p.window_left, 0, s.len_kv);
    if (p.window_right >= 0) keys.last = clamp(c + p.window_right + 1, 0, s.len_kv);
    if (p.block_causal > 0) /* c / n blocks before c's own, and that one whole */
        keys.last = clamp(c < 0 ? 0 : (c / p.block_causal + 1) * p.block_causal, 0, keys.last);
    return keys;
}

/* Split-KV: part number `split` of the tiles [first, last); the parts differ by at most one tile and may be empty.  It
 * depends on nothing but its own sequence. */
static __device__ inline Interval split_range(Interval tiles, int split, int splits)
{
    const int64_t count = tiles.last > tiles.first ? tiles.last - tiles.first : 0;
    const Interval part = {tiles.first + (int)(count * split / splits),
                           tiles.first + (int)(count * (split + 1) / splits)};
    return part;
}

/* Block-sparse: entry of the block mask [.., ceil(seq_q / n), ceil(seq_kv / n)] for a row and a key. */
static __device__ inline int block_visible(const AttentionParams p, int batch, int head, int row, int key)
{
    return !p.block_mask || p.block_mask[batch * p.mask_batch + head * p.mask_head +
                                         row / p.mask_block * p.mask_row + key / p.mask_block];
}

/* How many of the block mask's entries for rows [first_row, last_row] and these keys are set: none, some or all. */
typedef enum Visible { VISIBLE_NONE, VISIBLE_SOME, VISIBLE_ALL } Visible;
static __device__ inline Visible tile_visible(const AttentionParams p, int batch, int head, int first_row, int last_row,
                                              Interval keys)
{
    int set = 0, entries = 0;
    if (!p.block_mask) return VISIBLE_ALL;
    for (int row = first_row / p.mask_block; row <= last_row / p.mask_block; row++)
        for (int key = keys.first / p.mask_block; key <= (keys.last - 1) / p.mask_block; key++, entries++)
            set += block_visible(p, batch, head, row * p.mask_block, key * p.mask_block);
    return set == 0 ? VISIBLE_NONE : set == entries ? VISIBLE_ALL : VISIBLE_SOME;
}

/* Paged: offset of a key's row in the pool, through the block table; and in a dense or packed array.  In elements. */
static __device__ inline int64_t kv_row(const AttentionParams p, const Sequence s, const Strides stride, int batch,
                                        int key)
{
    if (!p.block_table) return batch * stride.batch + (s.kv_row + key) * stride.row;
    const int page = p.block_table[(int64_t)batch * p.max_pages + key / p.page_size];
    return page * stride.batch + key % p.page_size * stride.row;
}

/* Split-KV: the parts' results in the workspace, f32: O [splits, rows, D], LSE [splits, rows]; at: offset in LSE. */
static __host__ __device__ inline int64_t lse_rows(const AttentionParams *p)
{
    return p->cu_seqlens_q ? p->heads * p->lse_stride.head : p->batch * p->lse_stride.batch;
}
static __device__ inline float *partial_o(const AttentionParams *p, int split, int64_t at)
{
    return (float *)p->workspace + (split * lse_rows(p) + at) * p->head_dim;
}
static __device__ inline float *partial_lse(const AttentionParams *p, int split, int64_t at)
{
    return (float *)p->workspace + p->num_splits * lse_rows(p) * p->head_dim + split * lse_rows(p) + at;
}

/* Softcap: cap * tanh(scaled score / cap), as an unscaled score again. */
static __device__ inline float soft_cap(const AttentionParams p, float s)
{
    return p.softcap > 0 ? p.softcap / p.scale * tanhf(s * (p.scale / p.softcap)) : s;
}

/* Sink: one more logit in the denominator.  The larger of the two is the new reference point, or exp overflows.
 * In: row_max (of scaled scores) and row_sum; out: what O is multiplied with, and LSE.  O without a key is 0. */
static __device__ inline float finish_row(float max_scaled, float row_sum, float sink, float *lse)
{
    const float max = fmaxf(max_scaled, sink);
    const float finite_max = max == -INFINITY ? 0 : max; /* -inf - -inf would be NaN */
    const float own = expf(max_scaled - finite_max), sum = row_sum * own + expf(sink - finite_max);
    *lse = sum == 0 ? -INFINITY : finite_max + logf(sum);
    return sum == 0 ? 0 : own / sum;
}

#endif
