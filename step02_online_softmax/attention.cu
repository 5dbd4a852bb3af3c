/* step02_online_softmax: one kernel, one pass over the keys; S and P never leave the registers.
 * Changes from step01: a block owns BLOCK_M query rows and visits the keys in tiles of BLOCK_N.  For each row it keeps
 *     row_max  m  the largest score so far
 *     row_sum  l  sum of exp(scale * (s - m)) so far
 *     o           sum of exp(scale * (s - m)) * v so far
 * and when a tile raises m, it multiplies l and o by exp(scale * (m_old - m_new)).  O = o / l at the end.
 * Removes: the N^2 elements of S and P in global memory, and two of the three kernels.
 * Still slow: every warp reads all of K and V from global memory for itself (step03).
 * Limits: D <= HEAD_DIM in multiples of 8; any lengths.
 *
 * Who owns what (the accumulator layout of mma.m16n8k16, which step05 will need; README.md has the picture): of a
 * 16 x 8 piece of S or O a lane holds four elements, [2 * half + c] being row lane / 4 + 8 * half and
 * column 2 * (lane % 4) + c.  A row lies in the four lanes of one group, lane / 4.
 *
 * make run-step02        make diff-step02        make compare */
#include "../common/attention.h"
#include "../common/ptx.h"

enum { BLOCK_M = 16 * ROW_TILES * WARPS, THREADS = WARP_SIZE * WARPS };
enum { CHUNKS = HEAD_DIM / 8 }; /* of a row: 8 elements, 16 bytes, the widest access; o has as many 8-column pieces */
static_assert(BLOCK_N % 8 == 0 && HEAD_DIM % 8 == 0, "S and O are made of pieces of 8 columns");

/* Chunk of one row of q, k or v [rows, D] in global memory; zeros where there is none. */
static __device__ inline uint4 load_chunk(const element_t *x, int64_t row_stride, int row, int rows, int chunk,
                                          int head_dim)
{
    const uint4 zero = {0, 0, 0, 0};
    return row < rows && 8 * chunk < head_dim ? LOAD16(x + row * row_stride + 8 * chunk) : zero;
}

