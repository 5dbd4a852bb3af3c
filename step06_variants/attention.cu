/* step06_variants: every variant of attention in one kernel, as run-time options that combine.
 * Changes from step05: which keys a row sees, and where they live; the functions in variants.h say it.
 *     interval   row_keys, visible_blocks, next_tile, split_range: causal, window, block-causal, block-sparse, split-KV
 *     address    sequence, work_of, row_offset, kv_row, look_up: varlen, GQA and MQA, paged KV
 *     epilogue   finish_row: sink; partial results and the second kernel, combine: split-KV
 * A tile that no row of the block sees is not visited; one that all rows see whole takes no mask.
 * GQA: where one head's rows do not fill a block (decode), the heads of a group share it.  Row m is query row m / group
 * of the group's head m % group; so K and V are read once for all of them, and one query row fills more of the tile.
 * Limits: D <= HEAD_DIM in multiples of 8.  NaN or infinity in V at a key that only some rows of a tile see reaches
 * the tile's other rows too (0 * NaN), as in a matrix product.
 *
 * make run-step06 ARGS="--causal"        make diff-step06        make compare */
#define VARIANTS 1
#include "../common/attention.h"
#include "../common/ptx.h"
#include "variants.h"

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

/* All threads of the block start to bring rows [first_m, first_m + BLOCK_M) of the group's heads into shared memory,
 * PASS_ROWS at a time.  A thread keeps its column.  What does not exist becomes zeros (a copy of 0 bytes, whose address
 * is not read).  Where CHUNKS does not divide THREADS some threads have no row; where PASS_ROWS does not divide the
 * tile, in the last pass. */
static __device__ inline void copy_q(element_t *smem, const element_t *q, const AttentionParams p, int first_m,
                                     int rows_m, int group)
{
    const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS, m = first_m + row;
    const int exist = 8 * chunk < p.head_dim ? rows_m - first_m : 0; /* rows that hold something in this column */
    const element_t *from = q + row_offset(p.q_stride, m, group) + 8 * chunk;
    UNROLL for (int pass = 0; pass < BLOCK_M; pass += PASS_ROWS)
        if ((THREADS % CHUNKS == 0 || row < PASS_ROWS) && (BLOCK_M % PASS_ROWS == 0 || pass + row < BLOCK_M))
            cp_async16(smem + swizzle(pass + row, chunk), from + row_step(p.q_stride, m, pass, group),
                       pass + row < exist ? 16 : 0);
}

/* The same for a tile of K or V: of keys that lie beside each other, or at the offsets [BLOCK_N] that were looked up.
 * Keys that no row of the block sees become zeros: what lies there may be NaN. */
static __device__ inline void copy_kv(element_t *smem, const element_t *x, int64_t row_stride, const AttentionParams p,
                                      Interval keys, int first_key, int lookup, const int64_t *offsets)
{
    const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const int start = 8 * chunk < p.head_dim ? keys.first - first_key : BLOCK_N, end = keys.last - first_key;
    const element_t *from = x + (lookup ? 0 : (first_key + row) * row_stride) + 8 * chunk;
    UNROLL for (int pass = 0; pass < BLOCK_N; pass += PASS_ROWS)
        if ((THREADS % CHUNKS == 0 || row < PASS_ROWS) && (BLOCK_N % PASS_ROWS == 0 || pass + row < BLOCK_N)) {
            const int64_t offset = lookup ? offsets[pass + row] : pass * row_stride;
            const int exists = pass + row >= start && (lookup ? offset >= 0 : pass + row < end);
            cp_async16(smem + swizzle(pass + row, chunk), from + (lookup && !exists ? 0 : offset), exists ? 16 : 0);
        }
}

/* Where the keys of a tile lie in K and in V [2][BLOCK_N], in elements; -1: a key that no row of the block sees. */
static __device__ inline void look_up(int64_t *offsets, const AttentionParams p, const Sequence seq, int head,
                                      Interval rows, Interval keys, int first_key)
{
    for (int i = threadIdx.x; i < 2 * BLOCK_N; i += THREADS) {
        const int key = first_key + i % BLOCK_N;
        const int exists = key >= keys.first && key < keys.last && any_row_sees(p, seq.batch, head, rows, key);
        offsets[i] = exists ? kv_row(p, seq, i < BLOCK_N ? p.k_stride : p.v_stride, key) : -1;
    }
}

