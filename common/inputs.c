/* From the options and the files to the problem: the arrays' shapes, then the sequences, then masks and sinks.  All
 * that can be wrong with them is found here, before anything runs. */
#include "inputs.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

void read_file(const Run *run, const char *option, const char *path, NpyArray *array)
{
    char error[512];
    if (npy_read(path, array, error, sizeof error)) refuse(run->step, "%s: %s", option, error);
}

void *allocate(const Run *run, int64_t bytes)
{
    void *memory = malloc((size_t)bytes + 1); /* + 1: never NULL for nothing */
    if (!memory) refuse(run->step, "the host has no %lld bytes left; make the problem smaller", (long long)bytes);
    return memory;
}

/* ---- q, k and v ---- */

/* What the dimensions of an array are.  D is the last. */
typedef struct Layout {
    const char *text, *count; /* for messages; count: how many dimensions */
    int dims, row, head;
    const char *names[4];
} Layout;
static const Layout bhsd = {"[B,H,S,D]", "four", 4, 2, 1, {"B", "H", "S", "D"}};
static const Layout bshd = {"[B,S,H,D]", "four", 4, 1, 2, {"B", "S", "H", "D"}};
static const Layout packed = {"[T,H,D]", "three", 3, 0, 1, {"T", "H", "D", ""}}; /* T: the rows of all sequences */
static const Layout pages = {"[pages,page size,H,D]", "four", 4, 1, 2, {"pages", "page size", "H", "D"}};

static void read_input(const Run *run, const char *option, const char *path, const Layout *layout, int64_t min_rows,
                       NpyArray *array)
{
    const NpyType own = run->step->bf16 ? NPY_U16 : NPY_F16;
    read_file(run, option, path, array);
    if (array->type != own && array->type != NPY_F32)
        refuse(run->step, "%s %s is %s: this build takes %s or f32; convert it%s", option, path,
               npy_type_name(array->type), npy_type_name(own),
               array->type == NPY_F16   ? ", or build with DTYPE=f16"
               : array->type == NPY_U16 ? ", or build with DTYPE=bf16"
                                        : "");
    if (array->dims != layout->dims)
        refuse(run->step, "%s %s has %d dimensions: it must have %s, %s", option, path, array->dims, layout->count,
               layout->text);
    for (int i = 0; i < layout->dims; i++) {
        const int64_t min = i == layout->row ? min_rows : 1;
        if (array->shape[i] < min || array->shape[i] > INT_MAX)
            refuse(run->step, "%s %s has size %lld along dimension %d of %s: sizes are %d to %d", option, path,
                   (long long)array->shape[i], i, layout->text, (int)min, INT_MAX);
    }
}

/* Fills what the shapes of the files say; batch, seq_q and seq_kv only if the arrays have these dimensions. */
static void read_inputs(Run *run)
{
    const Options *options = &run->options;
    AttentionParams *p = &run->host;
    const Layout *dense = options->bshd ? &bshd : &bhsd;
    const Layout *q_layout = options->cu_seqlens_q ? &packed : dense;
    const Layout *kv_layout = options->block_table ? &pages : options->cu_seqlens_kv ? &packed : dense;
    const int kv_min = kv_layout == &packed ? 0 : 1, kv_dims = kv_layout->dims; /* all sequences of keys may be empty */
    read_input(run, "--q", options->q, q_layout, 1, &run->q);
    read_input(run, "--k", options->k, kv_layout, kv_min, &run->k);
    read_input(run, "--v", options->v, kv_layout, kv_min, &run->v);
    for (int i = 0; i < kv_dims; i++) {
        const char *name = kv_layout->names[i];
        const long long k = run->k.shape[i], v = run->v.shape[i];
        const long long q = run->q.shape[i == kv_dims - 1 ? q_layout->dims - 1 : i];
        if (q != k && (i == kv_dims - 1 || (i == 0 && q_layout == dense && kv_layout == dense)))
            refuse(run->step, "%s = %lld in --k %s but %lld in --q %s: they must agree", name, k, options->k, q,
                   options->q);
        if (k != v)
            refuse(run->step, "%s = %lld in --v %s but %lld in --k %s: v has the shape of k", name, v, options->v, k,
                   options->k);
    }
    p->batch = (int)run->q.shape[0]; /* of dense q; else read_sequences says */
    p->heads = (int)run->q.shape[q_layout->head];
    p->kv_heads = (int)run->k.shape[kv_layout->head];
    p->seq_q = (int)run->q.shape[q_layout->row];
    p->seq_kv = (int)run->k.shape[kv_layout->row];
    p->head_dim = (int)run->q.shape[q_layout->dims - 1];
    run->q_rows = run->q.count / p->heads / p->head_dim;
    run->kv_rows = run->k.count / p->kv_heads / p->head_dim;
}

