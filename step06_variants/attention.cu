/* step06_variants: every variant of attention in one kernel, as run-time options that combine.
 * Changes from step05: which keys a row sees, and where they live; the functions in variants.h say it.
 *     interval   row_keys, visible_blocks, next_tile, split_range: causal, window, block-causal, block-sparse, split-KV
 *     address    sequence, work_of, row_offset, kv_row: varlen, GQA and MQA, paged KV
 *     epilogue   finish_row: sink; partial results and the second kernel, combine: split-KV
 * A tile that no row of the block sees is not visited; one that all rows see whole takes no mask.
 * GQA: the heads of a group share the rows of a block.  Row m is query row m / group of the group's head m % group; so
 * K and V are read once for all of them, and a decode step with its one query row fills more than one row of the tile.
 * Limits: D <= HEAD_DIM in multiples of 8.  NaN or infinity in V at a key that only some rows of a tile see reaches
 * the tile's other rows too (0 * NaN), as in a matrix product.
 *
 * make run-step06 ARGS="--causal"        make diff-step06        make compare */
#define VARIANTS 1
#include "../common/attention.h"
#include "../common/ptx.h"
#include "variants.h"

enum { BLOCK_M = 16 * ROW_TILES * WARPS, THREADS = WARP_SIZE * WARPS };
enum { CHUNKS = HEAD_DIM / 8 }; /* a chunk: 8 elements, 16 bytes, the widest access; o has as many column pieces */
enum { TILE = BLOCK_N * HEAD_DIM };     /* elements of a tile of K or V */
enum { PASS_ROWS = THREADS / CHUNKS }; /* rows of it that the block copies at a time, 16 bytes a thread */
/* Q's fragments stay in registers where there is room for them; else they are read again for each tile. */
enum { Q_IN_REGISTERS = ROW_TILES * HEAD_DIM <= 128 };
enum { LARGE = 1 << 13 }; /* up to it, rounding c m costs 2^-12 at most, less than rounding P to 11 bits */
static_assert(STAGES == 1 || STAGES == 2, "STAGES: 1 (one buffer each for K and V) or 2 (double buffers)");
static_assert(BLOCK_N % 16 == 0 && HEAD_DIM % 16 == 0, "the products take 16 keys and 16 dimensions at a time");

/* Where a chunk of a row lies in a tile [rows][HEAD_DIM] in shared memory, in elements.  Where a row is no whole number
 * of the banks' lines (HEAD_DIM % 64 != 0), pairs of rows share one: there row / 2 chooses among 4 places. */
static __device__ inline int swizzle(int row, int chunk)
{
    const int place = HEAD_DIM % 64 == 0 ? chunk ^ row % 8 : chunk ^ row / 2 % 4;
    return row * HEAD_DIM + 8 * place;
}

/* All threads of the block start to bring rows [first_m, first_m + BLOCK_M) of the group's heads into shared memory,
 * PASS_ROWS at a time.  A thread keeps its column.  What does not exist becomes zeros (a copy of 0 bytes, whose address
 * is not read). */
static __device__ inline void copy_q(element_t *smem, const element_t *q, const AttentionParams p, int first_m,
                                     int rows_m, int group)
{
    const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    UNROLL for (int pass = 0; pass < BLOCK_M; pass += PASS_ROWS) {
        const int m = first_m + pass + row, exists = m < rows_m && 8 * chunk < p.head_dim;
        if ((THREADS % CHUNKS == 0 || row < PASS_ROWS) && (BLOCK_M % PASS_ROWS == 0 || pass + row < BLOCK_M))
            cp_async16(smem + swizzle(pass + row, chunk),
                       q + row_offset(p.q_stride, m, group) + 8 * chunk, exists ? 16 : 0);
    }
}

