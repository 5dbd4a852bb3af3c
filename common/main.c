/* What every step does around its kernel: arrays on the host and on the device, launch, check, report. */
#include "inputs.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the shape ---- */

/* The two layouts differ in these strides and in nothing else. */
static Strides strides_of(int bshd, int heads, int rows, int head_dim)
{
    const int64_t d = head_dim;
    const Strides bhsd_strides = {heads * d * rows, rows * d, d}, bshd_strides = {heads * d * rows, d, heads * d};
    return bshd ? bshd_strides : bhsd_strides;
}

/* [T, H, D], the rows of all sequences one after another: [B, S, H, D] whose rows are counted through. */
static Strides packed_strides(int heads, int head_dim)
{
    Strides stride = strides_of(1, heads, 0, head_dim);
    stride.batch = 0;
    return stride;
}

static void read_previous(const Run *run, const char *option, const char *path, NpyArray *array, NpyType type, int dims,
                          const int64_t shape[4])
{
    read_file(run, option, path, array);
    int same = array->type == type && array->dims == dims;
    for (int i = 0; same && i < dims; i++) same = array->shape[i] == shape[i];
    if (!same)
        refuse(run->step, "%s %s has another type or shape than this run; make it with the same input", option, path);
}

/* What a step keeps between its kernels: step01 the scores, step06 the results of the parts of a split. */
static _Noreturn void refuse_workspace(const Run *run, double left)
{
    const AttentionParams *p = &run->host;
    const char *more = run->workspace_bytes == INT64_MAX ? "more than " : "";
    const double bytes = (double)run->workspace_bytes;
    if (!run->step->variants)
        refuse(run->step,
               "the step asks for %s%.0f bytes of workspace for its %d x %d scores, and %.0f are free; shorten the "
               "sequences, or take step02: it keeps no scores",
               more, bytes, p->seq_q, p->seq_kv, left);
    if (!p->num_splits)
        refuse(run->step,
               "without --splits the step splits the keys as it sees fit, and the results of the parts take %s%.0f "
               "bytes of workspace; %.0f are free: add --splits 1",
               more, bytes, left);
    refuse(run->step,
           "--splits %d: the results of the parts take %s%.0f bytes of workspace, and %.0f are free; give a smaller "
           "number",
           p->num_splits, more, bytes, left);
}

enum { LONGEST = INT_MAX - 65536 };

/* Counts, strides and workspace; refuses what does not fit.  In float64, which does not overflow, and in which every
 * size that fits in memory is exact. */
static void set_sizes(Run *run)
{
    AttentionParams *p = &run->host;
    const double rows = (double)run->q_rows * p->heads, keys = (double)run->kv_rows * p->kv_heads;
    const double lse_bytes = rows * sizeof(float), o_bytes = rows * p->head_dim * sizeof(element_t);
    const double indices = (double)run->mask_bytes + (double)p->batch * p->max_pages * sizeof(int);
    const double arrays = 2 * o_bytes + 2 * keys * p->head_dim * sizeof(element_t) + lse_bytes + indices;
    const double reference = run->options.no_check ? 0 : (2 * rows * p->head_dim + 4 * rows) * sizeof(double);
    const double host = arrays + reference, memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const double needed = run->info.is_gpu ? arrays : arrays + host, free_bytes = (double)run->info.memory_free;
    const double left = free_bytes - needed;
    if (needed > free_bytes)
        refuse(run->step,
               "B=%d H=%d Sq=%d Skv=%d D=%d needs %.0f bytes and %.0f are free on %s; make the problem smaller",
               p->batch, p->heads, p->seq_q, p->seq_kv, p->head_dim, needed, free_bytes, run->info.name);
    if (run->info.is_gpu && host > memory)
        refuse(run->step,
               "the problem needs %.0f bytes on the host too and it has %.0f; make it smaller or add --no-check", host,
               memory);
    if (p->seq_q > LONGEST - p->seq_kv) /* the kernels count rows and keys in 32 bits, and a tile beyond the end */
        refuse(run->step, "Sq=%d Skv=%d: rows and keys of a sequence may be %d together", p->seq_q, p->seq_kv, LONGEST);

    /* Now products of sizes fit into 64 bits. */
    run->lse_count = (int64_t)rows;
    run->q_count = (int64_t)(rows * p->head_dim);
    run->kv_count = (int64_t)(keys * p->head_dim);
    p->q_stride = strides_of(run->options.bshd, p->heads, p->seq_q, p->head_dim);
    p->k_stride = strides_of(run->options.bshd, p->kv_heads, p->seq_kv, p->head_dim);
    p->lse_stride = strides_of(0, p->heads, p->seq_q, 1);
    if (p->cu_seqlens_q) {
        p->q_stride = packed_strides(p->heads, p->head_dim);
        p->lse_stride = (Strides){0, run->q_rows, 1};
    }
    if (p->cu_seqlens_kv) p->k_stride = packed_strides(p->kv_heads, p->head_dim);
    if (p->block_table) p->k_stride = strides_of(1, p->kv_heads, p->page_size, p->head_dim); /* batch: of a page */
    p->o_stride = p->q_stride;
    p->v_stride = p->k_stride;
    p->multiprocessors = run->info.multiprocessors;
    run->workspace_bytes = run->step->workspace ? run->step->workspace(p) : 0;
    if ((double)run->workspace_bytes > left) refuse_workspace(run, left);
}

