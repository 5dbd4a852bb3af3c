/* Shared-memory banks: how many wavefronts the accesses of a warp take. */
#include "layout_maps.h"

#include <stdio.h>
#include <string.h>

/* Measured on an H200, and the model of NVIDIA's guides but for one rule: 8- and 16-byte loads (not stores, not
 * ldmatrix) join neighbouring phases if every lane has the address of lane ^ 1, or every lane that of lane ^ 2. */
static bool neighbours_agree(const int64_t offset[32], int distance)
{
    for (int lane = 0; lane < 32; lane++) {
        int64_t mine = offset[lane], other = offset[lane ^ distance];
        if (mine != other && mine != ABSENT && other != ABSENT) return false;
    }
    return true;
}

int wavefronts(Access access, int bytes, const int64_t offset[32], int phase[4], int *phases)
{
    int lanes = bytes == 16 ? 8 : bytes == 8 ? 16 : 32, words = bytes > 4 ? bytes / 4 : 1, total = 0;
    if (access == ACCESS_LOAD && bytes > 4 && (neighbours_agree(offset, 1) || neighbours_agree(offset, 2))) lanes *= 2;
    *phases = 32 / lanes;
    for (int p = 0; p < *phases; p++) {
        int64_t seen[32][64];
        int count[32] = {0}, most = 0;
        for (int i = 0; i < lanes * words; i++) {
            int64_t start = offset[p * lanes + i / words];
            if (start == ABSENT) continue;
            int64_t word = start / 4 + i % words;
            int bank = (int)(word % 32), j = 0;
            while (j < count[bank] && seen[bank][j] != word) j++;
            if (j == count[bank]) seen[bank][count[bank]++] = word;
            if (count[bank] > most) most = count[bank];
        }
        phase[p] = most;
        total += most;
    }
    return total;
}

typedef struct Tally {
    int64_t warps;
    int element_bytes, instructions, least, most;
    long total;
} Tally;

/* Prints a line for one instruction: the wavefronts of its phases, and their sum. */
static void count(Tally *tally, const char *label, Access access, int bytes, const int64_t element[32])
{
    int64_t offset[32];
    int phase[4], phases;
    for (int lane = 0; lane < 32; lane++) {
        offset[lane] = ABSENT;
        if (element[lane] == ABSENT) continue;
        if (element[lane] < 0 || element[lane] > INT64_MAX / 16) {
            layout_refuse("banks: an offset is negative or too large");
            return;
        }
        offset[lane] = element[lane] * tally->element_bytes;
        if (offset[lane] % bytes) {
            layout_refuse("banks: lane %d's offset %lld is no multiple of the access's %d bytes", lane,
                          (long long)offset[lane], bytes);
            return;
        }
    }
    int n = wavefronts(access, bytes, offset, phase, &phases);
    printf("  %-28s", label);
    for (int i = 0; i < phases; i++) printf("%s%d", i ? "+" : "", phase[i]);
    printf(" = %d\n", n);
    if (tally->instructions == 0 || n < tally->least) tally->least = n;
    if (n > tally->most) tally->most = n;
    tally->total += n;
    tally->instructions++;
}

/* ---- Accesses of the kernels to a tile of (rows, columns) ---- */

static int64_t at(Composed tile, int64_t row, int64_t column)
{
    return composed_offset(crd2idx(pair(row, column), tile.layout), tile);
}

static const char *label(const char *a, int64_t i, const char *b, int64_t j)
{
    return text_of("%s %lld %s %lld", a, (long long)i, b, (long long)j);
}

static void ldmatrix_a(Composed tile, int64_t rows, int64_t columns, Tally *tally)
{
    int64_t e[32];
    for (int64_t k = 0; k < columns / 16; k++) {
        for (int64_t w = 0; w < rows / 16; w++) {
            for (int l = 0; l < 32; l++) e[l] = at(tile, 16 * w + l % 16, 16 * k + l / 16 * 8);
            count(tally, label("warp", w, "k", k), ACCESS_LDMATRIX, 16, e);
        }
    }
}

static void ldmatrix_b(Composed tile, int64_t rows, int64_t columns, Tally *tally)
{
    int64_t e[32];
    for (int64_t k = 0; k < columns / 16; k++) {
        for (int64_t n = 0; n < rows / 16; n++) {
            for (int l = 0; l < 32; l++) e[l] = at(tile, 16 * n + l % 8 + l / 16 * 8, 16 * k + l / 8 % 2 * 8);
            count(tally, label("n", n, "k", k), ACCESS_LDMATRIX, 16, e);
        }
    }
}

static void ldmatrix_v(Composed tile, int64_t rows, int64_t columns, Tally *tally)
{
    int64_t e[32];
    for (int64_t key = 0; key < rows / 16; key++) {
        for (int64_t dim = 0; dim < columns / 16; dim++) {
            for (int l = 0; l < 32; l++) e[l] = at(tile, 16 * key + l % 16, 16 * dim + l / 16 * 8);
            count(tally, label("dim", dim, "key", key), ACCESS_LDMATRIX, 16, e);
        }
    }
}

