/* build/layout: a calculator for layouts in CuTe's notation.  layout --help lists what it can do. */
#include "layout.h"
#include "layout_maps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_WORDS = 32, IMAGE = 64 }; /* IMAGE: offsets that `image` prints unasked */

typedef struct Words {
    int count;
    char **word;
} Words;

/* ---- Options: --name or --name value, anywhere after the command ---- */

static bool take_flag(Words *w, const char *name)
{
    for (int i = 0; i < w->count; i++) {
        if (strcmp(w->word[i], name) != 0) continue;
        for (int j = i; j + 1 < w->count; j++) w->word[j] = w->word[j + 1];
        w->count--;
        return true;
    }
    return false;
}

static int64_t take_option(Words *w, const char *name, int64_t otherwise, int64_t least, int64_t most)
{
    for (int i = 0; i < w->count; i++) {
        if (strcmp(w->word[i], name) != 0) continue;
        if (i + 1 == w->count) return layout_refuse("%s needs a number", name), otherwise;
        int64_t value = parse_number(w->word[i + 1]);
        if (layout_error()) return otherwise;
        if (value < least || value > most) {
            layout_refuse("%s %lld: from %lld to %lld", name, (long long)value, (long long)least, (long long)most);
        }
        for (int j = i; j + 2 < w->count; j++) w->word[j] = w->word[j + 2];
        w->count -= 2;
        return value;
    }
    return otherwise;
}

/* ---- Commands that work on layouts ---- */

static void print_composed(Composed a)
{
    if (!layout_error()) puts(composed_text(a));
}

static void print_layout(const Layout *a)
{
    print_composed((Composed){.layout = a});
}

static void print_number(int64_t n)
{
    if (!layout_error()) printf("%lld\n", (long long)n);
}

static const Layout *plain_layout(const char *text)
{
    Composed a = parse_composed(text);
    if (a.swizzled) return layout_refuse("%s: a layout without a swizzle is needed here", text);
    return a.layout;
}

static Composed whole_composed(const char *text)
{
    Composed a = parse_composed(text);
    if (!a.layout) a.layout = layout_refuse("%s: a layout must follow: %s o (8,64):(64,1)", text, text);
    return a;
}

static void describe(Words w)
{
    Composed a = whole_composed(w.word[0]);
    const Layout *b = a.layout;
    int64_t n = size(b), last = cosize(b);
    if (layout_error()) return;
    printf("%s\n  size %lld, cosize %lld, rank %d, depth %d\n", composed_text(a), (long long)n, (long long)last,
           rank(b), depth(b));
    if (!a.swizzled) printf("  coalesced %s\n", layout_text(coalesce(b)));
    if (rank(b) == 2 && n <= 4096) draw_offsets(a);
}

static void do_print(Words w) { print_composed(whole_composed(w.word[0])); }
static void do_rank(Words w) { print_number(rank(whole_composed(w.word[0]).layout)); }
static void do_depth(Words w) { print_number(depth(whole_composed(w.word[0]).layout)); }
static void do_cosize(Words w) { print_number(cosize(plain_layout(w.word[0]))); }
static void do_filter(Words w) { print_layout(filter(plain_layout(w.word[0]))); }
static void do_right_inverse(Words w) { print_layout(right_inverse(plain_layout(w.word[0]))); }
static void do_left_inverse(Words w) { print_layout(left_inverse(plain_layout(w.word[0]))); }

static void do_size(Words w)
{
    const Layout *a = whole_composed(w.word[0]).layout;
    int64_t i = w.count > 1 ? parse_number(w.word[1]) : 0;
    if (i < 0 || i >= rank(a)) layout_refuse("mode %lld of %s: it has %d", (long long)i, layout_text(a), rank(a));
    else if (w.count > 1) a = mode(a, (int)i);
    print_number(size(a));
}

static void do_coalesce(Words w)
{
    Composed a = whole_composed(w.word[0]);
    a.layout = w.count > 1 ? coalesce_by_mode(a.layout, parse_tuple(w.word[1])) : coalesce(a.layout);
    print_composed(a);
}

