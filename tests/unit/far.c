/* Runs a step on arrays whose batch entries lie 2^31 elements apart, and again on the same numbers close together; the
 * results must be the same bits.  Linked with a step's plain object, in place of common/main.c. */
#include "../../common/attention.h"
#include "../../common/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int unobserved_main(int argc, char **argv);

enum { BATCH = 2, ROWS = 20, KEYS = 40, D = 64, Q = ROWS * D, KV = KEYS * D, PART = 2 * Q + 2 * KV };

/* q, k, v and o of one batch entry stand one after another; the entries are `apart` elements apart. */
static void run(const Step *step, int64_t apart, element_t *o, float *lse)
{
    element_t *host = calloc(PART, sizeof *host);
    element_t *memory = backend_alloc((apart + PART) * (int64_t)sizeof *memory, "arrays");
    AttentionParams p;
    memset(&p, 0, sizeof p);
    for (int b = 0; b < BATCH; b++) {
        for (int i = 0; i < PART; i++) host[i].bits = (uint16_t)(0x3000 + (i * 7919 + b * 104729) % 0x0a00); /* 0.1 .. 1 */
        backend_upload(memory + b * apart, host, PART * (int64_t)sizeof *host);
    }
    p.q = memory, p.k = memory + Q, p.v = memory + Q + KV, p.o = memory + Q + 2 * KV;
    p.q_stride = p.o_stride = (Strides){apart, Q, D};
    p.k_stride = p.v_stride = (Strides){apart, KV, D};
    p.lse_stride = (Strides){ROWS, ROWS, 1};
    p.batch = BATCH, p.heads = p.kv_heads = 1, p.seq_q = ROWS, p.seq_kv = KEYS, p.head_dim = D;
    p.scale = 0.125f, p.scale_log2 = p.scale * 1.44269504f;
    p.window_left = p.window_right = -1;
    p.lse = backend_alloc(BATCH * ROWS * (int64_t)sizeof(float), "lse");
    if (step->workspace) p.workspace = backend_alloc(step->workspace(&p), "workspace");
    step->launch(&p);
    for (int b = 0; b < BATCH; b++) backend_download(o + b * Q, p.o + b * apart, Q * (int64_t)sizeof *o);
    backend_download(lse, p.lse, BATCH * ROWS * (int64_t)sizeof(float));
    backend_free(memory);
    free(host);
}

int run_step(int argc, char **argv, const Step *step)
{
    (void)argc, (void)argv;
    static element_t near_o[BATCH * Q], far_o[BATCH * Q];
    static float near_lse[BATCH * ROWS], far_lse[BATCH * ROWS];
    backend_init(0);
    run(step, PART, near_o, near_lse);
    run(step, ((int64_t)1 << 31) + 64, far_o, far_lse);
    const int differ = memcmp(near_o, far_o, sizeof far_o) || memcmp(near_lse, far_lse, sizeof far_lse);
    for (int i = 0; i < BATCH * Q; i++)
        if ((far_o[i].bits & 0x7c00) == 0x7c00) return 1; /* not written, or NaN */
    puts(differ ? "different" : "the same");
    return differ;
}

int main(void)
{
    return unobserved_main(0, NULL);
}
