/* The layouts of a step, CuTe's name for each object beside ours; and the walk: every object of the same kernel written
 * with CuTe, under CuTe's names. */
#include "layout_maps.h"

#include <stdio.h>

static Composed plain(const Layout *a)
{
    return (Composed){.layout = a};
}

static const Layout *identity(int64_t rows, int64_t columns)
{
    return make_identity(pair(rows, columns));
}

/* What the kernel's accumulators look like: ((2,2), row tiles, n/8), packed in this order. */
static const Layout *accumulators(Mma mma, int64_t rows, int64_t columns)
{
    return make_compact(dealt(mma_deal(mma, 'C', column_major(rows, columns))), true);
}

/* ---- The walk ---- */

static void line(const char *name, const char *text, const char *note)
{
    if (!layout_error()) printf("%-36s  %s%s%s\n", name, text, note ? "  # " : "", note ? note : "");
}

static void show(const char *name, const Layout *a)
{
    line(name, layout_text(a), NULL);
}

static const char *of_thread(const char *name, int64_t thread)
{
    return text_of("%s(thread %lld)", name, (long long)thread);
}

/* One thread's part, and where it starts. */
static void show_slice(const char *name, Deal deal, int64_t thread, Composed tensor)
{
    Composed part = slice(deal, thread, tensor);
    line(of_thread(name, thread), layout_text(part.layout), text_of("at %lld", (long long)part.offset));
}

static void show_coordinates(const char *name, Deal deal, const Layout *part, int64_t thread)
{
    int64_t start[2] = {0};
    Text text = {0};
    coordinate_of(thread, deal.threads, 2, start);
    text_add(&text, "ArithTuple(%lld,%lld) o %s", (long long)start[0], (long long)start[1], layout_text(part));
    line(of_thread(name, thread), text.s, NULL);
}

static void show_copy(const char *name, Copy copy)
{
    static const char *const side[] = {"S", "D"};
    line(text_of("%s.Tiler_MN", name), tuple_text(pair(copy.tile[0], copy.tile[1])), NULL);
    show(text_of("%s.TiledLayout_TV", name), copy.tv);
    for (int d = 0; d < 2; d++) {
        Deal deal = copy_deal(copy, d, column_major(copy.tile[0], copy.tile[1]));
        show(text_of("%s.layout%s_TV", name, side[d]), LAYOUTS(deal.threads, deal.values));
    }
}

static void show_atom(const char *name, const Layout *threads, const Layout *source, const Layout *result)
{
    show(text_of("%s.ThrID", name), threads);
    show(text_of("%s.ValLayoutSrc", name), source);
    show(text_of("%s.ValLayoutDst", name), result);
    show(text_of("%s.ValLayoutRef", name), result);
}

static bool walk_fits(Settings s)
{
    int64_t width = s.head_dim % 64 ? 32 : 64, pass = 32 * s.warps / (width / 8);
    if (s.head_dim % 32) {
        layout_refuse(
            "--head-dim %lld: CuTe's kernel cuts D into blocks of 64 or 32 columns; a multiple of 32 is needed",
            (long long)s.head_dim);
    } else if (s.block_n % pass || s.block_n % 16) {
        layout_refuse(
            "--block-n %lld: the copy takes %lld rows a pass and the product 16 keys; a multiple of both is needed",
            (long long)s.block_n, (long long)pass);
    }
    return !layout_error();
}