/* As the steps copy: whole rows, as many at a time as the threads reach; threads beyond the last whole row rest. */
static void copy_steps(Composed tile, int64_t rows, int64_t columns, Tally *tally)
{
    int64_t chunks = columns / 8, pass_rows = chunks ? 32 * tally->warps / chunks : 0, e[32];
    for (int64_t pass = 0; pass_rows && pass * pass_rows < rows; pass++) {
        for (int64_t w = 0; w < tally->warps; w++) {
            int active = 0;
            for (int l = 0; l < 32; l++) {
                int64_t row = (32 * w + l) / chunks, chunk = (32 * w + l) % chunks;
                bool rests = row >= pass_rows || pass * pass_rows + row >= rows;
                e[l] = rests ? ABSENT : at(tile, pass * pass_rows + row, 8 * chunk);
                active += !rests;
            }
            if (active) count(tally, label("warp", w, "step", pass), ACCESS_STORE, 16, e);
        }
    }
}

/* As CuTe's kernel copies: blocks of 64 or 32 columns, one after the other. */
static void copy_cute(Composed tile, int64_t rows, int64_t columns, Tally *tally)
{
    int64_t width = columns % 64 ? 32 : 64, chunks = width / 8, pass_rows = 32 * tally->warps / chunks, e[32];
    for (int64_t block = 0; block < columns / width; block++) {
        for (int64_t pass = 0; pass < rows / pass_rows; pass++) {
            for (int64_t w = 0; w < tally->warps; w++) {
                for (int l = 0; l < 32; l++) {
                    int64_t t = 32 * w + l;
                    e[l] = at(tile, pass_rows * pass + t / chunks, width * block + t % chunks * 8);
                }
                count(tally, text_of("%s block %lld", label("warp", w, "row step", pass), (long long)block),
                      ACCESS_STORE, 16, e);
            }
        }
    }
}

/* A warp's accumulators, as pairs of 16-bit elements, to its 16 rows. */
static void store_c(Composed tile, int64_t rows, int64_t columns, Tally *tally)
{
    int64_t e[32];
    for (int64_t w = 0; w < rows / 16; w++) {
        for (int64_t n = 0; n < columns / 8; n++) {
            for (int half = 0; half < 2; half++) {
                for (int l = 0; l < 32; l++) e[l] = at(tile, 16 * w + l / 4 + 8 * half, 8 * n + l % 4 * 2);
                count(tally, text_of("%s half %d", label("warp", w, "n", n), half), ACCESS_STORE, 4, e);
            }
        }
    }
}

/* A warp's 16 rows, read row by row on their way to global memory. */
static void load_rows(Composed tile, int64_t rows, int64_t columns, Tally *tally)
{
    int64_t chunks = columns / 8, e[32];
    for (int64_t w = 0; w < rows / 16; w++) {
        for (int64_t first = 0; first < 16 * chunks; first += 32) {
            for (int l = 0; l < 32; l++) {
                int64_t i = first + l;
                e[l] = i < 16 * chunks ? at(tile, 16 * w + i / chunks, i % chunks * 8) : ABSENT;
            }
            count(tally, label("warp", w, "step", first / 32), ACCESS_LOAD, 16, e);
        }
    }
}

/* pattern: one of the above with a tile, (row, column) -> element; or load4 ... ldmatrix with a layout lane -> element,
 * or with the 32 lanes' elements themselves. */
void print_banks(const char *pattern, Composed tile, const Layout *lane_elements, int64_t warps, int element_bytes)
{
    static const struct {
        const char *name;
        Access access;
        int bytes;
    } lanes[] = {{"load4", ACCESS_LOAD, 4},        {"load8", ACCESS_LOAD, 8},   {"load16", ACCESS_LOAD, 16},
                 {"store4", ACCESS_STORE, 4},      {"store8", ACCESS_STORE, 8}, {"store16", ACCESS_STORE, 16},
                 {"ldmatrix", ACCESS_LDMATRIX, 16}};
    static const struct {
        const char *name;
        void (*count_all)(Composed tile, int64_t rows, int64_t columns, Tally *tally);
    } tiles[] = {{"ldmatrix-a", ldmatrix_a}, {"ldmatrix-b", ldmatrix_b}, {"ldmatrix-v", ldmatrix_v},
                 {"copy", copy_steps},       {"copy-cute", copy_cute},   {"store-c", store_c},
                 {"load-rows", load_rows}};
    Tally tally = {.warps = warps, .element_bytes = element_bytes};
    bool known = false;
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++) {
        if (strcmp(pattern, lanes[i].name) != 0) continue;
        int64_t e[32];
        for (int l = 0; l < 32; l++) e[l] = lane_elements ? lane_elements->mode[l]->shape : composed_index(l, tile);
        count(&tally, pattern, lanes[i].access, lanes[i].bytes, e);
        known = true;
    }
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        if (strcmp(pattern, tiles[i].name) != 0) continue;
        known = true;
        if (lane_elements || rank(tile.layout) != 2 || size(tile.layout) > 1 << 20) {
            layout_refuse("banks %s needs a tile of (rows, columns), not %s", pattern,
                          lane_elements ? "32 numbers" : composed_text(tile));
            return;
        }
        tiles[i].count_all(tile, size(mode(tile.layout, 0)), size(mode(tile.layout, 1)), &tally);
    }
    if (!known) {
        layout_refuse("banks: '%s' is no access: ldmatrix-a, ldmatrix-b, ldmatrix-v, copy, copy-cute, store-c, "
                      "load-rows (of a tile); load4, load8, load16, store4, store8, store16, ldmatrix (lane -> "
                      "element)",
                      pattern);
    }
    if (layout_error()) return;
    if (tally.instructions == 0) {
        layout_refuse("banks %s: %s is too small for one instruction", pattern, composed_text(tile));
        return;
    }
    printf("%d instructions, %ld wavefronts, %d to %d each\n", tally.instructions, tally.total, tally.least,
           tally.most);
}
