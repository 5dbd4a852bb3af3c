/* step01_naive: attention as it is written on paper, one kernel for each line of it.
 *     S = Q K^T        scores:   a thread for each score
 *     P = softmax(S)   softmax:  a warp for each row, in three passes over it; P takes the place of S
 *     O = P V          output:   a thread for each element of O
 * S and P lie in global memory, in f32: 4 N^2 elements of traffic beside the 4 N D of Q, K, V and O, and N^2 of memory.
 * Still slow: everything, but above all that traffic (step02 keeps S and P in registers).
 * Limits: D <= HEAD_DIM in multiples of 8; any lengths, as long as S fits into memory.
 *
 * make run-step01        make compare        (the chapter is README.md beside this file) */
#include "../common/attention.h"
#include "../common/ptx.h"

enum { THREADS = WARP_SIZE * WARPS };

static __device__ inline int64_t s_offset(const AttentionParams p, int batch, int head, int row) /* of S[b,h,row,0] */
{
    return (((int64_t)batch * p.heads + head) * p.seq_q + row) * p.seq_kv;
}

__global__ void scores(const AttentionParams p)
{
    const int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x; /* into S [B, heads, seq_q, seq_kv] */
    const int64_t row_of_all = index / p.seq_kv;
    const int key = (int)(index % p.seq_kv), row = (int)(row_of_all % p.seq_q);
    const int head = (int)(row_of_all / p.seq_q % p.heads), batch = (int)(row_of_all / p.seq_q / p.heads);
    if (batch >= p.batch) return;
    const element_t *q = p.q + batch * p.q_stride.batch + head * p.q_stride.head + row * p.q_stride.row; /* [D] */
    const element_t *k = p.k + batch * p.k_stride.batch + head * p.k_stride.head + key * p.k_stride.row; /* [D] */
    float *s = (float *)p.workspace;
    float dot = 0;
    for (int d = 0; d < p.head_dim; d++) dot += to_float(q[d]) * to_float(k[d]);
    s[index] = dot;
}

__global__ void softmax(const AttentionParams p)
{
    const int lane = threadIdx.x % WARP_SIZE;
    const int64_t row_of_all = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP_SIZE; /* into LSE [B, heads, seq_q] */
    const int row = (int)(row_of_all % p.seq_q);
    const int head = (int)(row_of_all / p.seq_q % p.heads), batch = (int)(row_of_all / p.seq_q / p.heads);
    if (batch >= p.batch) return;
    float *s = (float *)p.workspace + s_offset(p, batch, head, row); /* [seq_kv], becomes P */

    float row_max = -INFINITY;
    for (int key = lane; key < p.seq_kv; key += WARP_SIZE) row_max = fmaxf(row_max, s[key]);
    for (int lanes = 1; lanes < WARP_SIZE; lanes *= 2)
        row_max = fmaxf(row_max, __shfl_xor_sync(FULL_WARP, row_max, lanes));
    const float finite_max = row_max == -INFINITY ? 0 : row_max; /* -inf - -inf would be NaN */

    float row_sum = 0;
    for (int key = lane; key < p.seq_kv; key += WARP_SIZE)
        row_sum += exp2_approx((s[key] - finite_max) * p.scale_log2);
    for (int lanes = 1; lanes < WARP_SIZE; lanes *= 2) row_sum += __shfl_xor_sync(FULL_WARP, row_sum, lanes);
    const float inverse = row_sum == 0 ? 0 : 1 / row_sum;

    for (int key = lane; key < p.seq_kv; key += WARP_SIZE)
        s[key] = exp2_approx((s[key] - finite_max) * p.scale_log2) * inverse;
    if (lane == 0)
        p.lse[batch * p.lse_stride.batch + head * p.lse_stride.head + row] =
            row_sum == 0 ? -INFINITY : row_max * p.scale + logf(row_sum);
}

__global__ void output(const AttentionParams p)
{
    const int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x; /* into [B, heads, seq_q, D] */
    const int64_t row_of_all = index / p.head_dim;
    const int d = (int)(index % p.head_dim), row = (int)(row_of_all % p.seq_q);
    const int head = (int)(row_of_all / p.seq_q % p.heads), batch = (int)(row_of_all / p.seq_q / p.heads);
    if (batch >= p.batch) return;
    const float *s = (const float *)p.workspace + s_offset(p, batch, head, row);        /* P's row, [seq_kv] */
    const element_t *v = p.v + batch * p.v_stride.batch + head * p.v_stride.head + d;   /* V's column, [seq_kv] */
    float sum = 0;
    for (int key = 0; key < p.seq_kv; key++) sum += s[key] * to_float(v[key * p.v_stride.row]);
    p.o[batch * p.o_stride.batch + head * p.o_stride.head + row * p.o_stride.row + d] = to_element(sum);
}

static int64_t workspace(const AttentionParams *p) /* bytes of S */
{
    const double bytes = 4.0 * p->batch * p->heads * p->seq_q * p->seq_kv;
    return bytes < 9e18 ? 4 * (int64_t)p->batch * p->heads * p->seq_q * p->seq_kv : INT64_MAX;
}

static void launch(const AttentionParams *p)
{
    const int64_t rows = (int64_t)p->batch * p->heads * p->seq_q;
    LAUNCH(scores, (rows * p->seq_kv + THREADS - 1) / THREADS, THREADS, 0, *p);
    LAUNCH(softmax, (rows + WARPS - 1) / WARPS, THREADS, 0, *p);
    LAUNCH(output, (rows * p->head_dim + THREADS - 1) / THREADS, THREADS, 0, *p);
}

int main(int argc, char **argv)
{
    return attention_main(argc, argv, "step01_naive", workspace, launch);
}