/* The same for a tile of K or V.  Keys that no row of the block sees become zeros: what lies there may be NaN. */
static __device__ inline void copy_kv(element_t *smem, const element_t *x, Strides stride, const AttentionParams p,
                                      const Sequence seq, int head, Interval rows, Interval keys, int first_key)
{
    const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const int start = 8 * chunk < p.head_dim ? keys.first - first_key : BLOCK_N, end = keys.last - first_key;
    const element_t *from = x + 8 * chunk;
    if (!p.block_table && !p.block_mask) { /* the next rows lie beside it, and exist if they are in the interval */
        from += kv_row(p, seq, stride, first_key + row);
        UNROLL for (int pass = 0; pass < BLOCK_N; pass += PASS_ROWS)
            if ((THREADS % CHUNKS == 0 || row < PASS_ROWS) && (BLOCK_N % PASS_ROWS == 0 || pass + row < BLOCK_N))
                cp_async16(smem + swizzle(pass + row, chunk), from + pass * stride.row,
                           pass + row >= start && pass + row < end ? 16 : 0);
        return;
    }
    UNROLL for (int pass = 0; pass < BLOCK_N; pass += PASS_ROWS) {
        const int r = pass + row, key = first_key + r;
        if ((THREADS % CHUNKS == 0 || row < PASS_ROWS) && (BLOCK_N % PASS_ROWS == 0 || r < BLOCK_N)) {
            const int exists = r >= start && r < end && any_row_sees(p, seq.batch, head, rows, key);
            cp_async16(smem + swizzle(r, chunk), from + (exists ? kv_row(p, seq, stride, key) : 0), exists ? 16 : 0);
        }
    }
}

/* The A operand of one mma: rows row .. row + 15 of the Q tile, dimensions 16 * step .. + 15. */
static __device__ inline uint4 load_q(const element_t *q_smem, int row, int step, int lane)
{
    return ldmatrix_x4(q_smem + swizzle(row + lane % 16, 2 * step + lane / 16));
}