static void do_compose(Words w)
{
    Composed a = parse_composed(w.word[0]);
    if (!a.layout) {
        a.layout = plain_layout(w.word[1]); /* Sw<3,3,3> and a layout */
    } else {
        a.layout = composition_by(a.layout, parse_tiler(w.word[1]));
    }
    print_composed(a);
}

static void divide(Words w, const Layout *(*operation)(const Layout *, Tiler))
{
    Composed a = whole_composed(w.word[0]);
    a.layout = operation(a.layout, parse_tiler(w.word[1]));
    print_composed(a);
}

static void do_logical_divide(Words w) { divide(w, logical_divide); }
static void do_zipped_divide(Words w) { divide(w, zipped_divide); }
static void do_tiled_divide(Words w) { divide(w, tiled_divide); }
static void do_flat_divide(Words w) { divide(w, flat_divide); }

static void multiply(Words w, const Layout *(*operation)(const Layout *, const Layout *))
{
    Composed a = whole_composed(w.word[0]);
    a.layout = operation(a.layout, plain_layout(w.word[1]));
    print_composed(a);
}

static void do_logical_product(Words w) { multiply(w, logical_product); }
static void do_blocked_product(Words w) { multiply(w, blocked_product); }
static void do_raked_product(Words w) { multiply(w, raked_product); }

static void do_complement(Words w)
{
    const Layout *a = plain_layout(w.word[0]);
    print_layout(complement(a, w.count > 1 ? parse_layout(w.word[1]) : make_leaf(cosize(a), 0)));
}

static void do_tile_to_shape(Words w)
{
    Composed a = whole_composed(w.word[0]);
    const Layout *shape = parse_layout(w.word[1]);
    a.layout = tile_to_shape(a.layout, shape, w.count > 2 ? parse_tuple(w.word[2]) : NULL);
    print_composed(a);
}

static void do_upcast(Words w)
{
    const Layout *a = plain_layout(w.word[0]);
    int64_t n = parse_number(w.word[1]);
    if (n < 1) layout_refuse("upcast by %lld: at least 1", (long long)n);
    else print_layout(upcast(a, n));
}

static void do_max_common_vector(Words w)
{
    print_number(max_common_vector(plain_layout(w.word[0]), plain_layout(w.word[1])));
}

static void do_make(Words w)
{
    const Layout *shape = parse_layout(w.word[0]);
    const char *order = w.count > 1 ? w.word[1] : "column";
    if (order[0] == '(') print_layout(make_ordered(shape, parse_tuple(order)));
    else if (!strcmp(order, "row") || !strcmp(order, "column")) print_layout(make_compact(shape, order[0] == 'c'));
    else layout_refuse("make: '%s' is no order: row, column, or a tuple like (2,1)", order);
}

static void do_index(Words w)
{
    Composed a = whole_composed(w.word[1]);
    int64_t x = crd2idx(parse_tuple(w.word[0]), a.layout);
    print_number(composed_offset(x, a));
}

static void do_coordinate(Words w)
{
    int64_t index = parse_number(w.word[0]);
    bool by_stride = strchr(w.word[1], ':') != NULL;
    const Layout *a = plain_layout(w.word[1]);
    if (index < 0) layout_refuse("coordinate %lld: at least 0", (long long)index);
    if (layout_error()) return;
    const Layout *coordinate = by_stride ? idx2crd_stride(index, a) : idx2crd(index, a);
    if (!layout_error()) puts(tuple_text(coordinate));
}

/* The offsets of the first coordinates, in order. */
static void do_image(Words w)
{
    Composed a = whole_composed(w.word[0]);
    int64_t n = size(a.layout), most = w.count > 1 ? parse_number(w.word[1]) : IMAGE;
    if (most < 1) layout_refuse("image of %lld coordinates: at least 1", (long long)most);
    if (layout_error()) return;
    for (int64_t i = 0; i < n && i < most; i++) printf("%s%lld", i ? " " : "", (long long)composed_index(i, a));
    puts("");
}

