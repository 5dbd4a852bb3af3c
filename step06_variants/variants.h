/* The seams of step06: which keys a row sees, and where they live.  Every variant is one of these small functions; the
 * kernel calls them and knows nothing else of masks, sequences and pages.
 *
 * A mask is an interval of keys for each row, [first, last), never a matrix.  Both ends rise with the row, so that the
 * first and the last row of a block bound what the whole block sees.  A block mask takes keys out of the interval. */
#ifndef VARIANTS_H
#define VARIANTS_H

#include "../common/attention.h"
#include "../common/ptx.h"

typedef struct Interval {
    int first, last; /* first .. last - 1; empty if last <= first */
} Interval;

static __host__ __device__ inline int clamp(int64_t x, int low, int high)
{
    return x < low ? low : x > high ? high : (int)x;
}

/* ---- interval: which keys ---- */

typedef struct Sequence {
    int batch, len_q, len_kv;
    int64_t q_row, kv_row; /* where it starts in packed arrays; 0 in dense ones */
} Sequence;

/* Varlen and dense caches: the lengths of one batch entry, and its place in packed arrays. */
static __device__ inline Sequence sequence(const AttentionParams p, int batch)
{
    Sequence s = {batch, p.seq_q, p.seq_kv, 0, 0};
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

/* Causal, window, block-causal: the keys that a query row sees.  Aligned to the bottom right: the last row is across
 * from the last key, row i from key c = i + len_kv - len_q, which is negative for a row before the first key. */
static __device__ inline Interval row_keys(const AttentionParams p, const Sequence s, int row)
{
    const int c = row + s.len_kv - s.len_q;
    Interval keys = {0, s.len_kv};
    if (p.window_left >= 0 && p.window_left < c) keys.first = c - p.window_left;
    if (p.window_right >= 0 && p.window_right < s.len_kv - 1 - c) keys.last = c + p.window_right + 1;
    if (p.block_causal > 0) /* c / n blocks before c's own, and that one whole */
        keys.last = clamp(c < 0 ? 0 : ((int64_t)(c / p.block_causal) + 1) * p.block_causal, 0, keys.last);
    if (keys.last < 0) keys.last = 0;
    return keys;
}

/* A block of block_m rows sees so many keys at most, rounded up.  Where the window ends on both sides that may be few;
 * 2 BLOCK_N more, since the first and the last tile may hold one of them each. */
static int64_t keys_at_most(const AttentionParams *p, int block_m)
{
    const int64_t rows = p->seq_q < block_m ? p->seq_q : block_m;
    const int64_t seen = (int64_t)p->window_left + p->window_right + rows + 2 * BLOCK_N;
    return p->window_left >= 0 && p->window_right >= 0 && seen < p->seq_kv ? seen : p->seq_kv;
}

/* Block-sparse: is a row's block to compute a key's?  Entry of the mask [.., ceil(seq_q / n), ceil(seq_kv / n)]. */
static __device__ inline int block_visible(const AttentionParams p, int batch, int head, int row, int key)
{
    return p.block_mask[batch * p.mask_batch + head * p.mask_head + row / p.mask_block * p.mask_row +
                        key / p.mask_block];
}

/* The same for any of the rows [rows.first, rows.last): a key that none of them sees need not be there. */
static __device__ inline int any_row_sees(const AttentionParams p, int batch, int head, Interval rows, int key)
{
    int seen = !p.block_mask;
    for (int row = rows.first; row < rows.last && !seen; row = (row / p.mask_block + 1) * p.mask_block)
        seen = block_visible(p, batch, head, row, key);
    return seen;
}

/* The same for one row and the 32 keys from first_key on, as bits. */
static __device__ inline unsigned keys_below(int n)
{
    return n <= 0 ? 0 : n >= 32 ? ~0u : (1u << n) - 1;
}
static __device__ inline unsigned visible_blocks(const AttentionParams p, const Sequence s, int head, int row,
                                                 int first_key)
{
    unsigned visible = ~0u;
    for (int key = first_key, next; key < first_key + 32 && key < s.len_kv; key = next) {
        next = (key / p.mask_block + 1) * p.mask_block;
        if (!block_visible(p, s.batch, head, row, key))
            visible &= keys_below(key - first_key) | ~keys_below(next - first_key);
    }
    return visible;
}

/* The first tile of [tile, last) of which the rows see anything, or last. */
static __device__ inline int next_tile(const AttentionParams p, int batch, int head, Interval rows, Interval keys,
                                       int tile, int last)
{
    if (!p.block_mask) return tile;
    for (; tile < last; tile++) {
        const int end = clamp((int64_t)(tile + 1) * BLOCK_N, 0, keys.last);
        int key = clamp((int64_t)tile * BLOCK_N, keys.first, keys.last);
        for (; key < end; key = (key / p.mask_block + 1) * p.mask_block)
            if (any_row_sees(p, batch, head, rows, key)) return tile;
    }
    return last;
}

/* Split-KV: part number `split` of the tiles [first, last); the parts differ by at most one tile and may be empty.  It
 * depends on nothing but its own sequence. */
static __device__ inline Interval split_range(Interval tiles, int split, int splits)
{
    const int count = tiles.last > tiles.first ? tiles.last - tiles.first : 0;
    if (splits == 1) return tiles;
    const int each = count / splits, longer = count % splits; /* the first parts are one tile longer */
    const int first = tiles.first + split * each + (split < longer ? split : longer);
    const Interval part = {first, first + each + (split < longer)};
    return part;
}

/* ---- address: where they live ---- */

/* GQA and MQA: consecutive query heads share a KV head.  They share the rows of a block too, where one head's rows do
 * not fill it, unless each head has a block mask of its own.  How many do: 1, or a whole group. */
static __host__ __device__ inline int heads_together(const AttentionParams *p, int block_m)
{
    return p->mask_head || p->heads == p->kv_heads || p->seq_q >= block_m ? 1 : p->heads / p->kv_heads;
}
static __host__ __device__ inline int64_t blocks_for(const AttentionParams *p, int64_t splits, int block_m)
{
    const int group = heads_together(p, block_m);
    return ((int64_t)p->seq_q * group + block_m - 1) / block_m * splits * (p->heads / group) * p->batch;
}

/* What a block computes: rows from first_m on of the heads that share them, from `head` on; one part of the keys. */
typedef struct Work {
    int batch, head, kv_head, split, first_m;
} Work;

/* Blocks start in the order of their numbers: one head after another, so that those which run at a time read the same
 * K and V.  Where later rows see more (causal): 16 heads at a time, and of these the last rows first, so that the work
 * left at the end comes in small pieces.  Unsigned, and with few divisions: one is some 20 instructions. */
static __device__ inline Work work_of(const AttentionParams p, unsigned block, unsigned block_m, unsigned group)
{
    const unsigned row_blocks = (unsigned)(((int64_t)p.seq_q * group + block_m - 1) / block_m), splits = p.num_splits;
    const unsigned groups = group == 1 ? p.heads : p.kv_heads;
    const int later_rows_see_more = (p.window_right >= 0 || p.block_causal > 0) && p.window_left < 0;
    unsigned item = block / row_blocks, row_block = block % row_blocks; /* item: batch entry, heads and part in one */
    if (later_rows_see_more) {
        const unsigned first = item / 16 * 16, left = p.batch * groups * splits - first, size = left < 16 ? left : 16;
        const unsigned number = block - first * row_blocks; /* among the blocks of these heads */
        item = first + number % size, row_block = row_blocks - 1 - number / size;
    }
    const unsigned g = splits == 1 ? item : item / splits, head = g % groups * group;
    const unsigned kv_head = p.heads == p.kv_heads ? head : head / (p.heads / p.kv_heads);
    const Work work = {(int)(g / groups), (int)head, (int)kv_head, splits == 1 ? 0 : (int)(item % splits),
                       (int)(row_block * block_m)};
    return work;
}

/* Row m of the heads is query row m / group of head m % group.  Its offset, and from row m to m + n, in elements. */
static __device__ inline int query_row(int m, int group)
{
    return (int)((unsigned)m / (unsigned)group);
}
static __device__ inline int64_t row_offset(Strides stride, int m, int group)
{
    const int row = query_row(m, group);
    return row * stride.row + (m - row * group) * stride.head;
}
static __device__ inline int64_t row_step(Strides stride, int m, int n, int group)
{
    return group == 1 ? n * stride.row : row_offset(stride, m + n, group) - row_offset(stride, m, group);
}

/* Where a sequence's keys start in K or V (in pages: anywhere), and a key's row from there.  Paged: in the pool,
 * through the block table; else beside the key before.  In elements. */
static __device__ inline int64_t kv_start(const AttentionParams p, const Sequence s, const Strides stride)
{
    return p.block_table ? 0 : s.batch * stride.batch + s.kv_row * stride.row;
}
static __device__ inline int64_t kv_row(const AttentionParams p, const Sequence s, const Strides stride, int key)
{
    if (!p.block_table) return key * stride.row;
    const int page = p.block_table[(int64_t)s.batch * p.max_pages + key / p.page_size];
    return page * stride.batch + key % p.page_size * stride.row;
}

/* Split-KV: the parts' results in the workspace, f32: O [splits, rows, D], LSE [splits, rows]; at: offset in LSE. */
static __host__ __device__ inline int64_t lse_rows(const AttentionParams *p)
{
    return p->cu_seqlens_q ? p->heads * p->lse_stride.head : p->batch * p->lse_stride.batch;
}
static __device__ inline float *partial_o(const AttentionParams p, int split, int64_t at)
{
    return (float *)p.workspace + (split * lse_rows(&p) + at) * p.head_dim;
}
static __device__ inline float *partial_lse(const AttentionParams p, int split, int64_t at)
{
    return (float *)p.workspace + p.num_splits * lse_rows(&p) * p.head_dim + split * lse_rows(&p) + at;
}

/* ---- scores and epilogue ---- */

/* Softcap: cap * tanh(scaled score / cap), as an unscaled score again. */
static __device__ inline float soft_cap(const AttentionParams p, float s)
{
    return p.softcap / p.scale * tanhf(s * (p.scale / p.softcap));
}

/* Sink: one more logit in the denominator.  The larger of the two is the new reference point, or exp overflows.
 * In: row_max (of scaled scores) and row_sum; out: what O is multiplied with, and LSE.  A row without a key has
 * row_sum = 0: O = 0, LSE = the sink. */
static __device__ inline float finish_row(float max_scaled, float row_sum, float sink, float *lse)
{
    const int above = sink > max_scaled; /* the sink is the larger */
    const float apart = above ? max_scaled - sink : sink == -INFINITY ? sink : sink - max_scaled;
    const float less = exp2_approx(apart * 1.44269504f); /* exp */
    const float own = above ? less : 1, sum = row_sum * own + (above ? 1 : less);
    *lse = row_sum == 0 ? sink : (above ? sink : max_scaled) + logf(sum);
    return row_sum == 0 ? 0 : own * reciprocal_approx(sum);
}

#endif