/* The rules that heads and D obey. */
static void check_shape(const Run *run)
{
    const Step *step = run->step;
    const Options *options = &run->options;
    const AttentionParams *p = &run->host;
    const int d = p->head_dim;
    const char *source = options->q ? "of --q" : "(--head-dim)";
    if (p->heads != p->kv_heads && !step->variants)
        refuse(step, "%d heads in --q, %d in --k: here every query head has its own; step06 is the one with GQA",
               p->heads, p->kv_heads);
    if (p->heads % p->kv_heads)
        refuse(
            step,
            "%d heads %s, %d %s: each KV head serves as many query heads; the first must be a multiple of the second",
            p->heads, options->q ? "in --q" : "(--heads)", p->kv_heads, options->q ? "in --k" : "(--kv-heads)");
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
}

/* ---- the sequences: where they start, how long they are, on which pages they lie ---- */

/* An index array as int64, whatever it is in the file. */
static int64_t *read_indices(const Run *run, const char *option, const char *path, int dims, const char *layout,
                             NpyArray *array)
{
    read_file(run, option, path, array);
    if (array->type != NPY_I32 && array->type != NPY_I64)
        refuse(run->step, "%s %s is %s: it must be i32 or i64; convert it", option, path, npy_type_name(array->type));
    if (array->dims != dims)
        refuse(run->step, "%s %s has %d dimension%s: it must have %s, %s", option, path, array->dims,
               array->dims == 1 ? "" : "s", dims == 1 ? "one" : "two", layout);
    int64_t *indices = (int64_t *)allocate(run, array->count * (int64_t)sizeof *indices);
    for (int64_t i = 0; i < array->count; i++)
        indices[i] = array->type == NPY_I32 ? ((const int32_t *)array->data)[i] : ((const int64_t *)array->data)[i];
    free(array->data);
    array->data = NULL;
    return indices;
}

/* Row offsets of packed sequences: from 0, never falling, to the number of rows.  Sets how many sequences there are. */
static const int64_t *read_offsets(const Run *run, const char *option, const char *path, const char *of, int64_t rows,
                                   int *batch)
{
    NpyArray file;
    const int64_t *starts = read_indices(run, option, path, 1, "[B+1]", &file);
    if (file.count < 2 || file.count > INT_MAX)
        refuse(run->step, "%s %s has %lld entries: it must have one more than sequences, 2 to %d", option, path,
               (long long)file.count, INT_MAX);
    if (starts[0] != 0)
        refuse(run->step, "%s %s starts with %lld: it must start with 0", option, path, (long long)starts[0]);
    for (int64_t i = 1; i < file.count; i++) {
        if (starts[i] < starts[i - 1])
            refuse(run->step, "%s %s falls from %lld to %lld at entry %lld: it must rise or stay", option, path,
                   (long long)starts[i - 1], (long long)starts[i], (long long)i);
    }
    if (starts[file.count - 1] != rows)
        refuse(run->step, "%s %s ends with %lld: it must end with the %lld rows of %s", option, path,
               (long long)starts[file.count - 1], (long long)rows, of);
    *batch = (int)file.count - 1;
    return starts;
}

static int longest(const int64_t *starts, int batch)
{
    int64_t most = 0;
    for (int b = 0; b < batch; b++)
        if (most < starts[b + 1] - starts[b]) most = starts[b + 1] - starts[b];
    return (int)most;
}