/* ---- the arrays ---- */

/* Normal random numbers, in the order b, h, s, d whatever the layout.  splitmix64 (Steele, Lea, Flood 2014) makes 64
 * random bits; Box and Muller's formula makes two normal numbers of them. */
static element_t *generate(const Run *run, uint64_t *state, int64_t count, int heads, int rows, Strides stride)
{
    element_t *array = (element_t *)allocate(run, count * (int64_t)sizeof(element_t));
    const int64_t d_count = run->host.head_dim, all_rows = count / d_count;
    for (int64_t r = 0; r < all_rows; r++) {
        const int64_t batch = r / rows / heads, head = r / rows % heads, row = r % rows;
        element_t *at = array + batch * stride.batch + head * stride.head + row * stride.row;
        for (int64_t d = 0; d < d_count; d += 2) {
            uint64_t x = *state += 0x9e3779b97f4a7c15u;
            x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
            x = (x ^ x >> 27) * 0x94d049bb133111ebu;
            x ^= x >> 31;
            const float radius = sqrtf(-2 * logf((float)((x >> 40) + 1) * 0x1p-24f)); /* (0, 1] */
            const float angle = 6.28318531f * (float)(x & 0xffffff) * 0x1p-24f;
            at[d].bits = float_to_element(radius * cosf(angle), run->step->bf16);
            at[d + 1].bits = float_to_element(radius * sinf(angle), run->step->bf16);
        }
    }
    return array;
}

/* The array of a file in the type of this build: its own data, or float32 rounded once. */
static element_t *convert(const Run *run, NpyArray *file)
{
    element_t *array = (element_t *)file->data;
    if (file->type == NPY_F32) {
        const float *values = (const float *)file->data;
        array = (element_t *)allocate(run, file->count * (int64_t)sizeof(element_t));
        for (int64_t i = 0; i < file->count; i++) array[i].bits = float_to_element(values[i], run->step->bf16);
        free(file->data);
    }
    file->data = NULL;
    return array;
}

static void make_host_arrays(Run *run)
{
    AttentionParams *p = &run->host;
    uint64_t state = run->options.seed;
    if (run->options.q) {
        p->q = convert(run, &run->q);
        p->k = convert(run, &run->k);
        p->v = convert(run, &run->v);
    } else {
        p->q = generate(run, &state, run->q_count, p->heads, p->seq_q, p->q_stride);
        p->k = generate(run, &state, run->kv_count, p->kv_heads, p->seq_kv, p->k_stride);
        p->v = generate(run, &state, run->kv_count, p->kv_heads, p->seq_kv, p->v_stride);
    }
    p->o = (element_t *)allocate(run, run->q_count * (int64_t)sizeof(element_t));
    p->lse = (float *)allocate(run, run->lse_count * (int64_t)sizeof(float));
}

static void flip_signs(const element_t *array, int64_t count)
{
    element_t *writable = (element_t *)array;
    for (int64_t i = 0; i < count; i++) writable[i].bits ^= 0x8000;
}

static void *put_on_device(const char *name, const void *host, int64_t bytes)
{
    if (!host) return NULL;
    void *device = backend_alloc(bytes ? bytes : 1, name); /* not even a backend can allocate nothing */
    backend_upload(device, host, bytes);
    return device;
}

