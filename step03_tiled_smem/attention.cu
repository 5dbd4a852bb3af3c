/* step03_tiled_smem: a block stages each tile of K and V in shared memory once; its warps read it there.
 * Changes from step02: where the two products read K and V.
 * Removes: every warp reading all of K and V from global memory for itself.
 * Still slow: copies and arithmetic take turns (step04).
 * Limits: D <= HEAD_DIM in multiples of 8; any lengths; two tiles of BLOCK_N * HEAD_DIM elements fit shared memory.
 *
 * Shared memory has 32 banks of 4 bytes, so 8 chunks of 16 bytes fill one line of it, and chunks whose places differ by
 * a multiple of 8 conflict.  Lanes read the same chunk of different rows: in a plain row-major tile of D = 64 all of
 * those lie one line apart.  So row r stores chunk c at c XOR (r % 8): the same chunk of 8 rows lies in 8 places, and
 * the pattern repeats every 8 rows.
 *
 * Who owns what is as in step02.
 *
 * make run-step03        make diff-step03        make compare */
#include "../common/attention.h"
#include "../common/ptx.h"

enum { BLOCK_M = 16 * ROW_TILES * WARPS, THREADS = WARP_SIZE * WARPS };
enum { CHUNKS = HEAD_DIM / 8 }; /* of a row: 8 elements, 16 bytes, the widest access; o has as many 8-column pieces */
enum { TILE = BLOCK_N * HEAD_DIM };     /* elements of a tile of K or V */
enum { PASS_ROWS = THREADS / CHUNKS }; /* rows of it that the block copies at a time, 16 bytes a thread */
static_assert(BLOCK_N % 8 == 0 && HEAD_DIM % 8 == 0, "S and O are made of pieces of 8 columns");

/* Chunk of one row of q, k or v [rows, D] in global memory; zeros where there is none. */
static __device__ inline uint4 load_chunk(const element_t *x, int64_t row_stride, int row, int rows, int chunk,
                                          int head_dim)
{
    const uint4 zero = {0, 0, 0, 0};
    return row < rows && 8 * chunk < head_dim ? LOAD16(x + row * row_stride + 8 * chunk) : zero;
}

/* Where a chunk of a row lies in a tile [rows][HEAD_DIM] in shared memory, in elements.  Where a row is no whole number
 * of the banks' lines (HEAD_DIM % 64 != 0), pairs of rows share one: there row / 2 chooses among 4 places. */
static __device__ inline int swizzle(unsigned row, unsigned chunk)
{
    return row * HEAD_DIM + 8 * (HEAD_DIM % 64 == 0 ? chunk ^ row % 8 : chunk ^ row / 2 % 4);
}

/* All threads of the block bring rows [first_row, first_row + tile_rows) of x into shared memory, PASS_ROWS at
 * a time.  A thread keeps its column: only the row changes from pass to pass.  What does not exist becomes zeros.
 * Where CHUNKS does not divide THREADS some threads have no row; where PASS_ROWS does not divide the tile, in the
 * last pass. */
static __device__ inline void copy_tile(element_t *smem, const element_t *x, int64_t row_stride, int first_row,
                                        int tile_rows, int rows, int head_dim)
{
    const uint4 zero = {0, 0, 0, 0};
    const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const int exist = 8 * chunk < head_dim ? rows - first_row : 0; /* rows that hold something in this column */
    const element_t *from = x + (first_row + row) * row_stride + 8 * chunk;
    UNROLL for (int pass = 0; pass < tile_rows; pass += PASS_ROWS)
        if ((THREADS % CHUNKS == 0 || row < PASS_ROWS) && (tile_rows % PASS_ROWS == 0 || pass + row < tile_rows))
            STORE16(smem + swizzle(pass + row, chunk), pass + row < exist ? LOAD16(from + pass * row_stride) : zero);
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
    SHARED(element_t, smem);
    element_t *k_smem = smem, *v_smem = smem + TILE; /* [BLOCK_N, HEAD_DIM] each, swizzled */

    float o[ROW_TILES][CHUNKS][4] = {{{0}}};
    float row_max[ROW_TILES][2], row_sum[ROW_TILES][2];
    UNROLL for (int t = 0; t < ROW_TILES; t++)
        UNROLL for (int half = 0; half < 2; half++) row_max[t][half] = -INFINITY, row_sum[t][half] = 0;

    for (int first_key = 0; first_key < p.seq_kv; first_key += BLOCK_N) {
        __syncthreads(); /* every warp has read the tile before: it may be overwritten */
        copy_tile(k_smem, k, p.k_stride.row, first_key, BLOCK_N, p.seq_kv, p.head_dim);
        copy_tile(v_smem, v, p.v_stride.row, first_key, BLOCK_N, p.seq_kv, p.head_dim);
        __syncthreads(); /* every thread's part of the tile is there: it may be read */

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
                    float k_frag[8];
                    unpack16(LOAD16(k_smem + swizzle(8 * j + 2 * (lane % 4) + c, chunk)), k_frag);
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
                    float p_frag[ROW_TILES][2];
                    UNROLL for (int t = 0; t < ROW_TILES; t++)
                        UNROLL for (int half = 0; half < 2; half++)
                            p_frag[t][half] = __shfl_sync(FULL_WARP, s[t][j][2 * half + c], lane / 4 * 4 + source);
                    UNROLL for (int n = 0; n < CHUNKS; n++) {
                        const element_t *v_pair = v_smem + swizzle(8 * j + 2 * source + c, n) + 2 * (lane % 4);
                        const float2 v_frag = unpack4(LOAD4(v_pair));
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
    const int64_t smem_bytes = 2 * TILE * (int64_t)sizeof(element_t);
    LAUNCH(flash_fwd, row_blocks * p->heads * p->batch, THREADS, smem_bytes, *p);
}

int main(int argc, char **argv)
{
    return attention_main(argc, argv, "step03_tiled_smem", NULL, launch);
}