static __device__ inline void attend(const AttentionParams p)
{
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const int group = heads_together(&p), splits = p.num_splits;
    const Work work = work_of(p, (int)blockIdx.x, BLOCK_M);
    const int batch = work.batch, head = work.head, split = work.split, first_m = work.first_m;
    const Sequence seq = sequence(p, batch);
    const int rows_m = seq.len_q * group; /* rows of the group's heads */
    if (first_m >= rows_m) return;        /* the whole block: a shorter sequence of the batch */
    const element_t *q = p.q + batch * p.q_stride.batch + head * p.q_stride.head + seq.q_row * p.q_stride.row;
    const element_t *k = p.k + work.kv_head * p.k_stride.head, *v = p.v + work.kv_head * p.v_stride.head;

    /* what the block's first and last row see bounds what any of its rows sees (keys) and what all see (common) */
    const int last_m = first_m + BLOCK_M < rows_m ? first_m + BLOCK_M : rows_m;
    const Interval rows = {query_row(first_m, group), query_row(last_m - 1, group) + 1};
    const Interval keys = {row_keys(p, seq, rows.first).first, row_keys(p, seq, rows.last - 1).last};
    const Interval common = {row_keys(p, seq, rows.last - 1).first, row_keys(p, seq, rows.first).last};
    const Interval all = {keys.first / BLOCK_N, keys.last > keys.first ? (keys.last + BLOCK_N - 1) / BLOCK_N : 0};
    const Interval tiles = split_range(all, split, splits);

    const int warp_row = 16 * ROW_TILES * warp, warp_m = first_m + warp_row; /* this warp's first row: in the tile, in all */
    SHARED(element_t, smem);
    element_t *q_smem = smem + 2 * STAGES * TILE; /* [BLOCK_M, HEAD_DIM], swizzled */

    int tile = next_tile(p, batch, head, rows, keys, tiles.first, tiles.last), buffer = 0;
    copy_q(q_smem, q, p, first_m, rows_m, group);
    if (tile < tiles.last) {
        copy_kv(smem, k, p.k_stride, p, seq, head, rows, keys, tile * BLOCK_N);
        if (STAGES == 2) copy_kv(smem + TILE, v, p.v_stride, p, seq, head, rows, keys, tile * BLOCK_N);
    }
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

    while (tile < tiles.last) {
        const int first_key = tile * BLOCK_N;
        const int next = next_tile(p, batch, head, rows, keys, tile + 1, tiles.last), next_key = next * BLOCK_N;
        element_t *k_smem = smem + 2 * TILE * buffer, *v_smem = k_smem + TILE; /* [BLOCK_N, HEAD_DIM] each, swizzled */
        buffer = STAGES - 1 - buffer;
        element_t *k_next = smem + 2 * TILE * buffer, *v_next = k_next + TILE;
        cp_async_wait(0); /* this thread's part of the tile (STAGES 1: of K) has landed ... */
        __syncthreads();  /* ... and everybody's; and every warp has read the tile before */
        if (STAGES == 1)
            copy_kv(v_smem, v, p.v_stride, p, seq, head, rows, keys, first_key);
        else if (next < tiles.last) {
            copy_kv(k_next, k, p.k_stride, p, seq, head, rows, keys, next_key);
            copy_kv(v_next, v, p.v_stride, p, seq, head, rows, keys, next_key);
        }
        cp_async_commit();

        /* S = Q K^T: 16 dimensions a step */
        float s[ROW_TILES][BLOCK_N / 8][4] = {{{0}}};
        UNROLL for (int step = 0; step < HEAD_DIM / 16; step++) {
            UNROLL for (int t = 0; t < ROW_TILES; t++)
                if (!Q_IN_REGISTERS) q_frag[t][step] = load_q(q_smem, warp_row + 16 * t, step, lane);
            UNROLL for (int j = 0; j < BLOCK_N / 8; j += 2) { /* 16 keys: the B operands of two mma */
                const uint4 k_frag = ldmatrix_x4(k_smem + 8 * j * HEAD_DIM +
                                                 swizzle(lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
                UNROLL for (int t = 0; t < ROW_TILES; t++) {
                    mma_m16n8k16(s[t][j], q_frag[t][step], k_frag.x, k_frag.y);
                    mma_m16n8k16(s[t][j + 1], q_frag[t][step], k_frag.z, k_frag.w);
                }
            }
        }

        if (STAGES == 1) {
            cp_async_wait(0); /* this thread's part of V has landed ... */
            __syncthreads();  /* ... and everybody's; and every warp has read K */
            if (next < tiles.last) copy_kv(k_next, k, p.k_stride, p, seq, head, rows, keys, next_key);
            cp_async_commit();
        }

        if (p.softcap > 0)
            UNROLL for (int t = 0; t < ROW_TILES; t++)
                UNROLL for (int j = 0; j < BLOCK_N / 8; j++)
                    UNROLL for (int i = 0; i < 4; i++) s[t][j][i] = soft_cap(p, s[t][j][i]);

        /* Keys that a row does not see must weigh nothing in it; tiles that all rows see whole need no look. */
        const int cut_left = first_key < common.first, cut_right = first_key + BLOCK_N > common.last || p.block_mask;
        if (cut_left || cut_right)
            UNROLL for (int t = 0; t < ROW_TILES; t++)
                UNROLL for (int half = 0; half < 2; half++) {
                    const int m = warp_m + lane / 4 + 16 * t + 8 * half, row = query_row(m, group);
                    const Interval seen = row_keys(p, seq, row);
                    const int lane_key = first_key + 2 * (lane % 4); /* this lane's first key in the tile */
                    unsigned visible = ~0u;                          /* a bit for each of 32 keys from it on */
                    if (cut_left)
                        UNROLL for (int j = 0; j < BLOCK_N / 8; j++)
                            UNROLL for (int c = 0; c < 2; c++)
                                if (8 * j + c < seen.first - lane_key) s[t][j][2 * half + c] = -INFINITY;
                    if (cut_right)
                        UNROLL for (int j = 0; j < BLOCK_N / 8; j++) {
                            if (p.block_mask && j % 4 == 0 && m < rows_m)
                                visible = visible_blocks(p, seq, head, row, first_key + 8 * j) >> 2 * (lane % 4);
                            UNROLL for (int c = 0; c < 2; c++)
                                if (8 * j + c >= seen.last - lane_key || !(visible >> (8 * (j % 4) + c) & 1))
                                    s[t][j][2 * half + c] = -INFINITY;
                        }
                }

        /* P = exp(scale (S - m)) = exp2(c S - c m), c = scale log2(e), in place.  Any m will do that keeps P in range: m
         * follows the largest score of its row, and l and o follow m, only where that has grown by more than 2^8.  Where
         * c m is so large that its rounding would show in P, S - m is taken first. */
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
                    if ((new_max - row_max[t][half]) * p.scale_log2 > 8) {
                        const float rescale = exp2_approx((row_max[t][half] - new_max) * p.scale_log2);
                        row_max[t][half] = new_max;
                        shift[t][half] = new_max * p.scale_log2;
                        row_sum[t][half] *= rescale; /* of this lane's columns; the four lanes are added up at the end */
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
                const uint4 v_frag = ldmatrix_x4_trans(v_smem + swizzle(16 * step + lane % 16, n + lane / 16));
                UNROLL for (int t = 0; t < ROW_TILES; t++) {
                    mma_m16n8k16(o[t][n], p_frag[t], v_frag.x, v_frag.y);
                    mma_m16n8k16(o[t][n + 1], p_frag[t], v_frag.z, v_frag.w);
                }
            }
        }
        tile = next;
    }

    /* O = o / l and LSE = scale * m + ln l, with the sink where there is one */
    const int64_t lse_row = batch * p.lse_stride.batch + head * p.lse_stride.head + seq.q_row; /* of row 0 */
    UNROLL for (int t = 0; t < ROW_TILES; t++)
        UNROLL for (int half = 0; half < 2; half++) {
            float sum = row_sum[t][half], row_lse;
            sum += __shfl_xor_sync(FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(FULL_WARP, sum, 2);
            const int m = warp_m + lane / 4 + 16 * t + 8 * half;
            const float sink = p.sinks && splits == 1 && m < rows_m ? p.sinks[head + m % group] : -INFINITY;
            const float factor = finish_row(row_max[t][half] * p.scale, sum, sink, &row_lse);
            UNROLL for (int n = 0; n < CHUNKS; n++) o[t][n][2 * half] *= factor, o[t][n][2 * half + 1] *= factor;
            const int64_t at = lse_row + row_offset(p.lse_stride, m, group);
            if (m < rows_m && lane % 4 == 0) *(splits == 1 ? p.lse + at : partial_lse(p, split, at)) = row_lse;
        }

    /* A part of a split leaves O in f32, to be combined ... */
    if (splits > 1) {
        UNROLL for (int t = 0; t < ROW_TILES; t++)
            UNROLL for (int half = 0; half < 2; half++) {
                const int m = warp_m + lane / 4 + 16 * t + 8 * half;
                float *part = partial_o(p, split, lse_row + row_offset(p.lse_stride, m, group)) + 2 * (lane % 4); /* [D] */
                UNROLL for (int n = 0; n < CHUNKS; n++)
                    if (m < rows_m && 8 * n < p.head_dim)
                        part[8 * n] = o[t][n][2 * half], part[8 * n + 1] = o[t][n][2 * half + 1];
            }
        return;
    }

    /* ... a whole row goes where this warp's rows of Q were, so that it can leave in 16-byte stores. */
    cp_async_wait(0);
    __syncthreads(); /* Q has landed and all warps have read it */
    element_t *out = p.o + batch * p.o_stride.batch + head * p.o_stride.head + seq.q_row * p.o_stride.row;
    UNROLL for (int t = 0; t < ROW_TILES; t++)
        UNROLL for (int half = 0; half < 2; half++)
            UNROLL for (int n = 0; n < CHUNKS; n++)
                STORE4(q_smem + swizzle(warp_row + lane / 4 + 16 * t + 8 * half, n) + 2 * (lane % 4),
                       pack4(o[t][n][2 * half], o[t][n][2 * half + 1]));
    __syncwarp(); /* the rows are complete */
    UNROLL for (int i = 0; i < 16 * ROW_TILES * CHUNKS; i += WARP_SIZE) {
        const int tile_row = warp_row + (i + lane) / CHUNKS, chunk = (i + lane) % CHUNKS, m = first_m + tile_row;
        if (m < rows_m && 8 * chunk < p.head_dim)
            STORE16(out + row_offset(p.o_stride, m, group) + 8 * chunk, LOAD16(q_smem + swizzle(tile_row, chunk)));
    }
}

/* The kernel twice.  Where nothing is to be looked up for each key, the compiler is told so: what those paths would need
 * it would keep in registers, taken or not. */
__global__ void __launch_bounds__(THREADS) flash_fwd(const AttentionParams p)
{
    AttentionParams plain = p;
    plain.block_table = NULL, plain.block_mask = NULL, plain.softcap = 0;
    attend(plain);
}
__global__ void __launch_bounds__(THREADS) flash_fwd_lookup(const AttentionParams p)
{
    attend(p);
}

/* Split-KV: O = sum of w O_part, w = exp(LSE_part - LSE), a warp for each row.  An empty part (LSE = -inf) weighs 0. */
__global__ void combine(const AttentionParams p)
{
    const int lane = threadIdx.x % WARP_SIZE;
    const int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP_SIZE, rows = lse_rows(&p);
    if (at >= rows) return;
    const int64_t batch = p.cu_seqlens_q ? 0 : at / p.lse_stride.batch, rest = at - batch * p.lse_stride.batch;
    const int64_t head = rest / p.lse_stride.head, row = rest % p.lse_stride.head;
    const float sink = p.sinks ? p.sinks[head] : -INFINITY;
    float max = sink, weighted[CHUNKS * 8 / WARP_SIZE] = {0};
    for (int split = lane; split < p.num_splits; split += WARP_SIZE) max = fmaxf(max, *partial_lse(p, split, at));
    UNROLL for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(FULL_WARP, max, step));
    const float finite_max = max == -INFINITY ? 0 : max; /* -inf - -inf would be NaN */
    float sum = expf(sink - finite_max);
    for (int first = 0; first < p.num_splits; first += 8) /* 8 at a time: loads that do not wait for each other */
        UNROLL for (int split = first; split < first + 8; split++) {
            const float weight = split < p.num_splits ? expf(*partial_lse(p, split, at) - finite_max) : 0;
            sum += weight;
            UNROLL for (int i = 0; i < CHUNKS * 8 / WARP_SIZE; i++) {
                const int d = i * WARP_SIZE + lane;
                if (d < p.head_dim && split < p.num_splits) weighted[i] += weight * partial_o(p, split, at)[d];
            }
        }
    element_t *out = p.o + batch * p.o_stride.batch + head * p.o_stride.head + row * p.o_stride.row;
    UNROLL for (int i = 0; i < CHUNKS * 8 / WARP_SIZE; i++) {
        const int d = i * WARP_SIZE + lane;
        if (d < p.head_dim) out[d] = to_element(sum == 0 ? 0 : weighted[i] / sum);
    }
    if (lane == 0) p.lse[at] = sum == 0 ? -INFINITY : finite_max + logf(sum);
}

enum { SMEM_BYTES = (2 * STAGES * TILE + BLOCK_M * HEAD_DIM) * 2 };
/* Blocks that a multiprocessor has room for at once: shared memory, and registers (up to 256 a thread). */
enum { FIT_SMEM = 227 * 1024 / (SMEM_BYTES + 1024), FIT_REGISTERS = 256 / THREADS };
enum { BLOCKS_AT_ONCE = FIT_SMEM < FIT_REGISTERS ? FIT_SMEM : FIT_REGISTERS };

/* How many parts: as asked, or as many as fill the multiprocessors, if one part leaves half of their room empty. */
static int choose_splits(const AttentionParams *p)
{
    const int64_t blocks = blocks_for(p, 1, BLOCK_M), room = (int64_t)p->multiprocessors * BLOCKS_AT_ONCE;
    const int64_t tiles = ((int64_t)p->seq_kv + BLOCK_N - 1) / BLOCK_N;
    if (p->num_splits > 0) return p->num_splits;
    if (p->multiprocessors == 1 || 2 * blocks > room || tiles < 2) return 1;
    return (int)(room / blocks < tiles ? room / blocks : tiles);
}

static int64_t workspace(const AttentionParams *p) /* bytes of the partial results */
{
    const int64_t splits = choose_splits(p), part = lse_rows(p) * (p->head_dim + 1) * (int64_t)sizeof(float);
    return splits == 1 ? 0 : splits > INT64_MAX / part ? INT64_MAX : splits * part;
}

static void launch(const AttentionParams *p)
{
    AttentionParams split = *p;
    split.num_splits = choose_splits(p);
    if (p->block_table || p->block_mask || p->softcap > 0)
        LAUNCH(flash_fwd_lookup, blocks_for(p, split.num_splits, BLOCK_M), THREADS, SMEM_BYTES, split);
    else
        LAUNCH(flash_fwd, blocks_for(p, split.num_splits, BLOCK_M), THREADS, SMEM_BYTES, split);
    if (split.num_splits > 1) LAUNCH(combine, (lse_rows(p) + WARPS - 1) / WARPS, THREADS, 0, split);
}

int main(int argc, char **argv)
{
    return attention_main(argc, argv, "step06_variants", workspace, launch);
}
