/* Thread-value maps, and what follows from them.  layout_maps.h says what each function is. */
#include "layout_maps.h"

#include <stdlib.h>
#include <string.h>

static const Layout *sub(const Layout *a, int i, int j)
{
    return mode(mode(a, i), j);
}

/* Applies a tiler to the first mode only. */
static const Layout *compose_first(const Layout *a, const Layout *b)
{
    return LAYOUTS(composition(mode(a, 0), b), mode(a, 1));
}

/* ---- mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16") ---- */

/* Lane l = 4*group + t.  A: rows group and group + 8, columns 2t, 2t+1 and 8 further; B: column (n) group, rows (k) 2t,
 * 2t+1 and 8 further; C: rows group and group + 8, columns 2t, 2t+1. */
const Layout *mma_atom(char operand)
{
    switch (operand) {
    case 'A': return parse_layout("((4,8),(2,2,2)):((32,1),(16,8,128))");
    case 'B': return parse_layout("((4,8),(2,2)):((16,1),(8,64))");
    default: return parse_layout("((4,8),(2,2)):((32,1),(16,8))");
    }
}

/* The tile of all warps: 16 rows a warp and row tile, 16 columns of B (one ldmatrix.x4), 16 of k. */
void mma_tile(Mma mma, char operand, int64_t tile[2])
{
    tile[0] = operand == 'B' ? 16 : 16 * mma.warps * mma.row_tiles;
    tile[1] = 16;
}

/* The permutation of M: warp w owns the 16*row_tiles rows from 16*row_tiles*w on, tile by tile. */
static Tiler rows_tiler(Mma mma)
{
    if (mma.row_tiles == 1) return tile_number(16 * mma.warps);
    int64_t warp_rows = 16 * mma.row_tiles;
    return tile_layout(LAYOUTS(make_leaf(16, 1), make_leaf(mma.warps, warp_rows), make_leaf(mma.row_tiles, 16)));
}

static Tiler both(Tiler first, Tiler second)
{
    Tiler *item = layout_alloc(2 * sizeof *item);
    const Tiler **items = layout_alloc(2 * sizeof *items);
    item[0] = first, item[1] = second;
    items[0] = &item[0], items[1] = &item[1];
    return (Tiler){.kind = TILE_LIST, .count = 2, .item = items};
}

/* Cut the tensor to tiles of all warps, those to the instruction's; replace an instruction's tile by (lane, value);
 * give the tiles along M to the warps.  What remains is repeated. */
Deal mma_deal(Mma mma, char operand, const Layout *tensor)
{
    int64_t warps_of_0 = operand == 'B' ? 1 : mma.warps;
    Tiler atom = tile_numbers(2, (int64_t[]){operand == 'B' ? 8 : 16, operand == 'C' ? 8 : 16});
    Tiler all = both(operand == 'B' ? tile_number(16) : rows_tiler(mma), tile_number(16));
    const Layout *tiles = zipped_divide(logical_divide(tensor, all), atom);
    const Layout *tv = composition(mode(tiles, 0), mma_atom(operand));
    const Layout *shared = zipped_divide(mode(tiles, 1), tile_numbers(2, (int64_t[]){warps_of_0, 1}));
    const Layout *warp = operand == 'B' ? make_leaf(mma.warps, 0) : sub(shared, 0, 0);
    return (Deal){.threads = composition(LAYOUTS(mode(tv, 0), warp), make_leaf(32 * mma.warps, 1)),
                  .values = mode(tv, 1),
                  .rest = {sub(shared, 1, 0), sub(shared, 1, 1)}};
}

const Layout *mma_tv(Mma mma, char operand)
{
    int64_t tile[2];
    mma_tile(mma, operand, tile);
    Deal d = mma_deal(mma, operand, column_major(tile[0], tile[1]));
    return LAYOUTS(d.threads, LAYOUTS(d.values, LAYOUTS(d.rest[0], d.rest[1])));
}

/* ---- Copies ---- */

/* Four 8x8 matrices of 16-bit elements.  Lane l points at row l % 8 of matrix l / 8 and brings its 8 elements; of each
 * matrix a lane receives elements 2l, 2l+1 of the 64 (row l / 4), or, transposed, rows 2*(l%4), +1 of column l / 4. */
const Layout *ldmatrix_address(void)
{
    return parse_layout("(32,8):(8,1)");
}