static void do_grid(Words w)
{
    draw_offsets(whole_composed(w.word[0]));
}

/* ---- Commands that know the hardware ---- */

static Settings take_settings(Words *w)
{
    Settings s = {
        .head_dim = take_option(w, "--head-dim", 64, 16, 512),
        .block_n = take_option(w, "--block-n", 64, 16, 1024),
        .warps = take_option(w, "--warps", 4, 1, 32),
        .row_tiles = take_option(w, "--row-tiles", 1, 1, 16),
        .stages = take_option(w, "--stages", 2, 1, 2),
    };
    return s;
}

/* A TV layout of a whole tile: (thread, (values, repetitions)) -> row + rows * column. */
static const Layout *whole_tv(Deal d)
{
    return LAYOUTS(d.threads, dealt(d));
}

/* The size of an operand's tile.  A: BLOCK_M x HEAD_DIM, B: BLOCK_N x HEAD_DIM, C: BLOCK_M x BLOCK_N. */
static const Layout *operand_tile(char operand, Settings s)
{
    int64_t m = 16 * s.warps * s.row_tiles, rows = operand == 'B' ? s.block_n : m;
    int64_t columns = operand == 'C' ? s.block_n : s.head_dim;
    if (rows % 16 || columns % 16) {
        return layout_refuse("a tile of %lld x %lld: the product needs multiples of 16", (long long)rows,
                             (long long)columns);
    }
    return column_major(rows, columns);
}

static void do_mma(Words w)
{
    bool tiled = take_flag(&w, "--tiled");
    Settings s = take_settings(&w);
    Mma mma = {s.warps, s.row_tiles};
    if (w.count != 1 || w.word[0][0] < 'A' || w.word[0][0] > 'C' || w.word[0][1]) {
        layout_refuse("mma takes one operand, A, B or C, not '%s'", w.count ? w.word[w.count - 1] : "nothing");
    }
    if (layout_error()) return;
    char operand = w.word[0][0];
    const Layout *tile = operand_tile(operand, s);
    if (layout_error()) return;
    if (drawing != DRAW_DOT) print_layout(tiled ? whole_tv(mma_deal(mma, operand, tile)) : mma_atom(operand));
    if (tiled) draw_tiled_mma(mma, operand, size(mode(tile, 0)), size(mode(tile, 1)));
    else draw_mma(operand);
}

/* Alone: the instruction.  With an operand, A (Q), B (K) or V (V by (d, key), transposed): all loads of a tile. */
static void do_ldmatrix(Words w)
{
    bool transposed = take_flag(&w, "--trans");
    Settings s = take_settings(&w);
    char operand = w.count ? w.word[0][0] : 0;
    if (w.count > 1 || (operand && (!strchr("ABV", operand) || w.word[0][1]))) {
        layout_refuse("ldmatrix takes A, B, V or nothing, not '%s'", w.word[w.count - 1]);
    }
    if (layout_error()) return;
    if (!operand) {
        if (drawing != DRAW_DOT) {
            printf("address %s\nresult  %s\n", layout_text(ldmatrix_address()),
                   layout_text(ldmatrix_result(transposed)));
        }
        draw_ldmatrix(transposed);
        return;
    }
    const Layout *tile = operand_tile(operand == 'A' ? 'A' : 'B', s);
    if (operand == 'V') tile = column_major(s.head_dim, s.block_n);
    Copy copy = mma_copy((Mma){s.warps, s.row_tiles}, operand == 'A' ? 'A' : 'B', operand == 'V');
    const Layout *address = whole_tv(copy_deal(copy, false, tile)), *result = whole_tv(copy_deal(copy, true, tile));
    if (!layout_error()) printf("address %s\nresult  %s\n", layout_text(address), layout_text(result));
}

