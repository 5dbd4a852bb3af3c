/* The problem that every step solves, and the entry that a step implements.
 *
 *   O[b,h,i,:] = sum_j P[i,j] V[b,g,j,:],  P[i,:] = softmax over the visible keys j of scale * Q[b,h,i,:] . K[b,g,j,:]
 *   LSE[b,h,i] = ln sum_j exp(scale * Q . K),  g = h / (heads / kv_heads)
 *
 * A row that sees no key gives O = 0 and LSE = -inf. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include "cuda_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Strides of a [batch, head, row, d] array, in elements; d is contiguous.  BHSD and BSHD differ in nothing else. */
typedef struct Strides {
    int64_t batch, head, row;
} Strides;

/* What a kernel is given.  On the device the pointers are device memory; the reference takes the same struct with
 * host pointers.  Shapes: [B, heads, seq_q, D] for q and o, [B, kv_heads, seq_kv, D] for k and v. */
typedef struct AttentionParams {
    const element_t *q, *k, *v;
    element_t *o;
    float *lse;      /* [B, heads, seq_q], natural logarithm */
    void *workspace; /* as many bytes as the step asked for */
    Strides q_stride, k_stride, v_stride, o_stride, lse_stride; /* rows start at multiples of 16 bytes */
    int batch, heads, kv_heads, seq_q, seq_kv;
    int head_dim;     /* D <= HEAD_DIM, a multiple of 8 */
    float scale;      /* > 0: a negative scale is folded into q, zero becomes FLT_MIN (common/main.c says why) */
    float scale_log2; /* scale * log2(e): exp(scale * x) = exp2(scale_log2 * x) */

    /* Variants: step 06 and the reference.  The other steps are refused anything but these defaults. */
    int window_left, window_right; /* visible: c - left <= j <= c + right, c = i + len_kv - len_q; -1: no limit */
    int block_causal;              /* 0: off; n: visible if j / n <= c / n */
    float softcap;                 /* 0: off; x: the scaled score s becomes x * tanh(s / x) */
    int num_splits;                /* split-KV parts; 0: the step chooses */
    int multiprocessors;           /* of the device (1 on the CPU): what a split count is chosen from */
    const int64_t *cu_seqlens_q;   /* [B + 1] row offsets of packed q, o (batch stride 0); NULL: dense */
    const int64_t *cu_seqlens_kv;  /* [B + 1] the same for packed k, v; NULL: dense or paged */
    const int64_t *kv_lens;        /* [B] keys in use; NULL: seq_kv */
    const int *block_table;        /* [B, max_pages] page numbers; k, v are pools, stride.batch is that of a page */
    int page_size, max_pages;
    const float *sinks;               /* [heads] one more logit in the denominator, not scaled; NULL: none */
    const unsigned char *block_mask;  /* [B or 1, heads or 1, ceil(seq_q / n), ceil(seq_kv / n)], 1: compute */
    int mask_block;                   /* n of the block mask */
    int64_t mask_batch, mask_head, mask_row; /* its strides; 0 where it is shared */
} AttentionParams;

KERNEL_PARAMS(AttentionParams)

/* What main.c needs to know of a step.  launch puts the step's kernels on the device; workspace, if not NULL, says
 * how many bytes of device memory they want beside the arrays (or INT64_MAX: more than can be counted). */
typedef struct Step {
    const char *name;
    int head_dim, block_n, warps, row_tiles, stages; /* the settings that it was compiled with */
    int bf16;                                        /* element_t is bf16, not f16 */
    int variants;                                    /* takes the options of step 06 */
    int64_t (*workspace)(const AttentionParams *p);
    void (*launch)(const AttentionParams *p);
} Step;

/* Runs a step as its command line asks (--help lists the options).
 * Returns the exit code: 0 right, 1 wrong result, 2 bad input, 3 no GPU or CUDA error. */
int run_step(int argc, char **argv, const Step *step);

#ifdef __cplusplus
}
#endif

#ifdef HEAD_DIM /* a kernel file */
static_assert(WARPS >= 1 && WARPS <= 32 && ROW_TILES >= 1 && BLOCK_N >= 8,
              "WARPS: 1 to 32; ROW_TILES: from 1; BLOCK_N: from 8");
#ifndef VARIANTS
#define VARIANTS 0
#endif
static inline int attention_main(int argc, char **argv, const char *name, int64_t (*workspace)(const AttentionParams *),
                                 void (*launch)(const AttentionParams *))
{
    const Step step = {name, HEAD_DIM, BLOCK_N, WARPS, ROW_TILES, STAGES, ELEMENT_BF16, VARIANTS, workspace, launch};
    return run_step(argc, argv, &step);
}
#endif

#endif