/* Keys in use, each length from 0 to what there is room for. */
static const int64_t *read_lengths(const Run *run, int64_t room, const char *what)
{
    const char *path = run->options.kv_lens;
    NpyArray file;
    const int64_t *lens = read_indices(run, "--kv-lens", path, 1, "[B]", &file);
    if (file.count != run->host.batch)
        refuse(run->step, "--kv-lens %s has %lld entries: it must have one for each of the %d batch entries", path,
               (long long)file.count, run->host.batch);
    for (int b = 0; b < run->host.batch; b++) {
        if (lens[b] < 0 || lens[b] > room)
            refuse(run->step, "--kv-lens %s has length %lld at entry %d: lengths are 0 to %lld, %s", path,
                   (long long)lens[b], b, (long long)room, what);
    }
    return lens;
}

/* Page numbers.  Only those of slots in use are looked at; the others may be anything. */
static void read_block_table(Run *run)
{
    const char *path = run->options.block_table;
    AttentionParams *p = &run->host;
    NpyArray file;
    int64_t *numbers = read_indices(run, "--block-table", path, 2, "[B,slots]", &file);
    const int64_t page_count = run->k.shape[0], slots = file.shape[1];
    if (file.shape[0] != p->batch)
        refuse(run->step, "--block-table %s has %lld rows: it must have one for each of the %d batch entries", path,
               (long long)file.shape[0], p->batch);
    if (slots > INT_MAX)
        refuse(run->step, "--block-table %s has %lld slots: %d are the most", path, (long long)slots, INT_MAX);
    p->page_size = p->seq_kv;
    p->max_pages = (int)slots;
    const int64_t room = slots * p->page_size;
    p->kv_lens = read_lengths(run, room < INT_MAX ? room : INT_MAX, "slots times page size");
    p->seq_kv = 0;
    int *table = (int *)allocate(run, file.count * (int64_t)sizeof *table);
    for (int b = 0; b < p->batch; b++) {
        if (p->seq_kv < p->kv_lens[b]) p->seq_kv = (int)p->kv_lens[b];
        for (int64_t slot = 0; slot < slots; slot++) {
            const int64_t page = numbers[b * slots + slot];
            if (slot * p->page_size < p->kv_lens[b] && (page < 0 || page >= page_count))
                refuse(run->step, "--block-table %s has page %lld in [%d,%lld]: pages are 0 to %lld in --k %s", path,
                       (long long)page, b, (long long)slot, (long long)page_count - 1, run->options.k);
            table[b * slots + slot] = (int)page;
        }
    }
    p->block_table = table;
    free(numbers);
}

static void read_sequences(Run *run)
{
    const Options *options = &run->options;
    AttentionParams *p = &run->host;
    if (options->cu_seqlens_q) {
        p->cu_seqlens_q = read_offsets(run, "--cu-seqlens-q", options->cu_seqlens_q, "--q", run->q_rows, &p->batch);
        p->seq_q = longest(p->cu_seqlens_q, p->batch);
    }
    if (options->cu_seqlens_kv) {
        int batch;
        p->cu_seqlens_kv = read_offsets(run, "--cu-seqlens-kv", options->cu_seqlens_kv, "--k", run->kv_rows, &batch);
        if (batch != p->batch)
            refuse(run->step, "--cu-seqlens-kv %s has %d sequences but --cu-seqlens-q %s has %d: they must agree",
                   options->cu_seqlens_kv, batch, options->cu_seqlens_q, p->batch);
        p->seq_kv = longest(p->cu_seqlens_kv, p->batch);
    }
    if (options->block_table)
        read_block_table(run);
    else if (options->kv_lens)
        p->kv_lens = read_lengths(run, p->seq_kv, "the keys that there are");

    run->keys = (double)p->batch * p->seq_kv;
    run->pairs = run->keys * p->seq_q;
    if (!p->cu_seqlens_q && !p->kv_lens) return;
    run->keys = run->pairs = 0;
    for (int b = 0; b < p->batch; b++) {
        const int64_t rows = p->cu_seqlens_q ? p->cu_seqlens_q[b + 1] - p->cu_seqlens_q[b] : p->seq_q;
        const int64_t keys = p->kv_lens ? p->kv_lens[b] : p->cu_seqlens_kv[b + 1] - p->cu_seqlens_kv[b];
        run->keys += (double)keys;
        run->pairs += (double)rows * (double)keys;
    }
}

/* ---- masks and the rest ---- */

