/* Attention in float64, straight from the formula in attention.h, and the check of a step's output against it.
 * Read it top-down as the definition of the problem: which keys a row sees, where they live, what one row is, which
 * rows are computed, how far an output may be off, how outputs are compared. */
#include "reference.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- The 16-bit types ------------------------------------------------------------------------------------------ */

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float element_to_float(uint16_t bits, int bf16)
{
    if (bf16) return float_of_bits((uint32_t)bits << 16);
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7fff;
    if (rest < 0x0400) return (sign ? -0x1p-24f : 0x1p-24f) * (float)rest; /* zero and subnormals: multiples of 2^-24 */
    const uint32_t bias = rest < 0x7c00 ? 127 - 15 : 255 - 31; /* exponent 31, infinity and NaN, becomes 255 */
    return float_of_bits(sign | ((rest << 13) + (bias << 23)));
}

uint16_t float_to_element(float value, int bf16)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t rest = bits & 0x7fffffff;
    const int is_nan = rest > 0x7f800000; /* stays one by the fraction's highest bit, whatever is cut off below */
    if (bf16) return (uint16_t)((is_nan ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    const uint32_t sign = bits >> 16 & 0x8000;
    if (is_nan) return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and more: halfway to the value after 65504 */
    if (rest < 0x38800000) return (uint16_t)(sign | (uint32_t)lrintf(float_of_bits(rest) * 0x1p24f)); /* below 2^-14 */
    return (uint16_t)(sign | ((rest - ((127 - 15) << 23) + 0xfff + (rest >> 13 & 1)) >> 13));
}

/* ---- Which keys a row sees, and where they live ---------------------------------------------------------------- */

typedef struct Sequence {
    int64_t q_first, q_len, kv_first, kv_len; /* first rows in packed arrays (0 in others), lengths */
} Sequence;

typedef struct KeyRange {
    int64_t first, last; /* first <= key < last */
} KeyRange;

static Sequence sequence(const AttentionParams *p, int batch)
{
    Sequence s = {0, p->seq_q, 0, p->seq_kv};
    if (p->cu_seqlens_q) {
        s.q_first = p->cu_seqlens_q[batch];
        s.q_len = p->cu_seqlens_q[batch + 1] - s.q_first;
    }
    if (p->cu_seqlens_kv) {
        s.kv_first = p->cu_seqlens_kv[batch];
        s.kv_len = p->cu_seqlens_kv[batch + 1] - s.kv_first;
    }
    if (p->kv_lens) s.kv_len = p->kv_lens[batch];
    return s;
}

/* The keys that masks, window and length leave to a row.  Every such mask is an interval around key c, the one that
 * stands across from the row when the last row stands across from the last key. */
static KeyRange row_keys(const AttentionParams *p, Sequence s, int64_t row)
{
    const int64_t c = row + s.kv_len - s.q_len;
    KeyRange keys = {0, s.kv_len};
    if (p->window_left >= 0 && keys.first < c - p->window_left) keys.first = c - p->window_left;
    if (p->window_right >= 0 && keys.last > c + p->window_right + 1) keys.last = c + p->window_right + 1;
    if (p->block_causal > 0) {
        const int64_t block_end = c < 0 ? 0 : (c / p->block_causal + 1) * p->block_causal;
        if (keys.last > block_end) keys.last = block_end;
    }
    if (keys.last < keys.first) keys.last = keys.first;
    return keys;
}

static int in_block_mask(const AttentionParams *p, int batch, int head, int64_t row, int64_t key)
{
    if (!p->block_mask) return 1;
    const int64_t block = batch * p->mask_batch + head * p->mask_head + row / p->mask_block * p->mask_row;
    return p->block_mask[block + key / p->mask_block] != 0;
}

static int kv_head(const AttentionParams *p, int head)
{
    return head / (p->heads / p->kv_heads);
}

/* Offset of a row of k or v, by the array's strides. */
static int64_t kv_row(const AttentionParams *p, const Strides *stride, int batch, int head, Sequence s, int64_t key)
{
    int64_t slab = batch, row = s.kv_first + key;
    if (p->block_table) {
        slab = p->block_table[(int64_t)batch * p->max_pages + key / p->page_size];
        row = key % p->page_size;
    }
    return slab * stride->batch + kv_head(p, head) * stride->head + row * stride->row;
}

/* Offset of a row of q, o or lse. */
static int64_t q_row(const Strides *stride, int batch, int head, Sequence s, int64_t row)
{
    return batch * stride->batch + head * stride->head + (s.q_first + row) * stride->row;
}

/* ---- One row --------------------------------------------------------------------------------------------------- */

typedef struct Worker {
    const AttentionParams *p;
    Reference *reference;
    int index, count; /* it computes every count-th row, starting at row index */
    int started, failed;
    int64_t longest;     /* sequence of keys */
    const float *values; /* of all 65536 elements: looking one up is twice as fast as working it out */
    int64_t *keys;       /* the keys that the row at hand sees */
    double *weights;     /* their scores, then exp(score - max) */
    double *q, *kv;      /* a row of q and one of k or v, widened */
    double *o, *o_abs;   /* the row's sums; the results lie pages apart, where one's stores hold up the other's loads */
    double value_max;
    pthread_t thread;
} Worker;

static void widen(const Worker *w, const element_t *row, double *out)
{
    for (int d = 0; d < w->p->head_dim; d++) out[d] = w->values[row[d].bits];
}

/* scale * sum_d q_d k_d, capped; *magnitude: the same sum of absolute values.  Eight partial sums (D is a multiple
 * of 8), because one sum would wait for itself at every step. */
static double score(const AttentionParams *p, const double *q, const double *k, double *magnitude)
{
    double sum[8] = {0}, absolute[8] = {0}, total = 0, total_absolute = 0;
    for (int d = 0; d < p->head_dim; d += 8)
        for (int i = 0; i < 8; i++) {
            sum[i] += q[d + i] * k[d + i];
            absolute[i] += fabs(q[d + i] * k[d + i]);
        }
    for (int i = 0; i < 8; i++) {
        total += sum[i];
        total_absolute += absolute[i];
    }
    *magnitude = fabs((double)p->scale) * total_absolute;
    const double s = p->scale * total;
    return p->softcap > 0 ? p->softcap * tanh(s / p->softcap) : s;
}

static void compute_row(Worker *w, int batch, int head, Sequence s, int64_t row)
{
    const AttentionParams *p = w->p;
    Reference *r = w->reference;
    const int64_t o_at = q_row(&p->o_stride, batch, head, s, row), lse_at = q_row(&p->lse_stride, batch, head, s, row);
    const KeyRange range = row_keys(p, s, row);
    int64_t n = 0;
    for (int64_t key = range.first; key < range.last; key++)
        if (in_block_mask(p, batch, head, row, key)) w->keys[n++] = key;

    /* All scores and their maximum, the sink among them.  A NaN never becomes the maximum; it comes through in exp. */
    const double sink = p->sinks ? p->sinks[head] : -INFINITY;
    double max = sink > -INFINITY ? sink : -INFINITY;
    widen(w, p->q + q_row(&p->q_stride, batch, head, s, row), w->q);
    for (int64_t j = 0; j < n; j++) {
        double magnitude;
        widen(w, p->k + kv_row(p, &p->k_stride, batch, head, s, w->keys[j]), w->kv);
        w->weights[j] = score(p, w->q, w->kv, &magnitude);
        if (w->weights[j] > max) max = w->weights[j];
        if (magnitude > r->magnitude[lse_at] && magnitude <= DBL_MAX) r->magnitude[lse_at] = magnitude;
    }

    /* The softmax's denominator.  Nothing visible but -inf: the maximum is no number to subtract, and the sum is 0. */
    const double shift = max > -INFINITY ? max : 0;
    double total = p->sinks ? exp(sink - shift) : 0;
    for (int64_t j = 0; j < n; j++) total += w->weights[j] = exp(w->weights[j] - shift);
    r->lse[lse_at] = total == 0 ? -INFINITY : shift + log(total);
    if (total == 0) return; /* o stays 0 */

    for (int d = 0; d < p->head_dim; d++) w->o[d] = w->o_abs[d] = 0;
    const double smallest_normal = r->bf16 ? 0x1p-126 : 0x1p-14;
    for (int64_t j = 0; j < n; j++) {
        const double weight = w->weights[j] / total;
        widen(w, p->v + kv_row(p, &p->v_stride, batch, head, s, w->keys[j]), w->kv);
        for (int d = 0; d < p->head_dim; d++) {
            const double absolute = fabs(w->kv[d]);
            w->o[d] += weight * w->kv[d];
            w->o_abs[d] += weight * absolute;
            if (absolute > w->value_max && absolute <= DBL_MAX) w->value_max = absolute;
        }
        if (w->weights[j] < smallest_normal) r->small_keys[lse_at] += 1 / total;
    }
    memcpy(r->o + o_at, w->o, (size_t)p->head_dim * sizeof *w->o);
    memcpy(r->o_abs + o_at, w->o_abs, (size_t)p->head_dim * sizeof *w->o_abs);
}

/* ---- Which rows are computed, and by whom ---------------------------------------------------------------------- */

/* A problem that is too large is thinned: of the (batch, head) pairs every pair_step-th is kept, of a kept pair's rows
 * every row_step-th, and the first and the last of both.  row_step is odd and the pairs start 8 rows apart, so that 64
 * kept rows stand at all 64 places of a tile; pair_step shares no factor with heads, so that it reaches every head. */
typedef struct Sampling {
    int64_t row_step, pair_step;
} Sampling;

static int64_t step_without_factor_of(int64_t number, double at_least)
{
    for (int64_t step = (int64_t)ceil(fmin(at_least, 1e12));; step++) {
        int64_t a = step, b = number; /* Euclid */
        while (b != 0) {
            const int64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1) return step;
    }
}

static Sampling plan(const AttentionParams *p, double max_work)
{
    enum { ENOUGH_ROWS = 8 }; /* a pair's rows are thinned down to these before pairs are left out */
    double rows = 0, keys = 0;
    for (int batch = 0; batch < p->batch; batch++) {
        const Sequence s = sequence(p, batch);
        for (int64_t row = 0; row < s.q_len; row++) {
            const KeyRange range = row_keys(p, s, row);
            keys += (double)(range.last - range.first);
        }
        rows += (double)s.q_len;
    }
    const double excess = keys * p->heads * 2 * p->head_dim / max_work; /* multiply-adds: Q.K and P.V */
    if (!(excess > 1)) return (Sampling){1, 1};
    const double row_excess = fmin(excess, fmax(1, rows / p->batch / ENOUGH_ROWS));
    return (Sampling){step_without_factor_of(64, row_excess), step_without_factor_of(p->heads, excess / row_excess)};
}

static int is_kept(Sampling sampling, int64_t pair, int64_t pairs, int64_t row, int64_t rows)
{
    const int64_t start = 8 * (pair / sampling.pair_step) % sampling.row_step;
    if (pair % sampling.pair_step != 0 && pair != pairs - 1) return 0;
    return row == 0 || row == rows - 1 || row % sampling.row_step == start;
}

static void *zeros(int64_t count)
{
    return calloc((size_t)count + 1, sizeof(double)); /* + 1: never NULL for nothing; untouched pages cost nothing */
}

/* Rows are dealt out in turn, so that a causal mask burdens all threads alike; no row depends on who computes it. */
static void *work(void *argument)
{
    Worker *w = argument;
    const Reference *r = w->reference;
    int64_t turn = 0;
    w->keys = calloc((size_t)w->longest + 1, sizeof *w->keys);
    w->weights = zeros(w->longest);
    double *rows = zeros((int64_t)4 * r->head_dim);
    w->failed = !w->keys || !w->weights || !rows;
    if (!w->failed) {
        w->q = rows;
        w->kv = rows + r->head_dim;
        w->o = rows + 2 * r->head_dim;
        w->o_abs = rows + 3 * r->head_dim;
    }
    for (int batch = 0; batch < w->p->batch && !w->failed; batch++) {
        const Sequence s = sequence(w->p, batch);
        for (int head = 0; head < w->p->heads; head++)
            for (int64_t row = 0; row < s.q_len; row++)
                if (r->row_state[q_row(&w->p->lse_stride, batch, head, s, row)] == 2 && turn++ % w->count == w->index)
                    compute_row(w, batch, head, s, row);
    }
    free(w->keys);
    free(w->weights);
    free(rows);
    return NULL;
}

/* Elements up to the last one of the last row. */
static int64_t extent(const AttentionParams *p, const Strides *stride, int64_t row_elements)
{
    const int64_t rows = p->cu_seqlens_q ? p->cu_seqlens_q[p->batch] : p->seq_q;
    if (p->batch == 0 || p->heads == 0 || rows == 0) return 0;
    return (p->batch - 1) * stride->batch + (p->heads - 1) * stride->head + (rows - 1) * stride->row + row_elements;
}

int reference_compute(const AttentionParams *p, int bf16, double max_work, Reference *r)
{
    *r = (Reference){.bf16 = bf16, .head_dim = p->head_dim, .seq_kv = p->seq_kv};
    r->o_count = extent(p, &p->o_stride, p->head_dim);
    r->lse_count = extent(p, &p->lse_stride, 1);
    r->o = zeros(r->o_count);
    r->o_abs = zeros(r->o_count);
    r->lse = zeros(r->lse_count);
    r->magnitude = zeros(r->lse_count);
    r->small_keys = zeros(r->lse_count);
    r->row_state = calloc((size_t)r->lse_count + 1, 1);
    int failed = !r->o || !r->o_abs || !r->lse || !r->magnitude || !r->small_keys || !r->row_state;

    const Sampling sampling = plan(p, max_work);
    int64_t longest = 0;
    for (int batch = 0; batch < p->batch && !failed; batch++) {
        const Sequence s = sequence(p, batch);
        if (longest < s.kv_len) longest = s.kv_len;
        for (int head = 0; head < p->heads; head++)
            for (int64_t row = 0; row < s.q_len; row++) {
                const int64_t pair = (int64_t)batch * p->heads + head, pairs = (int64_t)p->batch * p->heads;
                const int kept = is_kept(sampling, pair, pairs, row, s.q_len);
                r->row_state[q_row(&p->lse_stride, batch, head, s, row)] = kept ? 2 : 1;
                r->rows++;
                r->rows_checked += kept;
            }
    }

    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const int count = (int)fmax(1, fmin((double)cores, (double)r->rows_checked));
    Worker *workers = calloc((size_t)count, sizeof *workers);
    float *values = malloc(65536 * sizeof *values);
    failed |= !workers || !values;
    for (int bits = 0; bits < 65536 && values; bits++) values[bits] = element_to_float((uint16_t)bits, bf16);
    for (int i = 0; i < count && !failed; i++) {
        workers[i] = (Worker){.p = p, .reference = r, .index = i, .count = count, .longest = longest, .values = values};
        workers[i].started = pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0;
        if (!workers[i].started) work(&workers[i]); /* no more threads to be had: do its share here */
    }
    for (int i = 0; i < count && workers; i++) {
        if (workers[i].started) pthread_join(workers[i].thread, NULL);
        r->value_max = fmax(r->value_max, workers[i].value_max);
        failed |= workers[i].failed;
    }
    free(workers);
    free(values);
    if (failed) reference_free(r);
    return failed ? -1 : 0;
}

void reference_free(Reference *r)
{
    void *arrays[] = {r->o, r->o_abs, r->lse, r->magnitude, r->small_keys, r->row_state};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
    *r = (Reference){0};
}

/* ---- How far an output may be off ------------------------------------------------------------------------------ */

/* u: half a unit in the last place of the element type, relative (2^-11 for f16, 2^-8 for bf16); E: of float (2^-24).
 * n: keys in the row's range.  P_j = exp(s_j - max) / l, A = sum_j P_j |V_j|, M = max_j |scale| sum_d |q_d k_d|.
 *
 * Score s_j: to within d = (D + 8) E M.  Products of two elements are exact in float; each of D additions rounds a
 *   partial sum, which M bounds.  (A tensor core cuts instead of rounding.  That loses twice as much, but only once for
 *   8 or 16 products, whose bits below it keeps.)  8: scale * log2(e), its product with s_j and with the maximum, their
 *   difference.  The tanh of a softcap may be off by 8 E of itself; it is below the cap, and below the score.
 * O = sum_j P_j V_j: the sum of, to first order,
 *   2d A      dO = sum_j P_j ds_j (V_j - O), and |O| <= A
 *   u A       P rounded to the element type before the second product (from step 05 on)
 *   u |O|     O rounded to the element type
 *   n E A     float additions of the second product, at worst
 *   n/2 E |O| l, as below
 *   2^-25 max|V| / l for each key whose exp(s_j - max) lies below f16's normal range, where rounding errs by half of
 *             2^-24, not by u P (small_keys: those keys, over l).  bf16 has float's range: exp2 flushes below 2^-126.
 *   2^-24     O itself below f16's normal range (bf16: 2^-126), doubled like u |O|
 * u is doubled in both terms: headroom that pays for what is small beside it, which is exp2 (off by 2 units: 4 E), the
 * rounding of its argument (|x| <= 25 while P is normal in f16: 17 E), and products of errors.
 * Where A = 0 every product is 0, so O must be 0: an empty row, or V = 0.
 * LSE = max + ln l: the sum of
 *   d         a P-weighted mean of the errors of s_j
 *   n/2 E     l: at least four lanes share a row, so n/4 additions each; the rest is for its rescale at each tile
 *   8 E ln n  ln as log2 times a constant (5 E ln l, and l <= n); the rounding of exp2's arguments, whose P-weighted
 *             mean is at most P's entropy, so at most ln n
 *   8 E |LSE| max (or a sink) times log2(e) and back, the last addition, rounding of LSE, all this twice in a split
 *   16 E      exp2 (4 E), the shuffles that add up lanes, the merging of splits */
static const double E = 0x1p-24;

static double score_error(const Reference *r, const AttentionParams *p, int64_t row)
{
    return E * ((r->head_dim + 8) * r->magnitude[row] + 8 * fmin(p->softcap, r->magnitude[row]));
}

static double o_bound(const Reference *r, const AttentionParams *p, double n, int64_t row, int64_t at)
{
    const double u = r->bf16 ? 0x1p-8 : 0x1p-11, d = score_error(r, p, row);
    const double a = r->o_abs[at], o = fabs(r->o[at]);
    const double lost = r->bf16 ? 0x1p-126 : 0x1p-25, floor = r->bf16 ? 0x1p-126 : 0x1p-24;
    if (a == 0) return 0;
    return (2 * u + 2 * d + n * E) * a + (2 * u + n / 2 * E) * o + lost * r->small_keys[row] * r->value_max + floor;
}

static double lse_bound(const Reference *r, const AttentionParams *p, double n, int64_t row)
{
    return score_error(r, p, row) + E * (n / 2 + 8 * log1p(n) + 8 * fabs(r->lse[row]) + 16);
}

/* ---- Comparison ------------------------------------------------------------------------------------------------ */

enum Kind { FINITE, NOT_A_NUMBER, PLUS_INFINITY, MINUS_INFINITY };

/* By its bits: under -ffast-math the compiler may take any comparison with NaN or infinity for granted. */
static enum Kind kind_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits >> 52 & 0x7ff) != 0x7ff) return FINITE;
    if (bits << 12) return NOT_A_NUMBER;
    return bits >> 63 ? MINUS_INFINITY : PLUS_INFINITY;
}