__global__ void __launch_bounds__(THREADS) flash_fwd(const AttentionParams p)
{
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const int row_blocks = (p.seq_q + BLOCK_M - 1) / BLOCK_M, block = (int)blockIdx.x;
    const int head = block / row_blocks % p.heads, batch = block / row_blocks / p.heads;
    const int first_row = block % row_blocks * BLOCK_M + 16 * ROW_TILES * warp + lane / 4; /* this lane's first row */
    const element_t *q = p.q + batch * p.q_stride.batch + head * p.q_stride.head;          /* [seq_q, D] */
    const element_t *k = p.k + batch * p.k_stride.batch + head * p.k_stride.head;          /* [seq_kv, D] */
    const element_t *v = p.v + batch * p.v_stride.batch + head * p.v_stride.head;          /* [seq_kv, D] */

    float o[ROW_TILES][CHUNKS][4] = {{{0}}};
    float row_max[ROW_TILES][2], row_sum[ROW_TILES][2];
    UNROLL for (int t = 0; t < ROW_TILES; t++)
        UNROLL for (int half = 0; half < 2; half++) row_max[t][half] = -INFINITY, row_sum[t][half] = 0;

    for (int first_key = 0; first_key < p.seq_kv; first_key += BLOCK_N) {
        /* S = Q K^T: each lane computes the scores that it owns */
        float s[ROW_TILES][BLOCK_N / 8][4] = {{{0}}};
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            float q_frag[ROW_TILES][2][8];
            UNROLL for (int t = 0; t < ROW_TILES; t++)
                UNROLL for (int half = 0; half < 2; half++)
                    unpack16(load_chunk(q, p.q_stride.row, first_row + 16 * t + 8 * half, p.seq_q, chunk, p.head_dim),
                             q_frag[t][half]);
            UNROLL for (int j = 0; j < BLOCK_N / 8; j++)
                UNROLL for (int c = 0; c < 2; c++) {
                    const int key = first_key + 8 * j + 2 * (lane % 4) + c;
                    float k_frag[8];
                    unpack16(load_chunk(k, p.k_stride.row, key, p.seq_kv, chunk, p.head_dim), k_frag);
                    UNROLL for (int t = 0; t < ROW_TILES; t++)
                        UNROLL for (int half = 0; half < 2; half++)
                            UNROLL for (int d = 0; d < 8; d++)
                                s[t][j][2 * half + c] += q_frag[t][half][d] * k_frag[d];
                }
        }

        /* Keys past the end scored 0, which is a score like any other: they must weigh nothing. */
        if (first_key + BLOCK_N > p.seq_kv)
            UNROLL for (int j = 0; j < BLOCK_N / 8; j++)
                UNROLL for (int c = 0; c < 2; c++)
                    if (first_key + 8 * j + 2 * (lane % 4) + c >= p.seq_kv)
                        UNROLL for (int t = 0; t < ROW_TILES; t++) s[t][j][c] = s[t][j][2 + c] = -INFINITY;

        /* P = exp(scale * (S - m)), in place; l and o follow the new m */
        UNROLL for (int t = 0; t < ROW_TILES; t++)
            UNROLL for (int half = 0; half < 2; half++) {
                float new_max = row_max[t][half];
                UNROLL for (int j = 0; j < BLOCK_N / 8; j++)
                    new_max = fmaxf(new_max, fmaxf(s[t][j][2 * half], s[t][j][2 * half + 1]));
                new_max = fmaxf(new_max, __shfl_xor_sync(FULL_WARP, new_max, 1)); /* the row's other three lanes */
                new_max = fmaxf(new_max, __shfl_xor_sync(FULL_WARP, new_max, 2));
                const float finite_max = new_max == -INFINITY ? 0 : new_max; /* -inf - -inf would be NaN */
                const float rescale = exp2_approx((row_max[t][half] - finite_max) * p.scale_log2);
                row_max[t][half] = new_max;
                row_sum[t][half] *= rescale; /* of this lane's columns; the four lanes are added up at the end */
                UNROLL for (int n = 0; n < CHUNKS; n++)
                    o[t][n][2 * half] *= rescale, o[t][n][2 * half + 1] *= rescale;
                UNROLL for (int j = 0; j < BLOCK_N / 8; j++)
                    UNROLL for (int c = 0; c < 2; c++) {
                        s[t][j][2 * half + c] = exp2_approx((s[t][j][2 * half + c] - finite_max) * p.scale_log2);
                        row_sum[t][half] += s[t][j][2 * half + c];
                    }
            }

        /* O += P V: a row of P is spread over four lanes; each hands its columns round */
        UNROLL for (int j = 0; j < BLOCK_N / 8; j++)
            UNROLL for (int c = 0; c < 2; c++)
                for (int source = 0; source < 4; source++) { /* lane of the group that owns this key's column */
                    const int key = first_key + 8 * j + 2 * source + c;
                    float p_frag[ROW_TILES][2];
                    UNROLL for (int t = 0; t < ROW_TILES; t++)
                        UNROLL for (int half = 0; half < 2; half++)
                            p_frag[t][half] = __shfl_sync(FULL_WARP, s[t][j][2 * half + c], lane / 4 * 4 + source);
                    UNROLL for (int n = 0; n < CHUNKS; n++) {
                        const int d = 8 * n + 2 * (lane % 4);
                        const float2 v_frag =
                            unpack4(key < p.seq_kv && d < p.head_dim ? LOAD4(v + key * p.v_stride.row + d) : 0);
                        UNROLL for (int t = 0; t < ROW_TILES; t++)
                            UNROLL for (int half = 0; half < 2; half++) {
                                o[t][n][2 * half] += p_frag[t][half] * v_frag.x;
                                o[t][n][2 * half + 1] += p_frag[t][half] * v_frag.y;
                            }
                    }
                }
    }

    /* O = o / l and LSE = scale * m + ln l; a row without a key has l = 0 */
    element_t *out = p.o + batch * p.o_stride.batch + head * p.o_stride.head; /* [seq_q, D] */
    float *lse = p.lse + batch * p.lse_stride.batch + head * p.lse_stride.head; /* [seq_q] */
    UNROLL for (int t = 0; t < ROW_TILES; t++)
        UNROLL for (int half = 0; half < 2; half++) {
            float sum = row_sum[t][half];
            sum += __shfl_xor_sync(FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(FULL_WARP, sum, 2);
            const float inverse = sum == 0 ? 0 : 1 / sum;
            const int row = first_row + 16 * t + 8 * half;
            if (row >= p.seq_q) continue;
            UNROLL for (int n = 0; n < CHUNKS; n++)
                if (8 * n < p.head_dim)
                    STORE4(out + row * p.o_stride.row + 8 * n + 2 * (lane % 4),
                           pack4(o[t][n][2 * half] * inverse, o[t][n][2 * half + 1] * inverse));
            if (lane % 4 == 0) lse[row] = sum == 0 ? -INFINITY : row_max[t][half] * p.scale + logf(sum);
        }
}

static void launch(const AttentionParams *p)
{
    const int64_t row_blocks = ((int64_t)p->seq_q + BLOCK_M - 1) / BLOCK_M;
    LAUNCH(flash_fwd, row_blocks * p->heads * p->batch, THREADS, 0, *p);
}

int main(int argc, char **argv)
{
    return attention_main(argc, argv, "step02_online_softmax", NULL, launch);
}