static void do_copy(Words w)
{
    Settings s = take_settings(&w);
    int64_t width = s.head_dim % 64 ? 32 : 64, chunks = width / 8, pass = 32 * s.warps / chunks;
    if (s.block_n % pass) {
        layout_refuse("--block-n %lld: the threads copy %lld rows a pass; a multiple is needed", (long long)s.block_n,
                      (long long)pass);
    }
    if (s.head_dim % 32) layout_refuse("--head-dim %lld: a multiple of 32 is needed", (long long)s.head_dim);
    if (w.count) layout_refuse("copy: '%s' is not an option", w.word[0]);
    if (layout_error()) return;
    const Layout *threads = LAYOUTS(make_leaf(pass, chunks), make_leaf(chunks, 1));
    Copy copy = tile_copy(threads, LAYOUTS(make_leaf(1, 0), make_leaf(8, 1)));
    const Layout *tv = whole_tv(copy_deal(copy, false, column_major(s.block_n, s.head_dim)));
    if (drawing != DRAW_DOT) print_layout(tv);
    draw_copy(copy, s.block_n, s.head_dim);
}

static void do_work(Words w)
{
    int64_t seq_q = take_option(&w, "--seq-q", 128, 1, 1 << 20), seq_kv = take_option(&w, "--seq-kv", 128, 1, 1 << 20);
    Settings s = take_settings(&w);
    if (w.count) layout_refuse("work: '%s' is not an option", w.word[0]);
    if (!layout_error()) draw_work(s, seq_q, seq_kv);
}

static void do_reuse(Words w)
{
    (void)w;
    if (drawing != DRAW_DOT) {
        const Layout *s = parse_layout("((2,2),1,2):((1,2),0,4)");
        printf("S as accumulators %s\nP as A operand    %s\n", layout_text(s), layout_text(operand_view(s)));
    }
    draw_reuse();
}

static void do_banks(Words w)
{
    int64_t bytes = take_option(&w, "--bytes", 2, 1, 16);
    Settings s = take_settings(&w);
    if (w.count != 2) layout_refuse("banks takes an access and a layout");
    if (layout_error()) return;
    const Layout *lanes = NULL;
    Composed tile = {.layout = make_leaf(1, 0)};
    if (w.word[1][0] == '(' && !strchr(w.word[1], ':')) {
        lanes = parse_tuple(w.word[1]);
        bool flat = lanes->rank == 32;
        for (int i = 0; flat && i < 32; i++) flat = lanes->mode[i]->rank == LEAF;
        if (!flat) layout_refuse("banks: a layout, or 32 numbers, one for each lane");
    } else {
        tile = whole_composed(w.word[1]);
    }
    if (!layout_error()) print_banks(w.word[0], tile, lanes, s.warps, (int)bytes);
}

static void do_walk(Words w)
{
    int64_t rows = take_option(&w, "--seq-q", 128, 1, 1 << 30);
    Settings s = take_settings(&w);
    if (w.count) layout_refuse("walk: '%s' is not an option", w.word[0]);
    if (!layout_error()) print_walk(s, rows);
}

static void do_step(int step, Words w)
{
    int64_t thread = take_option(&w, "--thread", 0, 0, 1023);
    Settings s = take_settings(&w);
    if (w.count) layout_refuse("step%02d: '%s' is not an option", step, w.word[0]);
    if (!layout_error()) print_step(step, s, thread);
}

/* ---- The table of commands ---- */

typedef struct Command {
    const char *name, *arguments, *help;
    int least, most; /* words after the name; options not counted when least is 0 */
    void (*run)(Words w);
} Command;