/* Index arrays, masks and sinks, where there are any. */
static void put_variants_on_device(const Run *run, AttentionParams *p)
{
    const AttentionParams *host = &run->host;
    const int64_t word = sizeof(int64_t), batch = host->batch;
    p->cu_seqlens_q = (const int64_t *)put_on_device("cu_seqlens_q", host->cu_seqlens_q, (batch + 1) * word);
    p->cu_seqlens_kv = (const int64_t *)put_on_device("cu_seqlens_kv", host->cu_seqlens_kv, (batch + 1) * word);
    p->kv_lens = (const int64_t *)put_on_device("kv_lens", host->kv_lens, batch * word);
    p->block_table =
        (const int *)put_on_device("block_table", host->block_table, batch * host->max_pages * (int64_t)sizeof(int));
    p->sinks = (const float *)put_on_device("sinks", host->sinks, host->heads * (int64_t)sizeof(float));
    p->block_mask = (const unsigned char *)put_on_device("block_mask", host->block_mask, run->mask_bytes);
}

static void make_device_arrays(Run *run)
{
    const AttentionParams *host = &run->host;
    AttentionParams *p = &run->device;
    const int64_t q_bytes = run->q_count * (int64_t)sizeof(element_t);
    const int64_t kv_bytes = run->kv_count * (int64_t)sizeof(element_t);
    const int64_t lse_bytes = run->lse_count * (int64_t)sizeof(float);
    const int negative = host->scale < 0;
    *p = *host;

    /* Kernels take the maximum of the unscaled scores, which needs scale > 0.  A sign moves into q, exactly.  Zero
     * becomes the smallest normal number: exp of what it leaves of a score is 1 after rounding in f32, and -inf * scale
     * stays -inf where 0 would give NaN. */
    p->scale = fmaxf(fabsf(host->scale), FLT_MIN);
    p->scale_log2 = p->scale * 1.44269504088896340736f;
    /* They cap the unscaled score s too: c * tanh(s / c), c = softcap / scale.  A c beyond f32's range is off: tanh(x) is
     * x in f32 from |x| = 2e-4 down, and s / c is larger only for an s near the end of that range.  Under a scale of 0
     * each scaled score is 0, capped or not. */
    if (isinf(p->softcap / p->scale)) p->softcap = 0;
    if (negative) flip_signs(host->q, run->q_count);
    p->q = (const element_t *)put_on_device("q", host->q, q_bytes);
    if (negative) flip_signs(host->q, run->q_count);
    p->k = (const element_t *)put_on_device("k", host->k, kv_bytes);
    p->v = (const element_t *)put_on_device("v", host->v, kv_bytes);

    memset(host->o, 0xff, (size_t)q_bytes); /* NaN: an element that the kernel leaves out cannot pass for a result */
    memset(host->lse, 0xff, (size_t)lse_bytes);
    p->o = (element_t *)put_on_device("o", host->o, q_bytes);
    p->lse = (float *)put_on_device("lse", host->lse, lse_bytes);
    put_variants_on_device(run, p);
    if (run->workspace_bytes) p->workspace = backend_alloc(run->workspace_bytes, "workspace");
}

static void free_all(Run *run)
{
    const AttentionParams *const both[] = {&run->host, &run->device};
    for (int on_device = 0; on_device < 2; on_device++) {
        const AttentionParams *p = both[on_device];
        const void *arrays[] = {p->q,       p->k,           p->v,     p->o,          p->lse,           p->cu_seqlens_q,
                                p->kv_lens, p->block_table, p->sinks, p->block_mask, p->cu_seqlens_kv, p->workspace};
        for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
            if (!on_device)
                free((void *)arrays[i]);
            else if (arrays[i])
                backend_free((void *)arrays[i]);
        }
    }
    if (run->previous_o.data) npy_free(&run->previous_o);
    if (run->previous_lse.data) npy_free(&run->previous_lse);
    reference_free(&run->reference);
}

/* ---- launch and check ---- */

static void launch(void *context)
{
    const Run *run = (const Run *)context;
    run->step->launch(&run->device);
}

static void check(Run *run)
{
    const AttentionParams *p = &run->host;
    if (reference_compute(p, run->step->bf16, 3e9, &run->reference))
        refuse(run->step, "the host has no memory left for the reference; make the problem smaller or add --no-check");
    run->o = compare_o(&run->reference, p, p->o);
    run->lse = compare_lse(&run->reference, p, p->lse);
    if (run->options.previous_out)
        run->o_change = compare_o_pair(&run->reference, p, p->o, (const element_t *)run->previous_o.data);
    if (run->options.previous_lse)
        run->lse_change = compare_lse_pair(&run->reference, p, p->lse, (const float *)run->previous_lse.data);
    run->pass = !run->o.failures && !run->lse.failures && !run->o_change.failures && !run->lse_change.failures;
}