void print_walk(Settings s, int64_t seq_q)
{
    if (!walk_fits(s)) return;
    const int64_t m = 16 * s.warps * s.row_tiles, n = s.block_n, d = s.head_dim, threads = 32 * s.warps;
    const int64_t width = d % 64 ? 32 : 64;
    const Mma mma = {s.warps, s.row_tiles};
    const Tiler block = tile_numbers(2, (int64_t[]){m, d});
    const Swizzle sw = {width == 64 ? 3 : 2, 3, 3};

    puts("[gmem]");
    const Layout *all_q = row_major(seq_q, d, d), *blocks = zipped_divide(all_q, block);
    const Layout *tile_q = mode(blocks, 0), *in_block = mode(blocks, 1);
    const Layout *g_q = LAYOUTS(mode(tile_q, 0), mode(tile_q, 1), mode(in_block, 1));
    show("mQ", all_q);
    for (int64_t i = 0; i < 2; i++) {
        const char *at = text_of("at %lld", (long long)index_of(i, mode(in_block, 0)));
        line(text_of("gQ(m_block=%lld)", (long long)i), layout_text(g_q), at);
        line(text_of("gQ(_,_,0) (m_block=%lld)", (long long)i), layout_text(tile_q), at);
    }
    show("mQ_static", all_q);
    show("mQ_static zipped_divide (64,D)", blocks);

    puts("[smem]");
    Composed atom = {.swizzled = true, .swizzle = sw, .layout = row_major(8, width, width)};
    Composed s_q = atom, s_k = atom, s_v_t = atom, s_v_by_composition = atom;
    s_q.layout = tile_to_shape(atom.layout, pair(m, d), NULL);
    s_k.layout = tile_to_shape(atom.layout, pair(n, d), NULL);
    const Layout *atom_v_t = LAYOUTS(make_leaf(width, 1), make_leaf(n, width));
    s_v_t.layout = tile_to_shape(atom_v_t, pair(d, n), NULL);
    s_v_by_composition.layout = composition(s_k.layout, LAYOUTS(make_leaf(d, n), make_leaf(n, 1)));
    line("SmemLayoutAtomQ", composed_text(atom), NULL);
    line("sQ", composed_text(s_q), NULL);
    line("sK", composed_text(s_k), NULL);
    show("sQ_plain", s_q.layout);
    show("SmemLayoutAtomVt_noswizzle", atom_v_t);
    show("sVtNoSwizzle", s_v_t.layout);
    line("sVt", composed_text(s_v_t), NULL);
    line("sVt_by_composition", composed_text(s_v_by_composition), NULL);

    puts("[mma_atom]");
    line("Shape_MNK", "(16,8,16)", NULL);
    show("ThrID", make_leaf(32, 1));
    show("LayoutA_TV", mma_atom('A'));
    show("LayoutB_TV", mma_atom('B'));
    show("LayoutC_TV", mma_atom('C'));

    puts("[tiled_mma]");
    const Layout *mnk = LAYOUTS(make_leaf(m, 0), make_leaf(16, 0), make_leaf(16, 0));
    show("ThrLayoutVMNK",
         make_compact(LAYOUTS(make_leaf(32, 0), make_leaf(s.warps, 0), make_leaf(1, 0), make_leaf(1, 0)), true));
    line("PermutationMNK", tuple_text(mnk), NULL);
    line("tile_shape", tuple_text(mnk), NULL);
    show("layoutA_TV", mma_tv(mma, 'A'));
    show("layoutB_TV", mma_tv(mma, 'B'));
    show("layoutC_TV", mma_tv(mma, 'C'));

    puts("[gmem_copy]");
    const Layout *thr = row_major(threads / (width / 8), width / 8, width / 8);
    const Layout *val = LAYOUTS(make_leaf(1, 0), make_leaf(8, 1));
    const Copy copy = tile_copy(thr, val);
    const Layout *g_tile = row_major(m, d, d);
    show("ThrLayout", thr);
    show("ValLayout", val);
    show("raked_product(ThrLayout,ValLayout)", raked_product(thr, val));
    show_copy("copy_qkv", copy);
    show_atom("cp_async_atom", make_leaf(1, 0), copy.source, copy.destination);
    static const int64_t probes[] = {0, 1, 9, 31, 77, 127};
    for (int i = 0; i < 6; i++) {
        if (probes[i] >= threads || probes[i] == 31) continue;
        show_slice("tQgQ", copy_deal(copy, false, g_tile), probes[i], plain(g_tile));
        show_slice("tQsQ", copy_deal(copy, true, s_q.layout), probes[i], s_q);
        show_slice("tQsQ_plain", copy_deal(copy, true, s_q.layout), probes[i], plain(s_q.layout));
    }

    puts("[fragments]");
    const Layout *k_tile = row_major(n, d, d);
    Deal a_smem = mma_deal(mma, 'A', s_q.layout), b_smem = mma_deal(mma, 'B', s_k.layout);
    Deal v_smem = mma_deal(mma, 'B', s_v_t.layout);
    Deal a_plain = mma_deal(mma, 'A', g_tile), b_plain = mma_deal(mma, 'B', k_tile);
    Deal c_a = mma_deal(mma, 'A', identity(m, d)), c_b = mma_deal(mma, 'B', identity(n, d));
    Deal c_c = mma_deal(mma, 'C', identity(m, n));
    const Layout *r_q = fragment_like(slice(a_smem, 0, s_q).layout), *r_k = fragment_like(slice(b_smem, 0, s_k).layout);
    const Layout *r_a = fragment_like(dealt(a_plain)), *r_b = fragment_like(dealt(b_plain));
    const Layout *r_v = fragment_like(dealt(v_smem));
    const Layout *r_s = accumulators(mma, m, n), *r_o = accumulators(mma, m, d);
    show("tCrQ", r_q);
    show("tCrK", r_k);
    show("tCrQ(static thread 0)", fragment_like(dealt(a_smem)));
    show("tCrK(static thread 0)", fragment_like(dealt(b_smem)));
    show_slice("tCsQ", a_smem, 0, s_q);
    show_slice("tCsK", b_smem, 0, s_k);
    show_slice("tCsVtNoSwizzle", v_smem, 0, plain(s_v_t.layout));
    show("tCrA", r_a);
    show("tCrB", r_b);
    show("tCrC", r_s);
    show("tCrS", r_s);
    show("tCrO", r_o);
    show_slice("tCsA", a_plain, 0, plain(g_tile));
    show_slice("tCsB", b_plain, 0, plain(k_tile));
    for (int64_t t = 0; t < 42 && t < threads; t += 41) {
        show_coordinates("tCcA", c_a, dealt(c_a), t);
        show_coordinates("tCcB", c_b, dealt(c_b), t);
        show_coordinates("tCcC", c_c, dealt(c_c), t);
    }
    show("tCrVt", r_v);

    puts("[views]");
    const Layout *rowcol = row_column_view(r_s);
    show("tCrS divided", logical_divide(r_s, tile_numbers(1, (int64_t[]){2})));
    show("tCrS_rowcol", rowcol);
    show("tCrO_rowcol", row_column_view(r_o));
    show("tCrS_rowcol divided", logical_divide(rowcol, parse_tiler("(_,(_,2))")));
    show("rP", r_s);
    show("tCrP", operand_view(r_s));

    puts("[smem_to_reg_copy]");
    const Copy copy_q = mma_copy(mma, 'A', false), copy_k = mma_copy(mma, 'B', false),
               copy_v = mma_copy(mma, 'B', true);
    show_atom("SM75_U32x4_LDSM_N", make_leaf(32, 1), ldmatrix_address(), ldmatrix_result(false));
    show_atom("SM75_U16x8_LDSM_T", make_leaf(32, 1), ldmatrix_address(), ldmatrix_result(true));
    show_copy("s2r_copy_q", copy_q);
    show_copy("s2r_copy_k", copy_k);
    show_copy("s2r_copy_v", copy_v);
    show("tXrA", retile(copy_q, r_a));
    show("tXrB", retile(copy_k, r_b));
    show("tXrQ", retile(copy_q, r_q));
    show("tXrK", retile(copy_k, r_k));
    show("tXrVt", retile(copy_v, r_v));
    Deal x_q = copy_deal(copy_q, false, s_q.layout), x_k = copy_deal(copy_k, false, s_k.layout);
    Deal x_v = copy_deal(copy_v, false, s_v_t.layout);
    for (int i = 0; i < 5; i++) {
        if (probes[i] >= threads) continue;
        show_slice("tXsQ", x_q, probes[i], s_q);
        show_slice("tXsQ_plain", x_q, probes[i], plain(s_q.layout));
        show_slice("tXsK", x_k, probes[i], s_k);
        show_slice("tXsK_plain", x_k, probes[i], plain(s_k.layout));
        show_slice("tXsVt", x_v, probes[i], s_v_t);
        show_slice("tXsVt_plain", x_v, probes[i], plain(s_v_t.layout));
    }
    show("tXsQ(static thread 0)", dealt(x_q));
    show("tXsK(static thread 0)", dealt(x_k));
    show("tXsVt(static thread 0)", dealt(x_v));
    Deal x_c = copy_deal(copy_q, false, identity(m, d)), x_cq = copy_deal(copy_q, true, identity(m, d));
    Deal x_ck = copy_deal(copy_k, true, identity(n, d)), x_cv = copy_deal(copy_v, true, identity(d, n));
    show_coordinates("tXcQ", x_c, dealt(x_c), 0);
    show_coordinates("tXcQ_D", x_cq, dealt(x_cq), 0);
    show_coordinates("tXcK_D", x_ck, dealt(x_ck), 0);
    show_coordinates("tXcVt_D", x_cv, dealt(x_cv), 0);

    puts("[output]");
    const Layout *one = LAYOUTS(make_leaf(1, 0), make_leaf(1, 0));
    Copy copy_s = {.tv = mma_tv(mma, 'C'), .source = one, .destination = one, .reference = one};
    mma_tile(mma, 'C', copy_s.tile);
    Copy copy_o = copy;
    copy_o.source = copy_o.destination = copy_o.reference = one;
    Deal x_o = copy_deal(copy_s, true, s_q.layout), o_smem = copy_deal(copy_o, false, s_q.layout);
    Deal o_gmem = copy_deal(copy_o, true, g_tile), c_o = mma_deal(mma, 'C', identity(m, d));
    show_atom("DefaultCopy_half", make_leaf(1, 0), one, one);
    show_copy("r2s_copy_o", copy_s);
    show("tXrO", retile(copy_s, r_o));
    show_slice("tXsO_plain", x_o, 0, plain(s_q.layout));
    for (int i = 0; i < 5; i += 2) {
        if (probes[i] < threads) show_slice("tXsO", x_o, probes[i], s_q);
    }
    show_copy("copy_o", copy_o);
    for (int i = 0; i < 3; i += 2) {
        show_slice("tOsO", o_smem, probes[i], s_q);
        show_slice("tOgO", o_gmem, probes[i], plain(g_tile));
        show(of_thread("tOrO", probes[i]), make_compact(dealt(o_gmem), true));
    }
    line("cO", text_of("ArithTuple(0,0) o %s", layout_text(identity(m, d))), NULL);
    const Layout *halves = logical_divide(dealt(c_o), tile_numbers(1, (int64_t[]){2}));
    show_coordinates("tCcO", c_o, dealt(c_o), 0);
    show_coordinates("tCcO divided", c_o, halves, 0);
    show_coordinates("tCcO_row", c_o, LAYOUTS(mode(mode(halves, 0), 1), mode(halves, 1)), 0);
}