static const Command commands[] = {
    {"print", "A", "the layout as read", 1, 1, do_print},
    {"size", "A [MODE]", "elements", 1, 2, do_size},
    {"cosize", "A", "one more than the largest offset", 1, 1, do_cosize},
    {"rank", "A", "number of modes", 1, 1, do_rank},
    {"depth", "A", "how deep it is nested", 1, 1, do_depth},
    {"make", "SHAPE [column|row|(2,1)]", "the packed layout of a shape", 1, 2, do_make},
    {"index", "COORD A", "where a coordinate stands: index '(1,2)' '(4,8):(8,1)'", 2, 2, do_index},
    {"coordinate", "INDEX SHAPE", "and back; with strides, (index / stride) % shape", 2, 2, do_coordinate},
    {"image", "A [N]", "the offsets of the first N coordinates", 1, 2, do_image},
    {"grid", "A", "the offsets as a table", 1, 1, do_grid},
    {"coalesce", "A [PROFILE]", "the same function in as few modes as possible", 1, 2, do_coalesce},
    {"filter", "A", "without the modes that do not move", 1, 1, do_filter},
    {"composition", "A B", "i -> A(B(i)); B may be a list: '<4:1,_>'", 2, 2, do_compose},
    {"compose", "A B", "the same; compose 'Sw<3,3,3>' B swizzles", 2, 2, do_compose},
    {"complement", "A [N]", "what A leaves out, up to N", 1, 2, do_complement},
    {"right_inverse", "A", "A(R(i)) == i", 1, 1, do_right_inverse},
    {"left_inverse", "A", "L(A(i)) == i", 1, 1, do_left_inverse},
    {"logical_divide", "A TILER", "(tile,rest), mode by mode for a list", 2, 2, do_logical_divide},
    {"zipped_divide", "A TILER", "((tiles),(rests))", 2, 2, do_zipped_divide},
    {"tiled_divide", "A TILER", "((tiles),rest,rest,..)", 2, 2, do_tiled_divide},
    {"flat_divide", "A TILER", "(tile,tile,..,rest,rest,..)", 2, 2, do_flat_divide},
    {"logical_product", "A B", "(A, its copies)", 2, 2, do_logical_product},
    {"blocked_product", "A B", "((a0,b0),(a1,b1)): copies as blocks", 2, 2, do_blocked_product},
    {"raked_product", "A B", "((b0,a0),(b1,a1)): copies interleaved", 2, 2, do_raked_product},
    {"tile_to_shape", "A SHAPE [ORDER]", "copies of A until the shape is full", 2, 3, do_tile_to_shape},
    {"upcast", "A N", "the same memory in elements N times as wide", 2, 2, do_upcast},
    {"max_common_vector", "A B", "elements that both keep side by side", 2, 2, do_max_common_vector},
    {"mma", "A|B|C [--tiled]", "who owns what in mma.m16n8k16, or in a tile of all warps", 1, MAX_WORDS, do_mma},
    {"ldmatrix", "[--trans] | A|B|V", "who receives what in ldmatrix.x4, or in a tile", 0, MAX_WORDS, do_ldmatrix},
    {"copy", "", "which thread copies which 16 bytes of a tile", 0, MAX_WORDS, do_copy},
    {"work", "", "which block and warp computes which scores (--seq-q, --seq-kv)", 0, MAX_WORDS, do_work},
    {"reuse", "", "P: the accumulators of one product as the A operand of the next", 0, 0, do_reuse},
    {"banks", "ACCESS A", "wavefronts of each instruction: banks ldmatrix-b A, load16 A ..", 2, MAX_WORDS, do_banks},
    {"walk", "", "every object of the same kernel in CuTe", 0, MAX_WORDS, do_walk},
};

static void help(void)
{
    puts("layout A                    describes a layout: layout '((2,2),8,4):((1,2),16,4)'\n"
         "layout stepNN               what a step uses, CuTe's names beside ours (01 to 06; --thread T)\n"
         "layout COMMAND ...          one of:");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        printf("  %-18s %-26s %s\n", commands[i].name, commands[i].arguments, commands[i].help);
    }
    puts("layout -                    commands from standard input, one a line\n\n"
         "A layout is shape:stride, nested alike; a shape alone is column-major; Sw<3,3,3> o 0 o (8,64):(64,1) is "
         "swizzled.\n"
         "A tiler is a number, a layout, or a list of one for each mode: <4:1,_,(2,2):(1,8)>.\n"
         "Options: --head-dim --block-n --warps --row-tiles --stages (settings of a step), --bytes (of an element),\n"
         "         --dot (pictures for Graphviz: layout grid A --dot | dot -Tsvg), --colour, --no-colour.\n\n"
         "make layouts-stepNN prints a step with make's settings.  make probe asks the instructions themselves:\n"
         "it runs ldmatrix and mma on coordinates, in the executor or on a GPU, and compares who gets what with these maps.");
}