const Layout *ldmatrix_result(bool transposed)
{
    return parse_layout(transposed ? "((4,8),(1,2,4)):((16,1),(1,8,64))" : "(32,(2,4)):(2,(1,64))");
}

/* threads and values are layouts of the tile's (row, column): which thread, which value.  Their raked product gives
 * both for each element; its inverse is the TV layout. */
Copy tile_copy(const Layout *threads, const Layout *values)
{
    const Layout *owner = raked_product(threads, values), *atom = parse_layout("(1,8):(0,1)");
    const Layout *tv = composition(right_inverse(owner), column_major(size(threads), size(values)));
    return (Copy){.tv = tv, .tile = {size(mode(owner, 0)), size(mode(owner, 1))}, .source = atom, .destination = atom,
                  .reference = atom};
}

Copy mma_copy(Mma mma, char operand, bool transposed)
{
    Copy copy = {.tv = mma_tv(mma, operand), .source = ldmatrix_address(), .destination = ldmatrix_result(transposed)};
    copy.reference = copy.destination;
    mma_tile(mma, operand, copy.tile);
    return copy;
}

/* One instruction takes a group of threads and values out of tv, and sees them in the order of its own map. */
Deal copy_deal(Copy copy, bool destination, const Layout *tensor)
{
    const Layout *side = destination ? copy.destination : copy.source;
    int64_t group[2] = {size(mode(copy.reference, 0)), size(mode(copy.reference, 1))};
    const Layout *order = composition(right_inverse(copy.reference), side);
    const Layout *atoms = compose_first(zipped_divide(copy.tv, tile_numbers(2, group)), order);
    const Layout *one = make_leaf(1, 0);
    const Layout *tv = coalesce_by_mode(LAYOUTS(LAYOUTS(sub(atoms, 0, 0), sub(atoms, 1, 0)),
                                                LAYOUTS(sub(atoms, 0, 1), sub(atoms, 1, 1))),
                                        LAYOUTS(one, LAYOUTS(one, one)));
    const Layout *tiles = compose_first(zipped_divide(tensor, tile_numbers(2, copy.tile)), tv);
    return (Deal){.threads = sub(tiles, 0, 0),
                  .values = sub(tiles, 0, 1),
                  .rest = {sub(tiles, 1, 0), sub(tiles, 1, 1)}};
}

/* The fragment counts (value of one mma, m, n).  order says how a thread's values of the copy's tile are counted there:
 * invert tv to find each element's value number, drop the threads (upcast), invert again. */
const Layout *retile(Copy copy, const Layout *fragment)
{
    int64_t values = size(mode(fragment, 0));
    const Layout *owner = composition(right_inverse(copy.tv), column_major(copy.tile[0], copy.tile[1]));
    const Layout *value = upcast(owner, size(mode(copy.tv, 0)) * values);
    const Layout *order = logical_product(make_leaf(values, 1), right_inverse(value));
    order = logical_divide(order, tile_number(size(mode(copy.reference, 1))));
    int64_t tile[3] = {values, size(mode(value, 0)), size(mode(value, 1))};
    const Layout *tiles = compose_first(zipped_divide(fragment, tile_numbers(3, tile)), order);
    return LAYOUTS(mode(tiles, 0), sub(tiles, 1, 1), sub(tiles, 1, 2));
}

/* ---- One thread's part ---- */

const Layout *dealt(Deal d)
{
    return LAYOUTS(d.values, d.rest[0], d.rest[1]);
}

static int lowest_bit(int64_t x)
{
    return __builtin_ctzll((unsigned long long)x);
}

/* A swizzle flips the offset bits [base, base+bits) where the bits `shift` above are set.  Seen from one fixed
 * start, the upper bits do not move, so each flipped bit counts either up or down: a stride, + or -.  A mode that
 * steps through such bits falls apart into modes of two. */