/* ---- A step ---- */

static void row(const char *cute, const char *ours, const char *text, const char *note)
{
    if (!layout_error()) printf("  %-8s %-26s %s%s%s\n", cute, ours, text, *note ? "   " : "", note);
}

/* A tile in shared memory as the steps store it: 16-byte chunk c of row r at place c ^ r % 8, or, in rows of half a
 * bank line, c ^ r / 2 % 4.  With rows of 2^i elements that is a swizzle in CuTe's sense: bits of the row onto bits
 * of c. */
static Composed our_tile(int64_t rows, int64_t d)
{
    Composed tile = {.layout = row_major(rows, d, d)};
    int log2 = 63 - __builtin_clzll((unsigned long long)d);
    if (d & (d - 1)) return tile;
    tile.swizzled = true;
    tile.swizzle = d % 64 ? (Swizzle){2, 3, 3} : (Swizzle){3, 3, log2 - 3};
    return tile;
}

static Composed transposed(Composed tile)
{
    tile.layout = LAYOUTS(mode(tile.layout, 1), mode(tile.layout, 0));
    return tile;
}

static const char *tile_text(Composed tile, int64_t d)
{
    if (tile.swizzled) return composed_text(tile);
    return text_of("%s, chunk c of row r at place c ^ %s (rows of %lld: no power of two, no Sw<>)",
                   layout_text(tile.layout), d % 64 ? "r / 2 % 4" : "r % 8", (long long)d);
}