static void write_array(const Run *run, const char *option, const char *path, NpyType type, int dims,
                        const int64_t shape[4], void *data)
{
    char error[512];
    NpyArray array = {type, dims, {0}, 1, data};
    for (int i = 0; i < dims; i++) array.count *= array.shape[i] = shape[i];
    if (npy_write(path, &array, error, sizeof error)) refuse(run->step, "%s %s", option, error);
}

/* ---- the run ---- */

/* The CPU build links a step twice: with every memory access observed, and plain under this name.  On the GPU there is
 * one program. */
extern int unobserved_main(int argc, char **argv) __attribute__((weak));
static int is_unobserved; /* this is already the plain one */

/* What was printed may be in a buffer still: a full disk shows here. */
static int finish(const Step *step, int status)
{
    if (fflush(stdout) || ferror(stdout)) refuse(step, "standard output: writing failed; is the disk full?");
    return status;
}

int run_step(int argc, char **argv, const Step *step)
{
    Run run = {.step = step, .time_ms = NAN, .tflops = NAN, .tb_per_s = NAN, .pass = 1};
    const Options *options = &run.options;
    if (parse_options(argc, argv, step, &run.options)) return finish(step, 0);
    if (options->no_observe && unobserved_main && !is_unobserved) {
        is_unobserved = 1;
        return unobserved_main(argc, argv);
    }

    read_problem(&run);
    const AttentionParams *p = &run.host;
    const NpyType type = step->bf16 ? NPY_U16 : NPY_F16;
    const int64_t b = p->batch, h = p->heads, s = p->seq_q, d = p->head_dim;
    const int dims = p->cu_seqlens_q ? 3 : 4; /* of o; lse has one less */
    int64_t o_shape[4] = {b, options->bshd ? s : h, options->bshd ? h : s, d}, lse_shape[4] = {b, h, s, 0};
    if (p->cu_seqlens_q) {
        o_shape[0] = lse_shape[1] = run.q_rows;
        o_shape[1] = lse_shape[0] = h;
        o_shape[2] = d;
    }
    if (options->previous_out)
        read_previous(&run, "--previous-out", options->previous_out, &run.previous_o, type, dims, o_shape);
    if (options->previous_lse)
        read_previous(&run, "--previous-lse", options->previous_lse, &run.previous_lse, NPY_F32, dims - 1, lse_shape);
    backend_init(!options->no_observe);
    backend_observe_blocks(options->observe_blocks);
    backend_trace(options->trace);
    run.info = backend_info();
    if (options->bench && !run.info.is_gpu)
        refuse(step, "--bench: the CPU executor counts and checks, it never prints a speed; build with BACKEND=cuda");
    set_sizes(&run);

    print_problem(&run);
    make_host_arrays(&run);
    make_device_arrays(&run);
    backend_counters_reset();
    launch(&run);
    backend_synchronize();
    if (options->trace) backend_trace_print(stdout);
    run.counters = backend_counters();
    if (run.counters.errors) { /* each was printed where it was found */
        printf("FAIL     the executor found %lld errors in the kernel\n", (long long)run.counters.errors);
        free_all(&run);
        return finish(step, 1);
    }
    backend_download(p->o, run.device.o, run.q_count * (int64_t)sizeof(element_t));
    backend_download(p->lse, run.device.lse, run.lse_count * (int64_t)sizeof(float));
    if (!options->no_check) check(&run);
    if (options->bench && run.pass) { /* a wrong kernel is not timed */
        run.time_ms = backend_time(launch, &run, options->bench, !options->no_flush);
        run.tflops = 4.0 * run.pairs * p->heads * p->head_dim / (options->causal ? 2 : 1) / run.time_ms * 1e-9;
        run.tb_per_s = 2.0 * run.keys * p->kv_heads * p->head_dim * sizeof(element_t) / run.time_ms * 1e-9;
    }

    if (options->out) write_array(&run, "--out", options->out, type, dims, o_shape, p->o);
    if (options->lse) write_array(&run, "--lse", options->lse, NPY_F32, dims - 1, lse_shape, p->lse);
    if (options->json) write_json(&run);
    if (options->row) append_row(&run);
    print_report(&run);
    if (options->profile) backend_profile(stdout, options->by_cost);
    free_all(&run);
    return finish(step, !run.pass);
}