/* The mask of a paged cache may have columns for keys that no sequence has yet: its capacity is nobody's to know. */
static void read_block_mask(Run *run)
{
    const char *path = run->options.block_mask;
    const int64_t n = run->options.block_size;
    AttentionParams *p = &run->host;
    const int64_t rows = (p->seq_q + n - 1) / n, columns = (p->seq_kv + n - 1) / n;
    NpyArray file;
    if (rows * n > INT_MAX || columns * n > INT_MAX) /* the kernel counts to the end of a block in 32 bits */
        refuse(run->step, "--block-size %lld: the last block of Sq=%d Skv=%d ends beyond %d; give a smaller one",
               (long long)n, p->seq_q, p->seq_kv, INT_MAX);
    read_file(run, "--block-mask", path, &file);
    if (file.type != NPY_U8 && file.type != NPY_BOOL)
        refuse(run->step, "--block-mask %s is %s: it must be u8 or bool; convert it", path, npy_type_name(file.type));
    const int64_t *shape = file.dims == 4 ? file.shape + 2 : file.shape;
    int fits = (file.dims == 2 || file.dims == 4) && shape[0] == rows &&
               (shape[1] == columns || (p->block_table && shape[1] > columns));
    if (file.dims == 4)
        fits &= (file.shape[0] == 1 || file.shape[0] == p->batch) && (file.shape[1] == 1 || file.shape[1] == p->heads);
    if (!fits) {
        char text[192] = "";
        for (int i = 0, used = 0; i < file.dims; i++)
            used += snprintf(text + used, sizeof text - (size_t)used, "%s%lld", i ? "," : "", (long long)file.shape[i]);
        refuse(run->step,
               "--block-mask %s has shape [%s]: with --block-size %lld it must be [%lld,%lld%s], or the same after "
               "[1 or %d,1 or %d]",
               path, text, (long long)n, (long long)rows, (long long)columns, p->block_table ? " or more" : "",
               p->batch, p->heads);
    }
    p->block_mask = (const unsigned char *)file.data;
    p->mask_block = (int)n;
    p->mask_row = shape[1];
    if (file.dims == 4 && file.shape[1] > 1) p->mask_head = rows * p->mask_row;
    if (file.dims == 4 && file.shape[0] > 1) p->mask_batch = file.shape[1] * rows * p->mask_row;
    run->mask_bytes = file.count;
}

static void read_sinks(Run *run)
{
    const char *path = run->options.sinks;
    NpyArray file;
    read_file(run, "--sinks", path, &file);
    if (file.type != NPY_F32)
        refuse(run->step, "--sinks %s is %s: it must be f32; convert it", path, npy_type_name(file.type));
    if (file.dims != 1 || file.count != run->host.heads)
        refuse(run->step, "--sinks %s has %d dimension%s and %lld values: it must have one dimension, [H], and %d",
               path, file.dims, file.dims == 1 ? "" : "s", (long long)file.count, run->host.heads);
    const float *sinks = (const float *)file.data;
    for (int h = 0; h < run->host.heads; h++)
        if (!(sinks[h] < INFINITY))
            refuse(run->step, "--sinks %s is %s at head %d: a sink is a finite number, or -inf for none", path,
                   isnan(sinks[h]) ? "NaN" : "inf", h);
    run->host.sinks = sinks;
}

void read_problem(Run *run)
{
    const Options *options = &run->options;
    AttentionParams *p = &run->host;
    p->batch = options->batch;
    p->heads = options->heads;
    p->kv_heads = options->kv_heads;
    p->seq_q = options->seq_q;
    p->seq_kv = options->seq_kv;
    p->head_dim = options->head_dim;
    run->q_rows = (int64_t)p->batch * p->seq_q;
    run->kv_rows = (int64_t)p->batch * p->seq_kv;
    if (options->q) read_inputs(run);
    check_shape(run);

    p->scale = (float)(isnan(options->scale) ? 1 / sqrt(p->head_dim) : options->scale);
    p->window_left = options->window[0];
    p->window_right = options->causal ? 0 : options->window[1];
    p->block_causal = options->block_causal;
    p->num_splits = options->splits;
    p->softcap = (float)options->softcap;
    if (options->softcap > 0 && fabs(p->scale) / options->softcap > 1e37)
        refuse(run->step, "--softcap %g is too small beside a scale of %g: their quotient may be 1e37 at most",
               options->softcap, p->scale);
    read_sequences(run);
    if (options->block_mask) read_block_mask(run);
    if (options->sinks) read_sinks(run);
}