static const Layout *unswizzled(const Layout *a, Swizzle s, int64_t start)
{
    if (a->rank != LEAF) {
        const Layout **modes = layout_alloc(sizeof *modes * (size_t)(a->rank + 1));
        for (int i = 0; i < a->rank; i++) modes[i] = unswizzled(a->mode[i], s, start);
        return make_tuple(a->rank, modes);
    }
    if (a->shape == 1 || a->stride == 0 || s.bits == 0) return a;
    if (s.shift < 0) return layout_refuse("a swizzle with a negative shift has no ordinary layouts inside");
    int64_t n = a->shape, d = a->stride;
    int bit = lowest_bit(d), top = bit + 63 - __builtin_clzll((unsigned long long)n);
    if (bit >= s.base + s.bits && (top <= s.base + s.shift || bit >= s.base + s.shift + s.bits)) return a;
    if (top <= s.base) return a;
    bool power = (d & (d - 1)) == 0 && (n & (n - 1)) == 0;
    if (!power || top > s.base + s.shift) {
        return layout_refuse("a mode %s that steps through bits which Sw<%d,%d,%d> reads is no layout any more",
                             layout_text(a), s.bits, s.base, s.shift);
    }
    List modes = {0};
    while (n > 1) {
        bool moved = bit >= s.base && bit < s.base + s.bits;
        int64_t take = 2;
        while (!moved && take < n && bit + lowest_bit(take) != s.base) take *= 2;
        bool down = moved && (start >> (bit + s.shift)) & 1;
        Layout *leaf = layout_alloc(sizeof *leaf);
        *leaf = *make_leaf(take, down ? -d : d);
        leaf->runtime = moved;
        list_add(&modes, leaf);
        bit += lowest_bit(take), d *= take, n /= take;
    }
    return modes.count == 1 ? modes.item[0] : make_tuple(modes.count, modes.item);
}

Composed slice(Deal deal, int64_t thread, Composed tensor)
{
    Composed part = {.offset = tensor.offset + index_of(thread, deal.threads), .layout = dealt(deal)};
    if (tensor.swizzled) {
        part.layout = unswizzled(part.layout, tensor.swizzle, part.offset);
        part.offset = swizzle_apply(tensor.swizzle, part.offset);
    }
    return part;
}

/* What a mode is sorted by: its stride; one known only at run time comes last. */
static const Layout *order_of(const Layout *a)
{
    if (a->rank == LEAF) return make_leaf(a->runtime ? INT64_MAX : a->stride, 0);
    const Layout **modes = layout_alloc(sizeof *modes * (size_t)(a->rank + 1));
    for (int i = 0; i < a->rank; i++) modes[i] = order_of(a->mode[i]);
    return make_tuple(a->rank, modes);
}

static const Layout *scaled(const Layout *a, int64_t by)
{
    if (a->rank == LEAF) return make_leaf(a->shape, a->stride * by);
    const Layout **modes = layout_alloc(sizeof *modes * (size_t)(a->rank + 1));
    for (int i = 0; i < a->rank; i++) modes[i] = scaled(a->mode[i], by);
    return make_tuple(a->rank, modes);
}

/* Packed anew: the values of one instruction first, as they are; after them the repetitions, the smaller the part's
 * stride the faster. */
const Layout *fragment_like(const Layout *part)
{
    const Layout *first = make_compact(mode(part, 0), true);
    if (rank(part) == 1) return first;
    const Layout *rest = make_tuple(part->rank - 1, part->mode + 1);
    rest = scaled(make_ordered(rest, order_of(rest)), size(first));
    List modes = {0};
    list_add(&modes, first);
    for (int i = 0; i < rest->rank; i++) list_add(&modes, rest->mode[i]);
    return make_tuple(modes.count, modes.item);
}

/* ((2,2),M,N) as rows and columns: a value is (column pair, row half). */
const Layout *row_column_view(const Layout *accumulators)
{
    const Layout *a = logical_divide(accumulators, tile_numbers(1, (int64_t[]){2}));
    return LAYOUTS(LAYOUTS(sub(a, 0, 1), mode(a, 1)), LAYOUTS(sub(a, 0, 0), mode(a, 2)));
}

/* Two neighbouring 16x8 accumulators are one 16x16 operand: ((2,2),M,(2,N/2)) -> ((2,2,2),M,N/2). */
const Layout *operand_view(const Layout *accumulators)
{
    const Layout *a = row_column_view(accumulators), *rows = mode(a, 0), *columns = mode(a, 1);
    const Layout *tiles = logical_divide(mode(columns, 1), tile_number(2));
    return LAYOUTS(LAYOUTS(mode(columns, 0), mode(rows, 0), mode(tiles, 0)), mode(rows, 1), mode(tiles, 1));
}
