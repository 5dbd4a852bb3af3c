/* step05_mma_ldmatrix: both products run on the tensor cores.
 * Changes from step04: S = Q K^T and O += P V are mma.sync.m16n8k16, fed by ldmatrix; O leaves through shared memory.
 *     A operand 16 x 16: Q's rows, and P: the accumulators of S, rounded to 16 bits, are already in the right lanes
 *     B operand 16 x 8:  K as it lies (B is indexed [key][d]); V through the transposing ldmatrix
 * Removes: the scalar multiply-adds, 2 per score and dimension, and the shuffles that handed P round.
 * Still missing: masks, other places for K and V.
 * Limits: D <= HEAD_DIM in multiples of 8; any lengths; the Q tile and 2 * STAGES tiles fit into shared memory.
 *
 * Who owns what is as in step02: it was this instruction's accumulator layout all along.
 *
 * make run-step05        make diff-step05        make compare */
#include "../common/attention.h"
#include "../common/ptx.h"

enum { BLOCK_M = 16 * ROW_TILES * WARPS, THREADS = WARP_SIZE * WARPS };
enum { CHUNKS = HEAD_DIM / 8 }; /* of a row: 8 elements, 16 bytes, the widest access; o has as many 8-column pieces */
enum { TILE = BLOCK_N * HEAD_DIM };     /* elements of a tile of K or V */
enum { PASS_ROWS = THREADS / CHUNKS };  /* rows of it that the block copies at a time, 16 bytes a thread */
enum { LANE_ROWS = WARP_SIZE / CHUNKS }; /* the same for one warp */
/* Q's fragments stay in registers where there is room for them; else they are read again for each tile. */
enum { Q_IN_REGISTERS = ROW_TILES * HEAD_DIM <= 128 };
enum { LARGE = 1 << 13 }; /* up to it, rounding c m costs 2^-12 at most, less than rounding P to 11 bits */
static_assert(STAGES == 1 || STAGES == 2, "STAGES: 1 (one buffer each for K and V) or 2 (double buffers)");
static_assert(BLOCK_N % 16 == 0 && HEAD_DIM % 16 == 0, "the products take 16 keys and 16 dimensions at a time");

/* Where a chunk of a row lies in a tile [rows][HEAD_DIM] in shared memory, in elements: in the row (place), and in the
 * tile.  Where a row is no whole number of the banks' lines (HEAD_DIM % 64 != 0), pairs of rows share one: there
 * row / 2 chooses among 4 places. */
static __device__ inline int place(unsigned row, unsigned chunk)
{
    return 8 * (HEAD_DIM % 64 == 0 ? chunk ^ row % 8 : chunk ^ row / 2 % 4);
}
static __device__ inline int swizzle(unsigned row, unsigned chunk)
{
    return row * HEAD_DIM + place(row, chunk);
}

/* All threads of the block start to bring rows [first_row, first_row + tile_rows) of x into shared memory, PASS_ROWS at
 * a time.  A thread keeps its column: only the row changes from pass to pass.  What does not exist becomes zeros (a
 * copy of 0 bytes, whose address is not read).
 * Where CHUNKS does not divide THREADS some threads have no row; where PASS_ROWS does not divide the tile, in the
 * last pass. */
static __device__ inline void copy_tile(element_t *smem, const element_t *x, int64_t row_stride, int first_row,
                                        int tile_rows, int rows, int head_dim)
{
    const unsigned thread = opaque(threadIdx.x); /* registers are short: compute the rest anew for each tile */
    const int row = thread / CHUNKS, chunk = thread % CHUNKS;
    const int exist = 8 * chunk < head_dim ? rows - first_row : 0; /* rows that hold something in this column */
    const element_t *from = x + (first_row + row) * row_stride + 8 * chunk;
    UNROLL for (int pass = 0; pass < tile_rows; pass += PASS_ROWS)
        if ((THREADS % CHUNKS == 0 || row < PASS_ROWS) && (tile_rows % PASS_ROWS == 0 || pass + row < tile_rows))
            cp_async16(smem + swizzle(pass + row, chunk), from + pass * row_stride, pass + row < exist ? 16 : 0);
}

/* The A operand of one mma: rows row .. row + 15 of the Q tile, dimensions 16 * step .. + 15.  A place is an XOR, so an
 * even number of chunks further is one too: what depends on the lane is the same for all steps. */