/* The A operand of one mma: rows row .. row + 15 of the Q tile, dimensions 16 * step .. + 15.  A place is an XOR, so an
 * even number of chunks further is one too: what depends on the lane is the same for all steps. */
static __device__ inline uint4 load_q(const element_t *q_smem, int row, int step, int lane)
{
    return ldmatrix_x4(q_smem + row * HEAD_DIM + lane % 16 * HEAD_DIM + (place(lane % 16, lane / 16) ^ 16 * step));
}

/* group: how many heads share the rows of a block; lookup: whether something is to be looked up for each key. */
static __device__ inline void attend(const AttentionParams p, int group, int lookup)
{
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE, splits = p.num_splits;
    const Work work = work_of(p, blockIdx.x, BLOCK_M, group);
    const int batch = work.batch, head = work.head, split = work.split, first_m = work.first_m;
    const Sequence seq = sequence(p, batch);
    const int rows_m = seq.len_q * group; /* rows of the group's heads */
    if (first_m >= rows_m) return;        /* the whole block: a shorter sequence of the batch */
    const element_t *q = p.q + batch * p.q_stride.batch + head * p.q_stride.head + seq.q_row * p.q_stride.row;
    const element_t *k = p.k + work.kv_head * p.k_stride.head + kv_start(p, seq, p.k_stride);
    const element_t *v = p.v + work.kv_head * p.v_stride.head + kv_start(p, seq, p.v_stride);

    /* what the block's first and last row see bounds what any of its rows sees (keys) and what all see (common) */
    const int last_m = first_m + BLOCK_M < rows_m ? first_m + BLOCK_M : rows_m;
    const Interval rows = {query_row(first_m, group), query_row(last_m - 1, group) + 1};
    const Interval keys = {row_keys(p, seq, rows.first).first, row_keys(p, seq, rows.last - 1).last};
    const Interval common = {row_keys(p, seq, rows.last - 1).first, row_keys(p, seq, rows.first).last};
    const Interval all = {keys.first / BLOCK_N, keys.last > keys.first ? (keys.last + BLOCK_N - 1) / BLOCK_N : 0};
    const Interval tiles = split_range(all, split, splits);

    const int warp_row = 16 * ROW_TILES * warp, warp_m = first_m + warp_row; /* the warp's: in the tile, in all */
    SHARED(element_t, smem);
    element_t *q_smem = smem + 2 * STAGES * TILE; /* [BLOCK_M, HEAD_DIM], swizzled */
    int64_t *offsets = (int64_t *)(q_smem + BLOCK_M * HEAD_DIM); /* for look-ups: of two tiles [2][K, V][BLOCK_N] */

    unsigned turn = 0;
    int tile = next_tile(p, batch, head, rows, keys, tiles.first, tiles.last);
    int next = next_tile(p, batch, head, rows, keys, tile + 1, tiles.last);
    if (lookup) {
        look_up(offsets, p, seq, head, rows, keys, tile * BLOCK_N);
        look_up(offsets + 2 * BLOCK_N, p, seq, head, rows, keys, next * BLOCK_N);
        __syncthreads(); /* the offsets are there */
    }
    if (tile < tiles.last) {
        copy_kv(smem, k, p.k_stride.row, p, keys, tile * BLOCK_N, lookup, offsets);
        if (STAGES == 2) copy_kv(smem + TILE, v, p.v_stride.row, p, keys, tile * BLOCK_N, lookup, offsets + BLOCK_N);
    }
    copy_q(q_smem, q, p, first_m, rows_m, group);
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

    for (int after; tile < tiles.last; tile = next, next = after) {
        after = next_tile(p, batch, head, rows, keys, next + 1, tiles.last);
        const int first_key = tile * BLOCK_N, next_key = next * BLOCK_N;
        element_t *k_smem = smem + 2 * TILE * (turn % STAGES), *v_smem = k_smem + TILE; /* [BLOCK_N, HEAD_DIM] each */
        int64_t *tile_offsets = offsets + 2 * BLOCK_N * turn; /* of this tile's keys */
        turn = 1 - turn;
        element_t *k_next = smem + 2 * TILE * (turn % STAGES), *v_next = k_next + TILE;
        const int64_t *next_offsets = offsets + 2 * BLOCK_N * turn;
        cp_async_wait(0); /* this thread's part of the tile (STAGES 1: of K) has landed ... */
        __syncthreads();  /* ... and everybody's; and every warp has read the tile before */
        if (STAGES == 1)
            copy_kv(v_smem, v, p.v_stride.row, p, keys, first_key, lookup, tile_offsets + BLOCK_N);
        else if (next < tiles.last) {
            copy_kv(k_next, k, p.k_stride.row, p, keys, next_key, lookup, next_offsets);
            copy_kv(v_next, v, p.v_stride.row, p, keys, next_key, lookup, next_offsets + BLOCK_N);
        }
        cp_async_commit();
        /* this tile's offsets were used; with one buffer V's only after the next barrier */
        if (lookup && STAGES == 2) look_up(tile_offsets, p, seq, head, rows, keys, after * BLOCK_N);
        if (STAGES == 2 && group > 1 && warp_m >= rows_m) continue; /* no row is this warp's: it only copies */

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
            if (next < tiles.last) copy_kv(k_next, k, p.k_stride.row, p, keys, next_key, lookup, next_offsets);
            cp_async_commit();
            if (lookup) look_up(tile_offsets, p, seq, head, rows, keys, after * BLOCK_N);
        }

        if (p.softcap > 0)
            UNROLL for (int t = 0; t < ROW_TILES; t++)
                UNROLL for (int j = 0; j < BLOCK_N / 8; j++)
                    UNROLL for (int i = 0; i < 4; i++) s[t][j][i] = soft_cap(p, s[t][j][i]);

        /* Keys that a row does not see must weigh nothing in it; tiles that all rows see whole need no look. */
        const int cut_left = first_key < common.first, cut_right = first_key + BLOCK_N > common.last;
        if (cut_left || cut_right || p.block_mask) {
            const int own_m = warp_m + lane / 4, lane_m = Q_IN_REGISTERS ? own_m : opaque(own_m); /* for registers */
            UNROLL for (int t = 0; t < ROW_TILES; t++)
                UNROLL for (int half = 0; half < 2; half++) {
                    const int m = lane_m + 16 * t + 8 * half, row = query_row(m, group);
                    const Interval seen = row_keys(p, seq, row);
                    const int lane_key = first_key + 2 * (lane % 4); /* this lane's first key in the tile */
                    unsigned visible = 0;                            /* a bit for each of 32 keys from it on */
                    if (cut_left)
                        UNROLL for (int j = 0; j < BLOCK_N / 8; j++)
                            UNROLL for (int c = 0; c < 2; c++)
                                if (8 * j + c < seen.first - lane_key) s[t][j][2 * half + c] = -INFINITY;
                    if (cut_right)
                        UNROLL for (int j = 0; j < BLOCK_N / 8; j++)
                            UNROLL for (int c = 0; c < 2; c++)
                                if (8 * j + c >= seen.last - lane_key) s[t][j][2 * half + c] = -INFINITY;
                    if (p.block_mask && m < rows_m)
                        UNROLL for (int j = 0; j < BLOCK_N / 8; j++) {
                            if (j % 4 == 0)
                                visible = visible_blocks(p, seq, head, row, first_key + 8 * j) >> 2 * (lane % 4);
                            UNROLL for (int c = 0; c < 2; c++)
                                if (!(visible >> (8 * (j % 4) + c) & 1)) s[t][j][2 * half + c] = -INFINITY;
                        }
                }
        }

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

    /* O = o / l and LSE = scale * m + ln l, with the sink where there is one */
    cp_async_wait(0); /* no copy is in flight when this thread leaves, or when O takes the place of Q */
    const int64_t lse_row = batch * p.lse_stride.batch + head * p.lse_stride.head + seq.q_row; /* of row 0 */
    float *lse = splits == 1 ? p.lse + lse_row : partial_lse(p, split, lse_row);
    UNROLL for (int t = 0; t < ROW_TILES; t++)
        UNROLL for (int half = 0; half < 2; half++) {
            float sum = row_sum[t][half], row_lse;
            sum += __shfl_xor_sync(FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(FULL_WARP, sum, 2);
            const int m = warp_m + lane / 4 + 16 * t + 8 * half;
            const float sink = p.sinks && splits == 1 && m < rows_m ? p.sinks[head + m % group] : -INFINITY;
            const float factor = finish_row(row_max[t][half] * p.scale, sum, sink, &row_lse);
            UNROLL for (int n = 0; n < CHUNKS; n++) o[t][n][2 * half] *= factor, o[t][n][2 * half + 1] *= factor;
            if (m < rows_m && lane % 4 == 0) lse[row_offset(p.lse_stride, m, group)] = row_lse;
        }

    /* A part of a split leaves O in f32, to be combined ... */
    if (splits > 1) {
        UNROLL for (int t = 0; t < ROW_TILES; t++)
            UNROLL for (int half = 0; half < 2; half++) {
                const int m = warp_m + lane / 4 + 16 * t + 8 * half;
                const int64_t at = lse_row + row_offset(p.lse_stride, m, group);
                float *part = partial_o(p, split, at) + 2 * (lane % 4); /* [D] */
                UNROLL for (int n = 0; n < CHUNKS; n++)
                    if (m < rows_m && 8 * n < p.head_dim)
                        part[8 * n] = o[t][n][2 * half], part[8 * n + 1] = o[t][n][2 * half + 1];
            }
        return;
    }

    /* ... a whole row goes where this warp's rows of Q were, so that it can leave in 16-byte stores. */
    __syncthreads(); /* Q has landed and all warps have read it */
    element_t *out = p.o + batch * p.o_stride.batch + head * p.o_stride.head + seq.q_row * p.o_stride.row;
    UNROLL for (int t = 0; t < ROW_TILES; t++)
        UNROLL for (int half = 0; half < 2; half++)
            UNROLL for (int n = 0; n < CHUNKS; n++)
                STORE4(q_smem + swizzle(warp_row + lane / 4 + 16 * t + 8 * half, n) + 2 * (lane % 4),
                       pack4(o[t][n][2 * half], o[t][n][2 * half + 1]));
    __syncwarp(); /* the rows are complete */
    const int row = lane / CHUNKS, chunk = lane % CHUNKS, m = warp_m + row; /* this lane's first row, and its column */
    const int exist = 8 * chunk < p.head_dim ? rows_m - m : 0;              /* rows from there on */
    element_t *to = out + row_offset(p.o_stride, m, group) + 8 * chunk;
    UNROLL for (int pass = 0; pass < 16 * ROW_TILES; pass += LANE_ROWS)
        if ((WARP_SIZE % CHUNKS == 0 || row < LANE_ROWS) && pass < exist)
            STORE16(to + row_step(p.o_stride, m, pass, group),
                    LOAD16(q_smem + swizzle(warp_row + pass + row, chunk)));
}

/* The kernel three times.  Where none of these options is given, and where each head has blocks of its own, the
 * compiler is told so: what those paths would need it would keep in registers, taken or not. */
static int needs_lookup(const AttentionParams *p)
{
    return p->block_table || p->block_mask || p->softcap > 0 || p->block_causal > 0;
}
static __device__ inline AttentionParams without_lookup(AttentionParams p)
{
    p.block_table = NULL, p.block_mask = NULL, p.softcap = 0, p.block_causal = 0;
    return p;
}
__global__ void __launch_bounds__(THREADS) flash_fwd(const AttentionParams p)
{
    attend(without_lookup(p), 1, 0);
}
__global__ void __launch_bounds__(THREADS) flash_fwd_packed(const AttentionParams p)
{
    attend(without_lookup(p), heads_together(&p, BLOCK_M), 0);
}
__global__ void __launch_bounds__(THREADS) flash_fwd_lookup(const AttentionParams p)
{
    attend(p, heads_together(&p, BLOCK_M), 1);
}

/* Split-KV: O = sum of w O_part, w = exp(LSE_part - LSE): online softmax once more.  A block for each row, whose warps
 * share the parts; a lane has COLUMNS columns.  An empty part (LSE = -inf) weighs 0. */
enum { COLUMNS = HEAD_DIM / WARP_SIZE, AT_A_TIME = 10 };
__global__ void combine(const AttentionParams p)
{
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE, last = p.num_splits - 1;
    const unsigned at = blockIdx.x, batch_rows = (unsigned)p.lse_stride.batch, head_rows = (unsigned)p.lse_stride.head;
    const unsigned batch = p.cu_seqlens_q ? 0 : at / batch_rows, rest = at - batch * batch_rows;
    const unsigned head = rest / head_rows, row = rest % head_rows;
    SHARED(float, smem);                                              /* [WARPS, HEAD_DIM]: o of each warp, ... */
    float *maxima = smem + WARPS * HEAD_DIM, *sums = maxima + WARPS; /* ... its m and l [WARPS] */
    float max = -FLT_MAX, sum = 0, o[COLUMNS] = {0};

    wait_for_previous_kernel();
    for (int first = warp; first <= last; first += AT_A_TIME * WARPS) { /* loads that do not wait for each other */
        float lse[AT_A_TIME], part[AT_A_TIME][COLUMNS], new_max = max;
        UNROLL for (int i = 0; i < AT_A_TIME; i++) {
            const int split = first + i * WARPS;
            const float *from = partial_o(p, split, at); /* [D] */
            lse[i] = split <= last ? *partial_lse(p, split, at) : -INFINITY;
            UNROLL for (int n = 0; n < COLUMNS; n++)
                part[i][n] = split <= last && n * WARP_SIZE + lane < p.head_dim ? from[n * WARP_SIZE + lane] : 0;
        }
        UNROLL for (int i = 0; i < AT_A_TIME; i++) new_max = fmaxf(new_max, lse[i]);
        const float rescale = expf(max - new_max);
        max = new_max, sum *= rescale;
        UNROLL for (int n = 0; n < COLUMNS; n++) o[n] *= rescale;
        UNROLL for (int i = 0; i < AT_A_TIME; i++) {
            const float weight = expf(lse[i] - max);
            sum += weight;
            UNROLL for (int n = 0; n < COLUMNS; n++) o[n] += weight * part[i][n];
        }
    }
    UNROLL for (int n = 0; n < COLUMNS; n++) smem[warp * HEAD_DIM + n * WARP_SIZE + lane] = o[n];
    if (lane == 0) maxima[warp] = max, sums[warp] = sum;
    __syncthreads(); /* every warp's part is there */

    const float sink = p.sinks ? p.sinks[head] : -INFINITY;
    max = sink;
    UNROLL for (int w = 0; w < WARPS; w++) max = fmaxf(max, maxima[w]);
    sum = expf(sink - max);
    UNROLL for (int w = 0; w < WARPS; w++) sum += expf(maxima[w] - max) * sums[w];
    element_t *out = p.o + batch * p.o_stride.batch + head * p.o_stride.head + row * p.o_stride.row;
    for (int d = threadIdx.x; d < p.head_dim; d += THREADS) {
        float weighted = 0;
        UNROLL for (int w = 0; w < WARPS; w++) weighted += expf(maxima[w] - max) * smem[w * HEAD_DIM + d];
        out[d] = to_element(sum == 0 ? 0 : weighted / sum);
    }
    if (threadIdx.x == 0) p.lse[at] = sum == 0 ? -INFINITY : max + logf(sum);
}

enum { SMEM_BYTES = (2 * STAGES * TILE + BLOCK_M * HEAD_DIM) * 2, OFFSET_BYTES = 4 * BLOCK_N * 8 };
/* Blocks that a multiprocessor has room for at once: shared memory, and registers (up to 256 a thread). */
enum { FIT_SMEM = 227 * 1024 / (SMEM_BYTES + 1024), FIT_REGISTERS = THREADS < 256 ? 256 / THREADS : 1 };
enum { BLOCKS_AT_ONCE = FIT_SMEM < FIT_REGISTERS ? FIT_SMEM : FIT_REGISTERS };

/* How many parts: as asked, or as many as fill the multiprocessors, if one part leaves half of their room empty. */
static int choose_splits(const AttentionParams *p)
{
    const int64_t blocks = blocks_for(p, 1, BLOCK_M), room = (int64_t)p->multiprocessors * BLOCKS_AT_ONCE;
    const int64_t tiles = (keys_at_most(p, BLOCK_M) + BLOCK_N - 1) / BLOCK_N;
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
    const int64_t blocks = blocks_for(p, split.num_splits, BLOCK_M);
    if (needs_lookup(p))
        LAUNCH(flash_fwd_lookup, blocks, THREADS, SMEM_BYTES + OFFSET_BYTES, split);
    else if (heads_together(p, BLOCK_M) > 1)
        LAUNCH(flash_fwd_packed, blocks, THREADS, SMEM_BYTES, split);
    else
        LAUNCH(flash_fwd, blocks, THREADS, SMEM_BYTES, split);
    if (split.num_splits > 1)
        LAUNCH_EARLY(combine, lse_rows(p), THREADS, WARPS * (HEAD_DIM + 2) * sizeof(float), split);
}

int main(int argc, char **argv)
{
    return attention_main(argc, argv, "step06_variants", workspace, launch);
}