static void smem_rows(const char *cute, const char *ours, int64_t rows, int64_t d, bool both)
{
    int64_t width = d % 64 ? 32 : 64;
    Composed theirs = {.swizzled = true, .swizzle = {width == 64 ? 3 : 2, 3, 3}};
    if (d % 32 == 0 && rows % 8 == 0) theirs.layout = tile_to_shape(row_major(8, width, width), pair(rows, d), NULL);
    row(cute, ours, tile_text(our_tile(rows, d), d), "");
    if (both && theirs.layout) row("", "  (CuTe's kernel)", composed_text(theirs), "");
}

/* The tiles of K and V, one buffer after the other; in step 5 Q's behind them. */
static void smem_row(int step, Settings s)
{
    int64_t tile = s.block_n * s.head_dim, buffers = step >= 4 ? s.stages : 1;
    int64_t q_tile = step >= 5 ? 16 * s.warps * s.row_tiles * s.head_dim : 0;
    const Layout *buffer = make_leaf(buffers, buffers > 1 ? 2 * tile : 0);
    const Layout *smem = LAYOUTS(make_leaf(tile, 1), make_leaf(2, tile), buffer);
    row("", "smem", layout_text(smem),
        text_of("(element, K or V, buffer)%s: %lld bytes", q_tile ? ", then Q" : "",
                (long long)(2 * (2 * tile * buffers + q_tile))));
}