static __device__ inline uint4 load_q(const element_t *q_smem, int row, int step, int lane)
{
    return ldmatrix_x4(q_smem + row * HEAD_DIM + lane % 16 * HEAD_DIM + (place(lane % 16, lane / 16) ^ 16 * step));
}

__global__ void __launch_bounds__(THREADS, 1) flash_fwd(const AttentionParams p) /* 1: all registers for one block */
{
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const int row_blocks = (p.seq_q + BLOCK_M - 1) / BLOCK_M, block = (int)blockIdx.x;
    const int head = block / row_blocks % p.heads, batch = block / row_blocks / p.heads;
    const int first_m = block % row_blocks * BLOCK_M;                             /* the block's first row */
    const int warp_row = 16 * ROW_TILES * warp, warp_m = first_m + warp_row;      /* the warp's: in the tile, in all */
    const element_t *q = p.q + batch * p.q_stride.batch + head * p.q_stride.head; /* [seq_q, D] */
    const element_t *k = p.k + batch * p.k_stride.batch + head * p.k_stride.head; /* [seq_kv, D] */
    const element_t *v = p.v + batch * p.v_stride.batch + head * p.v_stride.head; /* [seq_kv, D] */
    SHARED(element_t, smem);
    element_t *q_smem = smem + 2 * STAGES * TILE; /* [BLOCK_M, HEAD_DIM], swizzled */

    copy_tile(q_smem, q, p.q_stride.row, first_m, BLOCK_M, p.seq_q, p.head_dim);
    copy_tile(smem, k, p.k_stride.row, 0, BLOCK_N, p.seq_kv, p.head_dim);
    if (STAGES == 2) copy_tile(smem + TILE, v, p.v_stride.row, 0, BLOCK_N, p.seq_kv, p.head_dim);
    cp_async_commit();

    uint4 q_frag[ROW_TILES][HEAD_DIM / 16];
    if (Q_IN_REGISTERS) {
        cp_async_wait(0);
        __syncthreads(); /* the Q tile is there */
        UNROLL for (int step = 0; step < HEAD_DIM / 16; step++)
            UNROLL for (int t = 0; t < ROW_TILES; t++) q_frag[t][step] = load_q(q_smem, warp_row + 16 * t, step, lane);
    }
    float o[ROW_TILES][CHUNKS][4] = {{{0}}};
    float row_max[ROW_TILES][2], row_sum[ROW_TILES][2];
    UNROLL for (int t = 0; t < ROW_TILES; t++)
        UNROLL for (int half = 0; half < 2; half++) row_max[t][half] = -FLT_MAX, row_sum[t][half] = 0;

    for (int first_key = 0; first_key < p.seq_kv; first_key += BLOCK_N) {
        const int next_key = first_key + BLOCK_N, buffer = first_key / BLOCK_N % STAGES;
        element_t *k_smem = smem + 2 * TILE * buffer, *v_smem = k_smem + TILE; /* [BLOCK_N, HEAD_DIM] each, swizzled */
        element_t *k_next = smem + 2 * TILE * (STAGES - 1 - buffer), *v_next = k_next + TILE;
        cp_async_wait(0); /* this thread's part of the tile (STAGES 1: of K) has landed ... */
        __syncthreads();  /* ... and everybody's; and every warp has read the tile before */
        if (STAGES == 1)
            copy_tile(v_smem, v, p.v_stride.row, first_key, BLOCK_N, p.seq_kv, p.head_dim);
        else if (next_key < p.seq_kv) {
            copy_tile(k_next, k, p.k_stride.row, next_key, BLOCK_N, p.seq_kv, p.head_dim);
            copy_tile(v_next, v, p.v_stride.row, next_key, BLOCK_N, p.seq_kv, p.head_dim);
        }
        cp_async_commit();

        /* S = Q K^T: 16 dimensions a step */
        float s[ROW_TILES][BLOCK_N / 8][4] = {{{0}}};
        UNROLL for (int step = 0; step < HEAD_DIM / 16; step++) {
            UNROLL for (int t = 0; t < ROW_TILES; t++)
                if (!Q_IN_REGISTERS) q_frag[t][step] = load_q(q_smem, warp_row + 16 * t, step, lane);
            UNROLL for (int j = 0; j < BLOCK_N / 8; j += 2) { /* 16 keys: the B operands of two mma */
                const uint4 k_frag = ldmatrix_x4(k_smem + 8 * j * HEAD_DIM + (lane / 16 * 8 + lane % 8) * HEAD_DIM +
                                                 (place(lane % 8, lane / 8 % 2) ^ 16 * step));
                UNROLL for (int t = 0; t < ROW_TILES; t++) {
                    mma_m16n8k16(s[t][j], q_frag[t][step], k_frag.x, k_frag.y);
                    mma_m16n8k16(s[t][j + 1], q_frag[t][step], k_frag.z, k_frag.w);
                }
            }
        }

        if (STAGES == 1) {
            cp_async_wait(0); /* this thread's part of V has landed ... */
            __syncthreads();  /* ... and everybody's; and every warp has read K */
            if (next_key < p.seq_kv) copy_tile(k_next, k, p.k_stride.row, next_key, BLOCK_N, p.seq_kv, p.head_dim);
            cp_async_commit();
        }

        /* Keys past the end scored 0, which is a score like any other: they must weigh nothing. */
        if (first_key + BLOCK_N > p.seq_kv)
            UNROLL for (int j = 0; j < BLOCK_N / 8; j++)
                UNROLL for (int c = 0; c < 2; c++)
                    if (first_key + 8 * j + 2 * (lane % 4) + c >= p.seq_kv)
                        UNROLL for (int t = 0; t < ROW_TILES; t++) s[t][j][c] = s[t][j][2 + c] = -INFINITY;

        /* P = exp(scale (S - m)) = exp2(c S - c m), c = scale log2(e), in place.  Any m will do that keeps P in range:
         * m follows the largest score of its row, and l and o follow m, only where P would exceed 2^8 otherwise.
         * Where c m is so large that its rounding would show in P, S - m is taken first. */
        float tile_max[ROW_TILES][2], shift[ROW_TILES][2];
        int unusual = 0;
        UNROLL for (int t = 0; t < ROW_TILES; t++)
            UNROLL for (int half = 0; half < 2; half++) {
                float largest = -INFINITY; /* of this lane's columns */
                UNROLL for (int j = 0; j < BLOCK_N / 8; j++)
                    largest = fmaxf(largest, fmaxf(s[t][j][2 * half], s[t][j][2 * half + 1]));
                tile_max[t][half] = largest;
                shift[t][half] = row_max[t][half] * p.scale_log2;
                unusual |= fmaf(largest, p.scale_log2, -shift[t][half]) > 8 || fabsf(shift[t][half]) > LARGE;
            }
        if (__any_sync(FULL_WARP, unusual))
            UNROLL for (int t = 0; t < ROW_TILES; t++)
                UNROLL for (int half = 0; half < 2; half++) {
                    float new_max = tile_max[t][half];
                    new_max = fmaxf(new_max, __shfl_xor_sync(FULL_WARP, new_max, 1)); /* the row's other three lanes */
                    new_max = fmaxf(new_max, __shfl_xor_sync(FULL_WARP, new_max, 2));
                    if (fmaf(new_max, p.scale_log2, -shift[t][half]) > 8 || fabsf(shift[t][half]) > LARGE) {
                        new_max = fmaxf(new_max, row_max[t][half]);
                        const float rescale = exp2_approx((row_max[t][half] - new_max) * p.scale_log2);
                        row_max[t][half] = new_max;
                        shift[t][half] = new_max * p.scale_log2;
                        row_sum[t][half] *= rescale; /* of this lane's columns; the four are added up at the end */
                        UNROLL for (int n = 0; n < CHUNKS; n++)
                            o[t][n][2 * half] *= rescale, o[t][n][2 * half + 1] *= rescale;
                    }
                    if (fabsf(shift[t][half]) > LARGE) {
                        shift[t][half] = 0;
                        UNROLL for (int j = 0; j < BLOCK_N / 8; j++)
                            s[t][j][2 * half] -= row_max[t][half], s[t][j][2 * half + 1] -= row_max[t][half];
                    }
                }
        UNROLL for (int t = 0; t < ROW_TILES; t++)
            UNROLL for (int half = 0; half < 2; half++)
                UNROLL for (int j = 0; j < BLOCK_N / 8; j++)
                    UNROLL for (int c = 0; c < 2; c++) {
                        s[t][j][2 * half + c] = exp2_approx(fmaf(s[t][j][2 * half + c], p.scale_log2, -shift[t][half]));
                        row_sum[t][half] += s[t][j][2 * half + c];
                    }

        /* O += P V: 16 keys a step; two accumulator pieces of S, side by side, are the A operand as they are */
        UNROLL for (int step = 0; step < BLOCK_N / 16; step++) {
            uint4 p_frag[ROW_TILES];
            UNROLL for (int t = 0; t < ROW_TILES; t++) {
                const float *left = s[t][2 * step], *right = s[t][2 * step + 1];
                p_frag[t].x = pack4(left[0], left[1]), p_frag[t].y = pack4(left[2], left[3]);
                p_frag[t].z = pack4(right[0], right[1]), p_frag[t].w = pack4(right[2], right[3]);
            }
            UNROLL for (int n = 0; n < CHUNKS; n += 2) {
                const uint4 v_frag = ldmatrix_x4_trans(v_smem + 16 * step * HEAD_DIM + lane % 16 * HEAD_DIM +
                                                       (place(lane % 16, lane / 16) ^ 8 * n));
                UNROLL for (int t = 0; t < ROW_TILES; t++) {
                    mma_m16n8k16(o[t][n], p_frag[t], v_frag.x, v_frag.y);
                    mma_m16n8k16(o[t][n + 1], p_frag[t], v_frag.z, v_frag.w);
                }
            }
        }
    }

    /* O = o / l and LSE = scale * m + ln l; a row without a key has l = 0.  O goes where this warp's
     * rows of Q were, so that it can leave in 16-byte stores; no other warp touches those rows. */
    __syncwarp(); /* where Q is read in every tile: all lanes have read it */
    element_t *out = p.o + batch * p.o_stride.batch + head * p.o_stride.head; /* [seq_q, D] */
    float *lse = p.lse + batch * p.lse_stride.batch + head * p.lse_stride.head; /* [seq_q] */
    UNROLL for (int t = 0; t < ROW_TILES; t++)
        UNROLL for (int half = 0; half < 2; half++) {
            float sum = row_sum[t][half];
            sum += __shfl_xor_sync(FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(FULL_WARP, sum, 2);
            const float inverse = sum == 0 ? 0 : reciprocal_approx(sum);
            const int m = warp_m + lane / 4 + 16 * t + 8 * half;
            UNROLL for (int n = 0; n < CHUNKS; n++)
                STORE4(q_smem + swizzle(warp_row + lane / 4 + 16 * t + 8 * half, n) + 2 * (lane % 4),
                       pack4(o[t][n][2 * half] * inverse, o[t][n][2 * half + 1] * inverse));
            if (m < p.seq_q && lane % 4 == 0)
                lse[m] = sum == 0 ? -INFINITY : row_max[t][half] * p.scale + logf(sum);
        }
    __syncwarp(); /* the rows are complete */
    const int row = lane / CHUNKS, chunk = lane % CHUNKS, m = warp_m + row; /* this lane's first row, and its column */
    const int exist = 8 * chunk < p.head_dim ? p.seq_q - m : 0;             /* rows from there on */
    element_t *to = out + m * p.o_stride.row + 8 * chunk;
    UNROLL for (int pass = 0; pass < 16 * ROW_TILES; pass += LANE_ROWS)
        if ((WARP_SIZE % CHUNKS == 0 || row < LANE_ROWS) && pass < exist)
            STORE16(to + pass * p.o_stride.row, LOAD16(q_smem + swizzle(warp_row + pass + row, chunk)));
}

static void launch(const AttentionParams *p)
{
    const int64_t row_blocks = ((int64_t)p->seq_q + BLOCK_M - 1) / BLOCK_M;
    const int64_t smem_bytes = (2 * STAGES * TILE + BLOCK_M * HEAD_DIM) * (int64_t)sizeof(element_t);
    LAUNCH(flash_fwd, row_blocks * p->heads * p->batch, THREADS, smem_bytes, *p);
}

int main(int argc, char **argv)
{
    return attention_main(argc, argv, "step05_mma_ldmatrix", NULL, launch);
}