/* Whether a value is of the reference's kind.  Two exceptions, for O: it may be infinite if its bound reaches what
 * rounds to infinity (overflow), and NaN in place of infinity if a P that is 0 in the type may have met the infinite
 * V. */
static int kind_fits(double value, double want, double bound, double overflow, int lost_keys)
{
    const enum Kind kind = kind_of(value), wanted = kind_of(want);
    if (kind == wanted) return 1;
    if (wanted == FINITE) return kind == (want < 0 ? MINUS_INFINITY : PLUS_INFINITY) && fabs(want) + bound >= overflow;
    return wanted != NOT_A_NUMBER && kind == NOT_A_NUMBER && lost_keys;
}

/* An output of a step: one of the two. */
typedef struct Output {
    const element_t *o;
    const float *lse;
} Output;

static double value_at(Output output, int bf16, int64_t at)
{
    return output.o ? element_to_float(output.o[at].bits, bf16) : output.lse[at];
}

static int all_finite(const element_t *row, int head_dim, int bf16)
{
    for (int d = 0; d < head_dim; d++)
        if (kind_of(element_to_float(row[d].bits, bf16)) != FINITE) return 0;
    return 1;
}

/* Whether NaN may stand in a row that has no reference: something that it is made of is not finite. */
static int may_be_nan(const Reference *r, const AttentionParams *p, int batch, int head, Sequence s, int64_t row)
{
    const KeyRange keys = row_keys(p, s, row);
    int finite = all_finite(p->q + q_row(&p->q_stride, batch, head, s, row), p->head_dim, r->bf16);
    for (int64_t key = keys.first; key < keys.last && finite; key++)
        finite = all_finite(p->k + kv_row(p, &p->k_stride, batch, head, s, key), p->head_dim, r->bf16) &&
                 all_finite(p->v + kv_row(p, &p->v_stride, batch, head, s, key), p->head_dim, r->bf16);
    return !finite; /* a sink is finite, or -inf for none */
}

