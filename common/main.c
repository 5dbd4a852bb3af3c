/* What every step does around its kernel: inputs, device arrays, launch, check, report. */
#include "result.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the shape ---- */

static void read_file(const Run *run, const char *option, const char *path, NpyArray *array)
{
    char error[512];
    if (npy_read(path, array, error, sizeof error)) refuse(run->step, "%s: %s", option, error);
}

static void read_input(const Run *run, const char *option, const char *path, NpyArray *array)
{
    const NpyType own = run->step->bf16 ? NPY_U16 : NPY_F16;
    const char *layout = run->options.bshd ? "[B,S,H,D]" : "[B,H,S,D]";
    read_file(run, option, path, array);
    if (array->type != own && array->type != NPY_F32)
        refuse(run->step, "%s %s is %s: this build takes %s or f32; convert it%s", option, path,
               npy_type_name(array->type), npy_type_name(own),
               array->type == NPY_F16   ? ", or build with DTYPE=f16"
               : array->type == NPY_U16 ? ", or build with DTYPE=bf16"
                                        : "");
    if (array->dims != 4)
        refuse(run->step, "%s %s has %d dimensions: it must have four, %s", option, path, array->dims, layout);
    for (int i = 0; i < 4; i++) {
        if (array->shape[i] < 1 || array->shape[i] > INT_MAX)
            refuse(run->step, "%s %s has size %lld along dimension %d of %s: sizes are 1 to %d", option, path,
                   (long long)array->shape[i], i, layout, INT_MAX);
    }
}

static void read_inputs(Run *run)
{
    const Options *options = &run->options;
    static const char *const bhsd_names[4] = {"B", "H", "S", "D"}, *const bshd_names[4] = {"B", "S", "H", "D"};
    const char *const *names = options->bshd ? bshd_names : bhsd_names;
    const int row = options->bshd ? 1 : 2, head = options->bshd ? 2 : 1;
    read_input(run, "--q", options->q, &run->q);
    read_input(run, "--k", options->k, &run->k);
    read_input(run, "--v", options->v, &run->v);
    for (int i = 0; i < 4; i++) {
        const long long q = run->q.shape[i], k = run->k.shape[i], v = run->v.shape[i];
        if (q != k && (i == 0 || i == 3))
            refuse(run->step, "%s = %lld in --k %s but %lld in --q %s: they must agree", names[i], k, options->k, q,
                   options->q);
        if (k != v)
            refuse(run->step, "%s = %lld in --v %s but %lld in --k %s: v has the shape of k", names[i], v, options->v,
                   k, options->k);
    }
    run->host.batch = (int)run->q.shape[0];
    run->host.heads = (int)run->q.shape[head];
    run->host.kv_heads = (int)run->k.shape[head];
    run->host.seq_q = (int)run->q.shape[row];
    run->host.seq_kv = (int)run->k.shape[row];
    run->host.head_dim = (int)run->q.shape[3];
}