static bool same_name(const char *a, const char *b)
{
    while (*a && (*a == *b || (*a == '-' && *b == '_'))) a++, b++;
    return !*a && !*b;
}

/* Runs one command.  Returns the exit code. */
static int run(Words w)
{
    layout_clear_error();
    Drawing before = drawing;
    if (take_flag(&w, "--dot")) drawing = DRAW_DOT;
    if (take_flag(&w, "--colour") || take_flag(&w, "--color")) drawing = DRAW_COLOUR;
    if (take_flag(&w, "--no-colour") || take_flag(&w, "--no-color")) drawing = DRAW_PLAIN;
    const char *name = w.count ? w.word[0] : "--help";
    const Command *command = NULL;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (same_name(name, commands[i].name)) command = &commands[i];
    }
    Words rest = {w.count - 1, w.word + 1};
    int step = !strncmp(name, "step0", 5) && name[5] >= '1' && name[5] <= '6' && !name[6] ? name[5] - '0' : 0;
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        help();
    } else if (step) {
        do_step(step, rest);
    } else if (command) {
        if (rest.count < command->least || rest.count > command->most) {
            layout_refuse("%s takes %s", command->name, *command->arguments ? command->arguments : "only options");
        } else {
            command->run(rest);
        }
    } else if (strchr("(_0123456789 ", name[0]) || !strncmp(name, "Sw", 2)) {
        if (w.count > 1) layout_refuse("one layout was expected, then came '%s' (quote the layout)", w.word[1]);
        else describe(w);
    } else {
        layout_refuse("'%s' is no command: layout --help lists them", name);
    }
    drawing = before;
    return layout_error() ? 2 : 0;
}

/* Splits a line at blanks; quotes keep them. */
static Words split(char *line)
{
    static char *word[MAX_WORDS];
    Words w = {0, word};
    while (*line && w.count < MAX_WORDS) {
        while (*line == ' ' || *line == '\t' || *line == '\n' || *line == '\r') line++;
        if (!*line) break;
        char quote = *line == '\'' || *line == '"' ? *line++ : 0;
        w.word[w.count++] = line;
        while (*line && (quote ? *line != quote : !strchr(" \t\r\n", *line))) line++;
        if (*line) *line++ = 0;
    }
    return w;
}

/* Answers stand in order: a refusal is written where its answer would be. */
static int run_lines(void)
{
    char *line = NULL;
    size_t capacity = 0;
    int code = 0;
    while (getline(&line, &capacity, stdin) >= 0) {
        Words w = split(line);
        if (w.count == 0) continue;
        if (run(w)) {
            printf("refused: %s\n", layout_error());
            code = 2;
        }
        fflush(stdout);
        layout_free();
    }
    free(line);
    return code;
}

/* What was printed may be in a buffer still: a full disk shows here. */
static int finish(int code)
{
    if (!fflush(stdout) && !ferror(stdout)) return code;
    fprintf(stderr, "layout: standard output: writing failed; is the disk full?\n");
    return 2;
}

int main(int argc, char **argv)
{
    const char *term = getenv("TERM");
    const char *no_colour = getenv("NO_COLOR");
    bool colour = isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0 && !(no_colour && *no_colour);
    drawing = colour ? DRAW_COLOUR : DRAW_PLAIN;
    if (argc == 2 && !strcmp(argv[1], "-")) return finish(run_lines());
    int code = run((Words){argc - 1, argv + 1});
    if (code) fprintf(stderr, "layout: %s\n", layout_error());
    layout_free();
    return code ? code : finish(0);
}