/* The elements that a thread copies: 8 of a row, pass after pass. */
static void copy_row(Settings s, int64_t thread)
{
    int64_t chunks = s.head_dim / 8, pass_rows = 32 * s.warps / chunks;
    if (pass_rows == 0) {
        layout_refuse("HEAD_DIM %lld: a row has %lld pieces of 16 bytes, more than there are threads",
                      (long long)s.head_dim, (long long)chunks);
        return;
    }
    int64_t first_row = thread / chunks, passes = (s.block_n + pass_rows - 1) / pass_rows;
    const Layout *elements = make_identity(pair(pass_rows * passes, 8));
    elements = LAYOUTS(mode(elements, 1), composition(mode(elements, 0), make_leaf(passes, pass_rows)));
    row("tKsK", "copy_tile", layout_text(elements),
        first_row >= pass_rows ? "no row is left for this thread"
                               : text_of("from (row %lld, d %lld)%s", (long long)first_row,
                                         (long long)(thread % chunks * 8),
                                         s.block_n % pass_rows ? ", while the row is in the tile" : ""));
}

/* Where a thread's ldmatrix points: start and steps. */
static void address_row(const char *cute, const char *ours, Deal deal, int64_t thread, Composed tile)
{
    if (!tile.swizzled) return;
    Composed part = slice(deal, thread, tile);
    row(cute, ours, layout_text(part.layout), text_of("from %lld", (long long)part.offset));
}