/* The two layouts differ in these strides and in nothing else. */
static Strides strides_of(int bshd, int heads, int rows, int head_dim)
{
    const int64_t d = head_dim;
    const Strides bhsd_strides = {heads * d * rows, rows * d, d}, bshd_strides = {heads * d * rows, d, heads * d};
    return bshd ? bshd_strides : bhsd_strides;
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

/* B, H, S and D, from the options or from the files, with the rules that they obey. */
static void set_shape(Run *run)
{
    const Step *step = run->step;
    const Options *options = &run->options;
    AttentionParams *p = &run->host;
    p->batch = options->batch;
    p->heads = p->kv_heads = options->heads;
    p->seq_q = options->seq_q;
    p->seq_kv = options->seq_kv;
    p->head_dim = options->head_dim;
    if (options->q) read_inputs(run);

    const int d = p->head_dim;
    const char *source = options->q ? "of --q" : "(--head-dim)";
    if (p->heads != p->kv_heads)
        refuse(step, "%d heads in --q, %d in --k: here every query head has its own; repeat k and v",
               p->heads, p->kv_heads);
    if (d > 256) refuse(step, "D = %d %s: the largest head dimension is 256", d, source);
    if (d % 8)
        refuse(step, "D = %d %s: it must be a multiple of 8; pad q, k and v with zeros to %d and add --scale %g", d,
               source, (d + 7) / 8 * 8, isnan(options->scale) ? 1 / sqrt(d) : options->scale);
    if (d > step->head_dim) {
        static const int sizes[] = {32, 64, 96, 128, 192, 256};
        int i = 0;
        while (sizes[i] < d) i++;
        refuse(step, "D = %d %s is more than the HEAD_DIM = %d of this build; use make %.*s HEAD_DIM=%d", d, source,
               step->head_dim, (int)strcspn(step->name, "_"), step->name, sizes[i]);
    }

    p->scale = (float)(isnan(options->scale) ? 1 / sqrt(d) : options->scale);
    p->scale_log2 = p->scale * 1.44269504088896340736f;
    p->window_left = p->window_right = -1;
}

/* Counts, strides and workspace; refuses what does not fit.  In float64, which does not overflow, and in which every
 * size that fits in memory is exact. */
static void set_sizes(Run *run)
{
    AttentionParams *p = &run->host;
    const double rows = (double)p->batch * p->heads * p->seq_q, keys = (double)p->batch * p->kv_heads * p->seq_kv;
    const double lse_bytes = rows * sizeof(float), o_bytes = rows * p->head_dim * sizeof(element_t);
    const double arrays = 2 * o_bytes + 2 * keys * p->head_dim * sizeof(element_t) + lse_bytes;
    const double reference = run->options.no_check ? 0 : (2 * rows * p->head_dim + 4 * rows) * sizeof(double);
    const double host = arrays + reference, memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const double needed = run->info.is_gpu ? arrays : arrays + host, free_bytes = (double)run->info.memory_free;
    if (needed > free_bytes)
        refuse(run->step,
               "B=%d H=%d Sq=%d Skv=%d D=%d needs %.0f bytes and %.0f are free on %s; make the problem smaller",
               p->batch, p->heads, p->seq_q, p->seq_kv, p->head_dim, needed, free_bytes, run->info.name);
    if (run->info.is_gpu && host > memory)
        refuse(run->step,
               "the problem needs %.0f bytes on the host too and it has %.0f; make it smaller or add --no-check", host,
               memory);

    /* Now products of sizes fit into 64 bits. */
    run->lse_count = (int64_t)rows;
    run->q_count = (int64_t)(rows * p->head_dim);
    run->kv_count = (int64_t)(keys * p->head_dim);
    p->q_stride = p->o_stride = strides_of(run->options.bshd, p->heads, p->seq_q, p->head_dim);
    p->k_stride = p->v_stride = strides_of(run->options.bshd, p->kv_heads, p->seq_kv, p->head_dim);
    p->lse_stride = strides_of(0, p->heads, p->seq_q, 1);
    run->workspace_bytes = run->step->workspace ? run->step->workspace(p) : 0;
    if ((double)run->workspace_bytes > free_bytes - needed)
        refuse(run->step,
               "the step asks for %s%.0f bytes of workspace for its %d x %d scores, and %.0f are free; shorten the "
               "sequences, or take step02: it keeps no scores",
               run->workspace_bytes == INT64_MAX ? "more than " : "", (double)run->workspace_bytes, p->seq_q, p->seq_kv,
               free_bytes - needed);
}

/* ---- the arrays ---- */

static void *allocate(const Run *run, int64_t bytes)
{
    void *memory = malloc((size_t)bytes);
    if (!memory) refuse(run->step, "the host has no %lld bytes left; make the problem smaller", (long long)bytes);
    return memory;
}

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
    void *device = backend_alloc(bytes, name);
    backend_upload(device, host, bytes);
    return device;
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
    if (negative) flip_signs(host->q, run->q_count);
    p->q = (const element_t *)put_on_device("q", host->q, q_bytes);
    if (negative) flip_signs(host->q, run->q_count);
    p->k = (const element_t *)put_on_device("k", host->k, kv_bytes);
    p->v = (const element_t *)put_on_device("v", host->v, kv_bytes);

    memset(host->o, 0xff, (size_t)q_bytes); /* NaN: an element that the kernel leaves out cannot pass for a result */
    memset(host->lse, 0xff, (size_t)lse_bytes);
    p->o = (element_t *)put_on_device("o", host->o, q_bytes);
    p->lse = (float *)put_on_device("lse", host->lse, lse_bytes);
    if (run->workspace_bytes) p->workspace = backend_alloc(run->workspace_bytes, "workspace");
}