static void record(Comparison *c, int64_t at, int passes, double ratio)
{
    if (!passes) c->failures++;
    if (c->worst_index >= 0 && ratio <= c->worst_ratio) return;
    c->worst_ratio = ratio;
    c->worst_index = at;
}

/* The output at one place against the reference, or against previous, if there is one: both may be off by the bound. */
static void check(Comparison *c, const Reference *r, Output output, Output previous, int64_t row, int64_t at,
                  double bound)
{
    const double overflow = !output.o ? 0x1p128 : r->bf16 ? 0x1.ffp127 : 65520; /* what rounds to infinity */
    const int is_pair = previous.o || previous.lse, lost_keys = output.o && r->small_keys[row] > 0;
    const double want = output.o ? r->o[at] : r->lse[at], value = value_at(output, r->bf16, at);
    const double other = is_pair ? value_at(previous, r->bf16, at) : want;
    c->compared++;
    if (kind_of(value) != FINITE && kind_of(want) == FINITE) c->not_finite++;
    if (!kind_fits(value, want, bound, overflow, lost_keys) || !kind_fits(other, want, bound, overflow, lost_keys)) {
        record(c, at, 0, DBL_MAX);
    } else if (kind_of(value) != FINITE || kind_of(other) != FINITE) {
        record(c, at, 1, 0);
    } else {
        const double error = fabs(value - other), limit = is_pair ? 2 * bound : bound;
        record(c, at, error <= limit, limit > 0 ? error / limit : error > 0 ? DBL_MAX : 0);
        if (c->index >= 0 && error <= c->max_error) return;
        c->max_error = error;
        c->bound = limit;
        c->index = at;
    }
}