void print_step(int step, Settings s, int64_t thread)
{
    const int64_t m = 16 * s.warps * s.row_tiles, n = s.block_n, d = s.head_dim, threads = 32 * s.warps;
    const Mma mma = {s.warps, s.row_tiles};
    const int64_t r = s.row_tiles;
    if (d % 16 || n % 16)
        layout_refuse("HEAD_DIM %lld and BLOCK_N %lld must be multiples of 16", (long long)d, (long long)n);
    if (thread >= threads) layout_refuse("--thread %lld: there are %lld", (long long)thread, (long long)threads);
    if (layout_error()) return;

    printf(
        "step%02d  HEAD_DIM %lld, BLOCK_N %lld, WARPS %lld, ROW_TILES %lld: %lld threads, BLOCK_M %lld; thread %lld\n",
        step, (long long)d, (long long)n, (long long)s.warps, (long long)r, (long long)threads, (long long)m,
        (long long)thread);
    printf("  %-8s %-26s %s\n", "CuTe", "ours", "layout");
    if (step == 1) {
        row("mQ", "q[row][d]", text_of("(seq_q,%lld):(%lld,1)", (long long)d, (long long)d),
            "one head; rows D apart if dense");
        row("mK", "k[key][d]", text_of("(seq_kv,%lld):(%lld,1)", (long long)d, (long long)d), "");
        row("", "scores[row][key]", "(seq_q,seq_kv):(seq_kv,1)", "in global memory: what step02 removes");
        return;
    }

    row("gQ", "q + first_m", layout_text(row_major(m, d, d)), "BLOCK_M rows of one head, D apart if dense");
    row("gK, gV", "k, v + first_key", layout_text(row_major(n, d, d)), "");
    if (step >= 3) {
        if (step >= 5) smem_rows("sQ", "q_smem", m, d, true);
        smem_rows("sK, sV", "k_smem, v_smem", n, d, true);
        if (step >= 5)
            row("sVt", "v_smem by (d, key)", tile_text(transposed(our_tile(n, d)), d), "the same halves as sV");
        smem_row(step, s);
        copy_row(s, thread);
    }

    Deal c_s = mma_deal(mma, 'C', identity(m, n)), c_o = mma_deal(mma, 'C', identity(m, d));
    int64_t start[2] = {0};
    coordinate_of(thread, c_s.threads, 2, start);
    Text from = {0};
    text_add(&from, "from (row %lld, key %lld)", (long long)start[0], (long long)start[1]);
    const Layout *quad = parse_layout("(2,2):(1,2)");
    const Layout *frag_s = LAYOUTS(quad, make_leaf(r, r > 1 ? n / 2 : 0), make_leaf(n / 8, 4));
    const Layout *frag_o = LAYOUTS(quad, make_leaf(r, r > 1 ? d / 2 : 0), make_leaf(d / 8, 4));
    row("tCcS", "row, key of s", layout_text(dealt(c_s)), from.s);
    row("tCrS", "s[ROW_TILES][BLOCK_N/8][4]", layout_text(frag_s), "register of (value, row tile, 8 keys)");
    row("", "s by (row, key)", layout_text(row_column_view(frag_s)), "row_max, row_sum: one for each row");
    row("tCcO", "row, d of o", layout_text(dealt(c_o)), "");
    row("tCrO", "o[ROW_TILES][D/8][4]", layout_text(frag_o), "");
    if (step >= 5) {
        Composed q_tile = our_tile(m, d), k_tile = our_tile(n, d), v_tile = transposed(k_tile);
        Copy copy_q = mma_copy(mma, 'A', false), copy_k = mma_copy(mma, 'B', false), copy_v = mma_copy(mma, 'B', true);
        const Layout *octet = parse_layout("(2,2,2):(1,2,4)"), *rv = parse_layout("((2,2),2):((1,2),4)");
        address_row("tXsQ", "load_q", copy_deal(copy_q, false, q_tile.layout), thread, q_tile);
        address_row("tXsK", "ldmatrix_x4(k_smem)", copy_deal(copy_k, false, k_tile.layout), thread, k_tile);
        address_row("tXsVt", "ldmatrix_x4_trans(v_smem)", copy_deal(copy_v, false, v_tile.layout), thread, v_tile);
        row("tCrQ", "q_frag[ROW_TILES][D/16]",
            layout_text(LAYOUTS(octet, make_leaf(r, r > 1 ? d / 2 : 0), make_leaf(d / 16, 8))), "");
        row("tXrK", "k_frag", layout_text(rv), "(value of one mma, two mma); not kept");
        row("tXrVt", "v_frag", layout_text(rv), "");
        row("tCrP", "p_frag", layout_text(operand_view(frag_s)),
            "s seen as the A operand: no lane gives anything away");
    }
    if (step < 3 || !our_tile(n, d).swizzled) return;
    const char *tile = composed_text(our_tile(n, d));
    puts("\nWavefronts:");
    if (step >= 5) {
        printf("  layout banks ldmatrix-b '%s'    K\n  layout banks ldmatrix-v '%s'    V\n", tile, tile);
    } else { /* lane l reads chunk 0 of key 2 * (l % 4) */
        Composed keys = our_tile(n, d);
        keys.layout = LAYOUTS(make_leaf(4, 2 * d), make_leaf(8, 0));
        printf("  layout banks load16 '%s'    K: four keys, eight lanes each\n", composed_text(keys));
    }
    printf("  layout banks copy '%s'    copy_tile\n", tile);
}