static void free_all(Run *run)
{
    const void *device[] = {run->device.q, run->device.k,   run->device.v,
                            run->device.o, run->device.lse, run->device.workspace};
    const void *host[] = {run->host.q, run->host.k, run->host.v, run->host.o, run->host.lse};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) {
        if (device[i]) backend_free((void *)device[i]);
    }
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free((void *)host[i]);
    if (run->previous_o.data) npy_free(&run->previous_o);
    if (run->previous_lse.data) npy_free(&run->previous_lse);
    if (!run->options.no_check) reference_free(&run->reference);
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

static void write_array(const Run *run, const char *path, NpyType type, int dims, const int64_t shape[4], void *data)
{
    char error[512];
    NpyArray array = {type, dims, {0}, 1, data};
    for (int i = 0; i < dims; i++) array.count *= array.shape[i] = shape[i];
    if (npy_write(path, &array, error, sizeof error)) refuse(run->step, "%s", error);
}

/* ---- the run ---- */

/* The CPU build links a step twice: with every memory access observed, and plain under this name.  On the GPU there is
 * one program. */
extern int unobserved_main(int argc, char **argv) __attribute__((weak));
static int is_unobserved; /* this is already the plain one */

int run_step(int argc, char **argv, const Step *step)
{
    Run run = {.step = step, .time_ms = NAN, .tflops = NAN, .pass = 1};
    const Options *options = &run.options;
    if (parse_options(argc, argv, step, &run.options)) return 0;
    if (options->no_observe && unobserved_main && !is_unobserved) {
        is_unobserved = 1;
        return unobserved_main(argc, argv);
    }

    set_shape(&run);
    const AttentionParams *p = &run.host;
    const NpyType type = step->bf16 ? NPY_U16 : NPY_F16;
    const int64_t b = p->batch, h = p->heads, s = p->seq_q, d = p->head_dim;
    const int64_t o_shape[4] = {b, options->bshd ? s : h, options->bshd ? h : s, d}, lse_shape[4] = {b, h, s, 0};
    if (options->previous_out)
        read_previous(&run, "--previous-out", options->previous_out, &run.previous_o, type, 4, o_shape);
    if (options->previous_lse)
        read_previous(&run, "--previous-lse", options->previous_lse, &run.previous_lse, NPY_F32, 3, lse_shape);
    backend_init(!options->no_observe);
    backend_observe_blocks(options->observe_blocks);
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
    run.counters = backend_counters();
    if (run.counters.errors) { /* each was printed where it was found */
        printf("FAIL     the executor found %lld errors in the kernel\n", (long long)run.counters.errors);
        free_all(&run);
        return 1;
    }
    backend_download(p->o, run.device.o, run.q_count * (int64_t)sizeof(element_t));
    backend_download(p->lse, run.device.lse, run.lse_count * (int64_t)sizeof(float));
    if (!options->no_check) check(&run);
    if (options->bench && run.pass) { /* a wrong kernel is not timed */
        run.time_ms = backend_time(launch, &run, options->bench, !options->no_flush);
        run.tflops = 4.0 * (double)run.q_count * p->seq_kv / run.time_ms * 1e-9;
    }

    if (options->out) write_array(&run, options->out, type, 4, o_shape, p->o);
    if (options->lse) write_array(&run, options->lse, NPY_F32, 3, lse_shape, p->lse);
    if (options->json) write_json(&run);
    if (options->row) append_row(&run);
    print_report(&run);
    if (options->profile) backend_profile(stdout, options->by_cost);
    free_all(&run);
    return !run.pass;
}
