/* The layout algebra: text in, text out, and the operations between.  layout.h says what each one is. */
#include "layout.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The pool, and the refusal ---- */

typedef struct Block {
    struct Block *next;
    max_align_t bytes[];
} Block;

static Block *pool;
static char error[1024];

void *layout_alloc(size_t bytes)
{
    Block *block = calloc(1, sizeof *block + bytes);
    if (!block) {
        fprintf(stderr, "layout: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    block->next = pool;
    pool = block;
    return block->bytes;
}

void layout_free(void)
{
    while (pool) {
        Block *next = pool->next;
        free(pool);
        pool = next;
    }
}

void layout_clear_error(void)
{
    error[0] = 0;
}

const char *layout_error(void)
{
    return error[0] ? error : NULL;
}

const Layout *layout_refuse(const char *format, ...)
{
    if (!error[0]) {
        va_list args;
        va_start(args, format);
        vsnprintf(error, sizeof error, format, args);
        va_end(args);
    }
    return make_leaf(1, 0);
}

/* Every product and sum goes through these two: a layout that leaves 64 bits is refused, never wrong. */
static int64_t mul(int64_t a, int64_t b)
{
    int64_t r;
    if (!__builtin_mul_overflow(a, b, &r) && r != INT64_MIN) return r;
    layout_refuse("%lld * %lld does not fit in 64 bits", (long long)a, (long long)b);
    return 1;
}

static int64_t add(int64_t a, int64_t b)
{
    int64_t r;
    if (!__builtin_add_overflow(a, b, &r) && r != INT64_MIN) return r;
    layout_refuse("%lld + %lld does not fit in 64 bits", (long long)a, (long long)b);
    return 0;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static int64_t magnitude(int64_t a)
{
    return a < 0 ? -a : a;
}

/* Doubles an array when it is full; the old one stays in the pool. */
static void *grown(void *old, size_t count, size_t *capacity, size_t item_size)
{
    *capacity = *capacity ? 2 * *capacity : 16;
    void *bigger = layout_alloc(*capacity * item_size);
    if (count) memcpy(bigger, old, count * item_size);
    return bigger;
}

void list_add(List *list, const Layout *item)
{
    if (list->count == list->capacity) {
        size_t capacity = (size_t)list->capacity;
        list->item = grown(list->item, (size_t)list->count, &capacity, sizeof *list->item);
        list->capacity = (int)capacity;
    }
    list->item[list->count++] = item;
}

static void text_add_all(Text *text, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    size_t extra = (size_t)vsnprintf(NULL, 0, format, args);
    while (text->length + extra + 1 > text->capacity) text->s = grown(text->s, text->length, &text->capacity, 1);
    vsnprintf(text->s + text->length, extra + 1, format, again);
    va_end(again);
    text->length += extra;
}

void text_add(Text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    text_add_all(text, format, args);
    va_end(args);
}

const char *text_of(const char *format, ...)
{
    Text text = {0};
    va_list args;
    va_start(args, format);
    text_add_all(&text, format, args);
    va_end(args);
    return text.s;
}

/* ---- Making ---- */

enum { MAX_AXIS = 255 }; /* that can be written */

static const Layout *leaf_on_axis(int64_t shape, int64_t stride, int axis)
{
    Layout *leaf = layout_alloc(sizeof *leaf);
    *leaf = (Layout){.shape = shape, .stride = stride, .axis = stride ? axis : NO_AXIS, .rank = LEAF};
    return leaf;
}

const Layout *make_leaf(int64_t shape, int64_t stride)
{
    return leaf_on_axis(shape, stride, NO_AXIS);
}

const Layout *make_tuple(int count, const Layout *const *modes)
{
    const Layout **copy = layout_alloc(sizeof *copy * (size_t)(count ? count : 1));
    for (int i = 0; i < count; i++) copy[i] = modes[i];
    Layout *tuple = layout_alloc(sizeof *tuple);
    *tuple = (Layout){.axis = NO_AXIS, .rank = count, .mode = copy};
    return tuple;
}

const Layout *pair(int64_t a, int64_t b)
{
    return LAYOUTS(make_leaf(a, 0), make_leaf(b, 0));
}

const Layout *column_major(int64_t rows, int64_t columns)
{
    return make_compact(pair(rows, columns), true);
}

const Layout *row_major(int64_t rows, int64_t columns, int64_t pitch)
{
    return LAYOUTS(make_leaf(rows, pitch), make_leaf(columns, 1));
}

static const Layout *tuple_of(List list)
{
    return make_tuple(list.count, list.item);
}

/* No mode is 1:0, one mode is itself, more are a tuple. */
static const Layout *unwrapped(List list)
{
    return list.count == 0 ? make_leaf(1, 0) : list.count == 1 ? list.item[0] : tuple_of(list);
}

static void add_leaves(const Layout *a, List *leaves)
{
    if (a->rank == LEAF) list_add(leaves, a);
    for (int i = 0; i < a->rank; i++) add_leaves(a->mode[i], leaves);
}

static List flat(const Layout *a)
{
    List leaves = {0};
    add_leaves(a, &leaves);
    return leaves;
}

/* The tuple a with new leaves, in order. */
static const Layout *with_leaves(const Layout *a, const Layout *const **next)
{
    if (a->rank == LEAF) return *(*next)++;
    List modes = {0};
    for (int i = 0; i < a->rank; i++) list_add(&modes, with_leaves(a->mode[i], next));
    return tuple_of(modes);
}

static const Layout *refilled(const Layout *a, List leaves)
{
    const Layout *const *next = leaves.item;
    return with_leaves(a, &next);
}

/* Strides without gaps, the leaves taken in the order given; a leaf of size 1 has stride 0. */
static const Layout *packed(const Layout *shape, List leaves, const int *order)
{
    int64_t stride = 1;
    for (int i = 0; i < leaves.count; i++) {
        const Layout **leaf = &leaves.item[order[i]];
        int64_t n = (*leaf)->shape;
        *leaf = make_leaf(n, n == 1 ? 0 : stride);
        stride = mul(stride, n);
    }
    return refilled(shape, leaves);
}

const Layout *make_compact(const Layout *shape, bool column_major)
{
    List leaves = flat(shape);
    int *order = layout_alloc(sizeof *order * (size_t)(leaves.count + 1));
    for (int i = 0; i < leaves.count; i++) order[i] = column_major ? i : leaves.count - 1 - i;
    return packed(shape, leaves, order);
}

/* A sort that keeps equal keys in order; layouts have few leaves. */
static int *sorted_by(const int64_t *key, int count)
{
    int *order = layout_alloc(sizeof *order * (size_t)(count + 1));
    for (int i = 0; i < count; i++) {
        int at = i;
        for (; at > 0 && key[order[at - 1]] > key[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    return order;
}

const Layout *make_ordered(const Layout *shape, const Layout *order)
{
    List leaves = flat(shape);
    int64_t *key = layout_alloc(sizeof *key * (size_t)(leaves.count + 1));
    int n = 0;
    if (rank(order) != rank(shape)) {
        return layout_refuse("order %s has %d modes, the shape %s has %d: they must be as many", tuple_text(order),
                             rank(order), tuple_text(shape), rank(shape));
    }
    for (int i = 0; i < rank(shape); i++) {
        List own = flat(mode(shape, i)), keys = flat(mode(order, i));
        if (keys.count != 1 && keys.count != own.count) {
            return layout_refuse("order %s does not fit the shape %s", tuple_text(order), tuple_text(shape));
        }
        for (int j = 0; j < own.count; j++) key[n++] = keys.item[keys.count == 1 ? 0 : j]->shape;
    }
    return packed(shape, leaves, sorted_by(key, n));
}

const Layout *make_identity(const Layout *shape)
{
    List modes = {0};
    for (int i = 0; i < rank(shape); i++) list_add(&modes, leaf_on_axis(size(mode(shape, i)), 1, i));
    return tuple_of(modes);
}

/* ---- Asking ---- */

int rank(const Layout *a)
{
    return a->rank == LEAF ? 1 : a->rank;
}

int depth(const Layout *a)
{
    int deepest = 0;
    for (int i = 0; i < a->rank; i++) {
        int d = depth(a->mode[i]);
        if (d > deepest) deepest = d;
    }
    return a->rank == LEAF ? 0 : deepest + 1;
}

int64_t size(const Layout *a)
{
    int64_t n = a->rank == LEAF ? a->shape : 1;
    for (int i = 0; i < a->rank; i++) n = mul(n, size(a->mode[i]));
    return n;
}

int64_t cosize(const Layout *a)
{
    List leaves = flat(a);
    int64_t n = 1;
    for (int i = 0; i < leaves.count; i++) {
        n = add(n, mul(leaves.item[i]->shape - 1, magnitude(leaves.item[i]->stride)));
    }
    return n;
}

const Layout *mode(const Layout *a, int i)
{
    if (i < 0 || i >= rank(a)) return layout_refuse("mode %d of %s: it has %d", i, layout_text(a), rank(a));
    return a->rank == LEAF ? a : a->mode[i];
}

/* An integer coordinate is spread over the leaves, the first fastest; the last leaf takes what is left, however much:
 * a layout goes on beyond its size. */
void coordinate_of(int64_t i, const Layout *a, int axes, int64_t *sum)
{
    List leaves = flat(a);
    for (int j = 0; j < leaves.count; j++) {
        const Layout *leaf = leaves.item[j];
        int64_t c = j + 1 == leaves.count ? i : i % leaf->shape;
        int axis = leaf->axis == NO_AXIS ? 0 : leaf->axis;
        i /= leaf->shape;
        if (axis < axes) sum[axis] = add(sum[axis], mul(c, leaf->stride));
    }
}

int64_t index_of(int64_t i, const Layout *a)
{
    int64_t sum = 0;
    coordinate_of(i, a, 1, &sum);
    return sum;
}

int64_t crd2idx(const Layout *coord, const Layout *a)
{
    if (coord->rank == LEAF) return index_of(coord->shape, a);
    if (coord->rank != a->rank) {
        layout_refuse("coordinate %s does not fit %s: it needs as many entries as there are modes", tuple_text(coord),
                      layout_text(a));
        return 0;
    }
    int64_t sum = 0;
    for (int i = 0; i < a->rank; i++) sum = add(sum, crd2idx(coord->mode[i], a->mode[i]));
    return sum;
}

const Layout *idx2crd(int64_t index, const Layout *shape)
{
    List leaves = flat(shape);
    for (int i = 0; i < leaves.count; i++) {
        int64_t n = leaves.item[i]->shape;
        leaves.item[i] = make_leaf(i + 1 == leaves.count ? index : index % n, 0);
        index /= n;
    }
    return refilled(shape, leaves);
}

const Layout *idx2crd_stride(int64_t index, const Layout *a)
{
    List leaves = flat(a);
    for (int i = 0; i < leaves.count; i++) {
        const Layout *leaf = leaves.item[i];
        if (leaf->shape == 1) {
            leaves.item[i] = make_leaf(0, 0);
        } else if (leaf->stride <= 0) {
            return layout_refuse("%s: a coordinate cannot be read back from stride %lld", layout_text(a),
                                 (long long)leaf->stride);
        } else {
            leaves.item[i] = make_leaf(index / leaf->stride % leaf->shape, 0);
        }
    }
    return refilled(a, leaves);
}

int64_t swizzle_apply(Swizzle s, int64_t x)
{
    uint64_t u = (uint64_t)x, ones = ((uint64_t)1 << s.bits) - 1;
    if (s.shift >= 0) return (int64_t)(u ^ ((u >> s.shift) & (ones << s.base)));
    return (int64_t)(u ^ ((u & (ones << s.base)) << -s.shift));
}

int64_t composed_offset(int64_t x, Composed a)
{
    x = add(a.offset, x);
    return a.swizzled ? swizzle_apply(a.swizzle, x) : x;
}

int64_t composed_index(int64_t i, Composed a)
{
    return composed_offset(index_of(i, a.layout), a);
}

/* ---- Coalesce, filter ---- */

/* The leaves with every neighbour joined that steps on where the one before ends: (4,8):(1,4) is 32:1.  Leaves of
 * size 1 vanish; keep_last spares the last one, whose stride says how the layout goes on beyond its size. */
static List joined(const Layout *a, bool keep_last)
{
    List leaves = flat(a), out = {0};
    for (int i = 0; i < leaves.count; i++) {
        const Layout *leaf = leaves.item[i], *before = out.count ? out.item[out.count - 1] : NULL;
        if (leaf->shape == 1 && !(keep_last && i + 1 == leaves.count)) continue;
        if (before && before->axis == leaf->axis && mul(before->shape, before->stride) == leaf->stride) {
            out.item[out.count - 1] = leaf_on_axis(mul(before->shape, leaf->shape), before->stride, before->axis);
        } else {
            list_add(&out, leaf);
        }
    }
    return out;
}

const Layout *coalesce(const Layout *a)
{
    return unwrapped(joined(a, false));
}

const Layout *coalesce_by_mode(const Layout *a, const Layout *profile)
{
    if (profile->rank == LEAF) return coalesce(a);
    if (profile->rank > rank(a)) {
        return layout_refuse("profile %s has more modes than %s", tuple_text(profile), layout_text(a));
    }
    List modes = {0};
    for (int i = 0; i < rank(a); i++) {
        list_add(&modes, i < profile->rank ? coalesce_by_mode(mode(a, i), profile->mode[i]) : mode(a, i));
    }
    return tuple_of(modes);
}

/* Without the modes that do not move (stride 0). */
const Layout *filter(const Layout *a)
{
    List leaves = flat(a), moving = {0};
    for (int i = 0; i < leaves.count; i++) {
        if (leaves.item[i]->stride != 0) list_add(&moving, leaves.item[i]);
    }
    return coalesce(tuple_of(moving));
}

/* ---- Composition ---- */

/* a o (n:d) visits every d-th element of a, n of them.  Walk over a's modes, the fastest first: a mode of size s is
 * left with ceil(s/d) elements to visit, of which the first n are taken; the modes after it are visited ceil(d/s)
 * apart.  Both divisions must come out even, or the result would not be a layout. */
static const Layout *compose_leaf(List a, const Layout *b)
{
    int64_t n = b->shape, d = b->stride;
    List out = {0};
    if (d == 0) return b;
    if (d < 0 || b->axis != NO_AXIS) {
        return layout_refuse("composition: the right layout has %s, its strides must be numbers >= 0", layout_text(b));
    }
    for (int i = 0; i + 1 < a.count; i++) {
        const Layout *m = a.item[i];
        if (d % m->shape != 0 && d > m->shape) {
            return layout_refuse(
                "composition: stride %lld of %s does not step evenly over a mode of size %lld (%s) of the "
                "left layout: one must divide the other (Stride Divisibility Condition)",
                (long long)d, layout_text(b), (long long)m->shape, layout_text(m));
        }
        int64_t visited = ceil_div(m->shape, d);
        if (visited > 1 && n > 1) {
            int64_t take = visited < n ? visited : n;
            if (n % take != 0) {
                return layout_refuse(
                    "composition: %lld elements of %s do not fill a mode of size %lld (%s) of the left "
                    "layout evenly (Shape Divisibility Condition)",
                    (long long)n, layout_text(b), (long long)m->shape, layout_text(m));
            }
            list_add(&out, leaf_on_axis(take, mul(d, m->stride), m->axis));
            n /= take;
        }
        d = ceil_div(d, m->shape);
    }
    const Layout *last = a.item[a.count - 1];
    if (n > 1 || out.count == 0) list_add(&out, leaf_on_axis(n, mul(d, last->stride), last->axis));
    return unwrapped(out);
}

static const Layout *compose_each(List a, const Layout *b)
{
    if (b->rank == LEAF) return compose_leaf(a, b);
    List modes = {0};
    for (int i = 0; i < b->rank; i++) list_add(&modes, compose_each(a, b->mode[i]));
    return tuple_of(modes);
}

const Layout *composition(const Layout *a, const Layout *b)
{
    return compose_each(joined(a, true), b);
}

/* ---- Tilers ---- */

Tiler tile_number(int64_t n)
{
    return (Tiler){.kind = TILE_NUMBER, .number = n};
}

Tiler tile_layout(const Layout *layout)
{
    return (Tiler){.kind = TILE_LAYOUT, .layout = layout};
}

Tiler tile_numbers(int count, const int64_t *n)
{
    const Tiler **item = layout_alloc(sizeof *item * (size_t)(count + 1));
    for (int i = 0; i < count; i++) {
        Tiler *t = layout_alloc(sizeof *t);
        *t = n[i] < 0 ? (Tiler){.kind = TILE_KEEP} : tile_number(n[i]);
        item[i] = t;
    }
    return (Tiler){.kind = TILE_LIST, .count = count, .item = item};
}

/* Applies each tiler of a list to its mode of a; modes beyond the list stay. */
static const Layout *by_mode(const Layout *(*apply)(const Layout *, Tiler), const Layout *a, Tiler list)
{
    if (list.count > rank(a)) {
        return layout_refuse("%d tilers for %s, which has %d modes", list.count, layout_text(a), rank(a));
    }
    List modes = {0};
    for (int i = 0; i < rank(a); i++) {
        list_add(&modes, i < list.count ? apply(mode(a, i), *list.item[i]) : mode(a, i));
    }
    return tuple_of(modes);
}

const Layout *composition_by(const Layout *a, Tiler t)
{
    switch (t.kind) {
    case TILE_KEEP: return a;
    case TILE_NUMBER: return composition(a, make_leaf(t.number, 1));
    case TILE_LAYOUT: return composition(a, t.layout);
    default: return by_mode(composition_by, a, t);
    }
}

/* ---- Complement, inverses ---- */

static bool plain(const char *what, const Layout *a, bool positive)
{
    List leaves = flat(a);
    for (int i = 0; i < leaves.count; i++) {
        if (leaves.item[i]->axis != NO_AXIS || (positive && leaves.item[i]->stride < 0)) {
            layout_refuse("%s: %s has a stride that is not a number >= 0", what, layout_text(a));
            return false;
        }
    }
    return true;
}

static int *sorted_by_stride(List leaves)
{
    int64_t *key = layout_alloc(sizeof *key * (size_t)(leaves.count + 1));
    for (int i = 0; i < leaves.count; i++) key[i] = leaves.item[i]->stride;
    return sorted_by(key, leaves.count);
}

/* The steps that a leaves out: sorted by stride, between the end of one mode and the start of the next there is room
 * for stride / end copies; after the last, for as many as cover the cotarget, rounded up mode by mode. */
const Layout *complement(const Layout *a, const Layout *cotarget)
{
    List leaves = joined(filter(a), false), out = {0}, target = flat(cotarget);
    int *order = sorted_by_stride(leaves);
    int64_t end = 1;
    if (!plain("complement", a, true)) return make_leaf(1, 0);
    for (int i = 0; i < leaves.count; i++) {
        const Layout *m = leaves.item[order[i]];
        if (m->stride < end) {
            return layout_refuse("complement: %s overlaps itself: %s starts before the modes under it end at %lld",
                                 layout_text(a), layout_text(m), (long long)end);
        }
        list_add(&out, make_leaf(m->stride / end, end));
        end = mul(m->stride, m->shape);
    }
    int64_t covered = end;
    for (int i = 0; i < target.count; i++) {
        int64_t n = target.item[i]->shape, copies = ceil_div(n, covered);
        list_add(&out, make_leaf(copies, end));
        covered = ceil_div(covered, n);
        end = mul(end, copies);
    }
    return coalesce(tuple_of(out));
}

/* The position of each leaf in the domain: the product of the sizes before it. */
static int64_t *positions(List leaves)
{
    int64_t *position = layout_alloc(sizeof *position * (size_t)(leaves.count + 1));
    position[0] = 1;
    for (int i = 0; i < leaves.count; i++) position[i + 1] = mul(position[i], leaves.item[i]->shape);
    return position;
}

/* From offset 0 up: the mode with stride 1, then the one that starts where it ends, up to the first gap. */
const Layout *right_inverse(const Layout *a)
{
    if (!plain("right_inverse", a, false)) return make_leaf(1, 0);
    List leaves = joined(a, false), out = {0};
    int64_t *position = positions(leaves), end = 1;
    int *order = sorted_by_stride(leaves);
    for (int i = 0; i < leaves.count; i++) {
        const Layout *m = leaves.item[order[i]];
        if (m->stride != end) continue; /* strides only grow: one beyond a gap is never reached */
        list_add(&out, make_leaf(m->shape, position[order[i]]));
        end = mul(end, m->shape);
    }
    return coalesce(tuple_of(out));
}

/* As the right inverse, but a gap is spanned: below stride d there are d / (what came before) offsets, and only every
 * d-th one belongs to the mode. */
const Layout *left_inverse(const Layout *a)
{
    if (!plain("left_inverse", a, true)) return make_leaf(1, 0);
    List leaves = joined(a, false), out = {0};
    if (leaves.count == 0) return make_leaf(1, 0);
    int64_t *position = positions(leaves), end = 1, step = 0;
    int *order = sorted_by_stride(leaves);
    for (int i = 0; i < leaves.count; i++) {
        const Layout *m = leaves.item[order[i]];
        if (m->stride == 0) continue;
        if (m->stride % end != 0) {
            return layout_refuse("left_inverse: %s starts inside the mode before it, which ends at %lld (Left inverse "
                                 "divisibility condition)", layout_text(m), (long long)end);
        }
        list_add(&out, make_leaf(m->stride / end, step));
        end = m->stride;
        step = position[order[i]];
    }
    list_add(&out, make_leaf(leaves.item[order[leaves.count - 1]]->shape, step));
    return coalesce(tuple_of(out));
}

/* ---- Divide and product ---- */

const Layout *logical_divide(const Layout *a, Tiler t)
{
    if (t.kind == TILE_KEEP) return a;
    if (t.kind == TILE_LIST) return by_mode(logical_divide, a, t);
    const Layout *tile = t.kind == TILE_NUMBER ? make_leaf(t.number, t.number == 1 ? 0 : 1) : t.layout;
    return composition(a, LAYOUTS(tile, complement(tile, coalesce(a))));
}

const Layout *zipped_divide(const Layout *a, Tiler t)
{
    if (t.kind != TILE_LIST) return logical_divide(a, t);
    if (t.count > rank(a)) return by_mode(zipped_divide, a, t); /* refuses */
    List tiles = {0}, rests = {0};
    for (int i = 0; i < rank(a); i++) {
        if (i >= t.count) {
            list_add(&rests, mode(a, i));
            continue;
        }
        if (t.item[i]->kind == TILE_KEEP)
            return layout_refuse("mode %d is left alone (_): there is no tile to gather", i);
        const Layout *divided = zipped_divide(mode(a, i), *t.item[i]);
        list_add(&tiles, mode(divided, 0));
        list_add(&rests, mode(divided, 1));
    }
    return LAYOUTS(tuple_of(tiles), tuple_of(rests));
}

/* A tuple of one stays whole: CuTe prints ((2),2,2) here, not (2,2,2). */
static void add_modes(List *list, const Layout *a)
{
    if (rank(a) == 1) list_add(list, a);
    for (int i = 0; rank(a) > 1 && i < rank(a); i++) list_add(list, mode(a, i));
}

const Layout *tiled_divide(const Layout *a, Tiler t)
{
    const Layout *zipped = zipped_divide(a, t);
    List modes = {0};
    if (rank(zipped) != 2) return layout_refuse("tiled_divide: there is no tile to gather");
    list_add(&modes, mode(zipped, 0));
    add_modes(&modes, mode(zipped, 1));
    return tuple_of(modes);
}

const Layout *flat_divide(const Layout *a, Tiler t)
{
    const Layout *zipped = zipped_divide(a, t);
    List modes = {0};
    if (rank(zipped) != 2) return layout_refuse("flat_divide: there is no tile to gather");
    add_modes(&modes, mode(zipped, 0));
    add_modes(&modes, mode(zipped, 1));
    return tuple_of(modes);
}

/* b says where the copies of a go, counted in the room that a leaves. */
const Layout *logical_product(const Layout *a, const Layout *b)
{
    const Layout *room = complement(a, make_leaf(mul(size(a), cosize(b)), 0));
    return LAYOUTS(a, composition(room, b));
}

static const Layout *padded(const Layout *a, int modes)
{
    if (rank(a) >= modes) return a;
    List list = {0};
    for (int i = 0; i < modes; i++) list_add(&list, i < rank(a) ? mode(a, i) : make_leaf(1, 0));
    return tuple_of(list);
}

static const Layout *product_by_mode(const Layout *a, const Layout *b, bool b_first)
{
    int modes = rank(a) > rank(b) ? rank(a) : rank(b);
    const Layout *product = logical_product(padded(a, modes), padded(b, modes));
    const Layout *first = mode(product, b_first), *second = mode(product, !b_first);
    if (first->rank == LEAF) return LAYOUTS(LAYOUTS(first, second));
    List out = {0};
    for (int i = 0; i < modes; i++) list_add(&out, LAYOUTS(mode(first, i), mode(second, i)));
    return tuple_of(out);
}

const Layout *blocked_product(const Layout *a, const Layout *b)
{
    return product_by_mode(a, b, false);
}

const Layout *raked_product(const Layout *a, const Layout *b)
{
    return product_by_mode(a, b, true);
}

const Layout *tile_to_shape(const Layout *a, const Layout *shape, const Layout *order)
{
    int modes = rank(shape);
    List copies = {0}, column_major = {0};
    if (rank(a) > modes) return layout_refuse("%s has more modes than %s", layout_text(a), tuple_text(shape));
    a = padded(a, modes);
    for (int i = 0; i < modes; i++) {
        int64_t tile = size(mode(a, i)), whole = size(mode(shape, i));
        if (whole % tile != 0) {
            return layout_refuse("tile_to_shape: mode %d, %lld, is no multiple of the tile's %lld", i, (long long)whole,
                                 (long long)tile);
        }
        list_add(&copies, make_leaf(whole / tile, 0));
        list_add(&column_major, make_leaf(i + 1, 0));
    }
    return blocked_product(a, make_ordered(tuple_of(copies), order ? order : tuple_of(column_major)));
}

/* n / d if d divides n; 1 if n divides d. */
static int64_t divided(int64_t n, int64_t d)
{
    if (n % d == 0) return n / d;
    if (d % n == 0) return n < 0 ? -1 : 1;
    layout_refuse("upcast: neither of %lld and %lld divides the other", (long long)n, (long long)d);
    return 1;
}

const Layout *upcast(const Layout *a, int64_t n)
{
    List leaves = flat(a);
    if (!plain("upcast", a, false)) return make_leaf(1, 0);
    for (int i = 0; i < leaves.count; i++) {
        const Layout *m = leaves.item[i];
        if (m->stride == 0) continue;
        leaves.item[i] = make_leaf(divided(m->shape, divided(n, magnitude(m->stride))), divided(m->stride, n));
    }
    return refilled(a, leaves);
}

int64_t max_common_vector(const Layout *a, const Layout *b)
{
    const Layout *first = mode(coalesce(composition(a, right_inverse(b))), 0);
    return first->stride == 1 ? first->shape : 1;
}

/* ---- Text out ---- */

static void add_tuple(Text *text, const Layout *a, bool strides)
{
    if (a->rank != LEAF) {
        text_add(text, "(");
        for (int i = 0; i < a->rank; i++) {
            if (i) text_add(text, ",");
            add_tuple(text, a->mode[i], strides);
        }
        text_add(text, ")");
        return;
    }
    text_add(text, "%lld", (long long)(strides ? a->stride : a->shape));
    if (strides && a->axis != NO_AXIS) text_add(text, "@%d", a->axis);
}

const char *tuple_text(const Layout *tuple)
{
    Text text = {0};
    add_tuple(&text, tuple, false);
    return text.s;
}

const char *layout_text(const Layout *layout)
{
    Text text = {0};
    add_tuple(&text, layout, false);
    text_add(&text, ":");
    add_tuple(&text, layout, true);
    return text.s;
}

const char *composed_text(Composed a)
{
    if (!a.swizzled) return layout_text(a.layout);
    Text text = {0};
    text_add(&text, "Sw<%d,%d,%d> o %lld o %s", a.swizzle.bits, a.swizzle.base, a.swizzle.shift, (long long)a.offset,
             layout_text(a.layout));
    return text.s;
}

/* ---- Text in ---- */

typedef struct Parser {
    const char *text, *at;
    int depth;
} Parser;

/* Keeps the sentence, the text around the place, and a caret under it. */
static void fail(Parser *p, const char *sentence)
{
    enum { WINDOW = 72 };
    char shown[WINDOW + 1];
    size_t length = strlen(p->text), at = (size_t)(p->at - p->text);
    size_t from = at > WINDOW / 2 && length > WINDOW ? at - WINDOW / 2 : 0, n = 0;
    for (; n < WINDOW && p->text[from + n]; n++) {
        char c = p->text[from + n];
        shown[n] = c >= ' ' && c <= '~' ? c : '?';
    }
    shown[n] = 0;
    layout_refuse("%s\n  %s\n  %*s^", sentence, shown, (int)(at - from), "");
}

static bool failed(void)
{
    return error[0] != 0;
}

static char peek(Parser *p)
{
    while (*p->at == ' ' || *p->at == '\t') p->at++;
    return *p->at;
}

static bool take(Parser *p, char c)
{
    if (peek(p) != c) return false;
    p->at++;
    return true;
}

static void expect_end(Parser *p)
{
    if (!failed() && peek(p)) fail(p, "nothing more is expected here");
}

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

static int64_t number(Parser *p, int64_t least)
{
    peek(p);
    Parser start = *p;
    if (*p->at == '_' && (digit(p->at[1]) || p->at[1] == '-')) p->at++;
    bool negative = take(p, '-');
    int64_t value = 0;
    if (!digit(*p->at)) return fail(&start, "expected a number"), least;
    for (; digit(*p->at); p->at++) {
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *p->at - '0', &value)) {
            return fail(&start, "this number does not fit in 64 bits"), least;
        }
    }
    if (negative) value = -value;
    if (value < least) {
        return fail(&start, least == 1 ? "a size must be at least 1" : least == 0 ? "a number >= 0 is needed here"
                                                                                  : "this number is too small"), least;
    }
    return value;
}

#define ENDS "expected ): the text ends inside a tuple"

/* After a mode of a tuple: true if another follows, false at its end (or on an error). */
static bool another(Parser *p)
{
    if (failed() || take(p, ')')) return false;
    if (take(p, ',')) return true;
    fail(p, *p->at ? "expected , or )" : ENDS);
    return false;
}

static bool enter(Parser *p)
{
    if (p->depth == MAX_DEPTH) fail(p, "tuples are nested more than 10000 deep");
    p->depth++;
    return !failed();
}

static const Layout *tuple(Parser *p, int64_t least)
{
    if (!take(p, '(')) return make_leaf(number(p, least), 0);
    if (!enter(p)) return make_leaf(1, 0);
    List modes = {0};
    if (peek(p) == ')') fail(p, "a tuple needs at least one entry");
    do list_add(&modes, tuple(p, least));
    while (another(p));
    p->depth--;
    return tuple_of(modes);
}

/* The strides, which must be nested as the shape is. */
static const Layout *strides(Parser *p, const Layout *shape)
{
    if (shape->rank == LEAF) {
        if (peek(p) == '(') fail(p, "expected a number: the shape has a number here");
        int64_t stride = number(p, -INT64_MAX);
        if (!take(p, '@')) return leaf_on_axis(shape->shape, stride, NO_AXIS);
        Parser start = *p;
        int64_t axis = number(p, 0);
        if (axis > MAX_AXIS) axis = 0, fail(&start, "an axis is a number from 0 to 255");
        return leaf_on_axis(shape->shape, stride, (int)axis);
    }
    if (!take(p, '(')) return fail(p, "expected (: the shape has a tuple here"), shape;
    List modes = {0};
    for (int i = 0; i < shape->rank && !failed(); i++) {
        if (i && !take(p, ',')) fail(p, "expected , and one more stride: the shape has more entries");
        if (!failed()) list_add(&modes, strides(p, shape->mode[i]));
    }
    if (!failed() && !take(p, ')')) {
        fail(p, *p->at == ',' ? "expected ): the shape has no more entries" : *p->at ? "expected )" : ENDS);
    }
    return tuple_of(modes);
}

static const Layout *layout(Parser *p)
{
    peek(p);
    Parser start = *p;
    const Layout *shape = tuple(p, 1);
    if (failed()) return shape;
    const Layout *a = take(p, ':') ? strides(p, shape) : make_compact(shape, true);
    if (failed()) return a;
    cosize(a);
    size(a);
    if (failed()) {
        layout_clear_error();
        fail(&start, "this layout has more elements or offsets than 64 bits can count");
    }
    return a;
}

const Layout *parse_layout(const char *text)
{
    Parser p = {.text = text, .at = text};
    const Layout *a = layout(&p);
    expect_end(&p);
    return failed() ? make_leaf(1, 0) : a;
}

const Layout *parse_tuple(const char *text)
{
    Parser p = {.text = text, .at = text};
    const Layout *a = tuple(&p, 0);
    expect_end(&p);
    return failed() ? make_leaf(1, 0) : a;
}

int64_t parse_number(const char *text)
{
    Parser p = {.text = text, .at = text};
    int64_t n = number(&p, -INT64_MAX);
    expect_end(&p);
    return n;
}

static Swizzle swizzle(Parser *p)
{
    int64_t value[3] = {0};
    Parser start = *p;
    for (int i = 0; i < 3 && !failed(); i++) {
        if (!take(p, i ? ',' : '<')) fail(p, i ? "expected ,: Sw<bits,base,shift>" : "expected <: Sw<bits,base,shift>");
        else value[i] = number(p, i == 2 ? -62 : 0);
    }
    if (!failed() && !take(p, '>')) fail(p, "expected >");
    int64_t shift = magnitude(value[2]);
    if (!failed() && (value[0] > 62 || value[1] > 62 || shift > 62 || value[0] + value[1] + shift > 62)) {
        fail(&start, "a swizzle moves bits of a 62-bit offset at most");
    }
    if (!failed() && shift < value[0]) fail(&start, "a swizzle's shift must be at least its number of bits");
    return failed() ? (Swizzle){0} : (Swizzle){(int)value[0], (int)value[1], (int)value[2]};
}

/* A swizzle alone has layout NULL. */
Composed parse_composed(const char *text)
{
    Parser p = {.text = text, .at = text};
    Composed a = {0};
    peek(&p);
    if (p.at[0] == 'S' && p.at[1] == 'w') {
        p.at += 2;
        a.swizzled = true;
        a.swizzle = swizzle(&p);
        if (!failed() && !peek(&p)) return a;
        if (!failed() && !take(&p, 'o')) fail(&p, "expected o: Sw<bits,base,shift> o offset o layout");
        Parser before = p;
        if (!failed() && peek(&p) != '(') {
            a.offset = number(&p, 0);
            if (!failed() && !take(&p, 'o')) p = before, a.offset = 0; /* no offset: Sw<3,3,3> o 8:1 */
        }
    }
    a.layout = failed() ? make_leaf(1, 0) : layout(&p);
    expect_end(&p);
    if (!failed()) add(a.offset, cosize(a.layout));
    if (failed()) a = (Composed){.layout = make_leaf(1, 0)};
    return a;
}

/* True if a shape starts here and strides follow it: the tuple's closing parenthesis, or the number, and then ':'. */
static bool layout_ahead(Parser p)
{
    int open = 0;
    do {
        char c = peek(&p);
        open += (c == '(') - (c == ')');
        if (!c || c == '<' || c == '>' || (open == 0 && c == ',')) return false;
        p.at++;
    } while (open > 0 || digit(*p.at));
    return peek(&p) == ':';
}

/* _, a number, a layout, or a list: <4:1,_,8>; a tuple of numbers without strides, (4,_,8), is a list too. */
static Tiler tiler(Parser *p)
{
    char c = peek(p);
    if (c == '_' && !digit(p->at[1])) return p->at++, (Tiler){.kind = TILE_KEEP};
    if (layout_ahead(*p)) return tile_layout(layout(p));
    if (c != '<' && c != '(') return tile_number(number(p, 1));

    Tiler list = {.kind = TILE_LIST};
    const Tiler **item = NULL;
    size_t capacity = 0;
    p->at++;
    if (!enter(p)) return list;
    do {
        Tiler *entry = layout_alloc(sizeof *entry);
        *entry = tiler(p);
        if ((size_t)list.count == capacity) item = grown(item, (size_t)list.count, &capacity, sizeof *item);
        item[list.count++] = entry;
    } while (!failed() && take(p, ','));
    p->depth--;
    if (!failed() && !take(p, c == '<' ? '>' : ')')) fail(p, c == '<' ? "expected , or >" : "expected , or )");
    list.item = item;
    return list;
}

Tiler parse_tiler(const char *text)
{
    Parser p = {.text = text, .at = text};
    Tiler t = tiler(&p);
    expect_end(&p);
    return failed() ? tile_number(1) : t;
}