static Comparison compare(const Reference *r, const AttentionParams *p, Output output, Output previous)
{
    Comparison c = {.index = -1, .worst_index = -1};
    for (int batch = 0; batch < p->batch; batch++) {
        const Sequence s = sequence(p, batch);
        for (int64_t pair_row = 0; pair_row < p->heads * s.q_len; pair_row++) {
            const int head = (int)(pair_row / s.q_len);
            const int64_t i = pair_row % s.q_len, row = q_row(&p->lse_stride, batch, head, s, i);
            const int64_t first = output.o ? q_row(&p->o_stride, batch, head, s, i) : row;
            const KeyRange keys = row_keys(p, s, i);
            const double n = (double)(keys.last - keys.first);
            for (int64_t at = first; at < first + (output.o ? p->head_dim : 1); at++)
                if (r->row_state[row] == 2) {
                    const double bound = output.o ? o_bound(r, p, n, row, at) : lse_bound(r, p, n, row);
                    check(&c, r, output, previous, row, at, bound);
                } else if (kind_of(value_at(output, r->bf16, at)) == NOT_A_NUMBER &&
                           (c.failures || !may_be_nan(r, p, batch, head, s, i))) { /* after a failure: no more search */
                    c.not_finite++;
                    record(&c, at, 0, DBL_MAX);
                }
        }
    }
    return c;
}

Comparison compare_o(const Reference *r, const AttentionParams *p, const element_t *o)
{
    return compare(r, p, (Output){o, NULL}, (Output){NULL, NULL});
}

Comparison compare_lse(const Reference *r, const AttentionParams *p, const float *lse)
{
    return compare(r, p, (Output){NULL, lse}, (Output){NULL, NULL});
}

Comparison compare_o_pair(const Reference *r, const AttentionParams *p, const element_t *o, const element_t *previous)
{
    return compare(r, p, (Output){o, NULL}, (Output){previous, NULL});
}

Comparison compare_lse_pair(const Reference *r, const AttentionParams *p, const float *lse, const float *previous)
{
    return compare(r, p, (Output){NULL, lse}, (Output){NULL, previous});
}
