/* Pictures: a grid in the terminal, plain or coloured, or the same as a Graphviz file. */
#include "layout_maps.h"

#include <stdio.h>
#include <string.h>

enum { COLOURS = 8, MOST_CELLS = 65536 };

Drawing drawing = DRAW_PLAIN;

/* Eight light tints under black text: readable in a light and in a dark terminal; a Graphviz picture is white. */
static const int ansi[COLOURS] = {151, 153, 223, 217, 183, 187, 159, 250};
static const char *const html[COLOURS] = {"#afd7af", "#afd7ff", "#ffd7af", "#ffafaf",
                                          "#d7afff", "#d7d7af", "#afffff", "#bcbcbc"};

typedef struct Picture {
    const char *title, *row_name, *column_name;
    int64_t rows, columns;
    int64_t row_step, column_step; /* what a row and a column count: 16 labels them 0, 16, 32 */
    const char **text;             /* [rows][columns] */
    int *colour;                   /* 0 to 7, -1: none */
} Picture;

static Picture picture(const char *title, const char *row_name, const char *column_name, int64_t rows, int64_t columns)
{
    Picture p = {title, row_name, column_name, rows, columns, 1, 1, NULL, NULL};
    if (rows > MOST_CELLS || columns > MOST_CELLS || rows * columns > MOST_CELLS) {
        layout_refuse("a picture of %lld x %lld cells: %d at most", (long long)rows, (long long)columns, MOST_CELLS);
        p.rows = p.columns = 0;
    }
    size_t cells = (size_t)(p.rows * p.columns);
    p.text = layout_alloc(cells * sizeof *p.text + 1);
    p.colour = layout_alloc(cells * sizeof *p.colour + 1);
    for (size_t i = 0; i < cells; i++) p.text[i] = "", p.colour[i] = -1;
    return p;
}

/* A second owner of a cell is written behind the first. */
static void set(Picture *p, int64_t row, int64_t column, const char *text, int64_t colour)
{
    if (row < 0 || row >= p->rows || column < 0 || column >= p->columns) return;
    int64_t cell = row * p->columns + column;
    p->text[cell] = *p->text[cell] ? text_of("%s %s", p->text[cell], text) : text;
    p->colour[cell] = (int)((colour % COLOURS + COLOURS) % COLOURS);
}

static const char *number_text(int64_t n)
{
    return text_of("%lld", (long long)n);
}

/* T5V3: value 3 of thread 5. */
static const char *owner_text(int64_t thread, int64_t value)
{
    return text_of("T%lldV%lld", (long long)thread, (long long)value);
}

static void draw_terminal(const Picture *p)
{
    int width = (int)strlen(number_text((p->columns - 1) * p->column_step));
    for (int64_t i = 0; i < p->rows * p->columns; i++) {
        if ((int)strlen(p->text[i]) > width) width = (int)strlen(p->text[i]);
    }
    printf("%s\n%*s ", p->title, 5, "");
    for (int64_t c = 0; c < p->columns; c++) printf(" %*lld", width, (long long)(c * p->column_step));
    printf("   %s\n", p->column_name);
    for (int64_t r = 0; r < p->rows; r++) {
        printf("%5lld ", (long long)(r * p->row_step));
        for (int64_t c = 0; c < p->columns; c++) {
            int64_t cell = r * p->columns + c;
            if (drawing == DRAW_COLOUR && p->colour[cell] >= 0) {
                printf("\033[48;5;%dm\033[30m %*s\033[0m", ansi[p->colour[cell]], width, p->text[cell]);
            } else {
                printf(" %*s", width, p->text[cell]);
            }
        }
        puts("");
    }
    printf("%5s\n", p->row_name);
}

static void add_html(Text *t, const char *text)
{
    for (; *text; text++) {
        if (*text == '<') text_add(t, "&lt;");
        else if (*text == '>') text_add(t, "&gt;");
        else if (*text == '&') text_add(t, "&amp;");
        else text_add(t, "%c", *text);
    }
}

/* One node whose label is a table; dot -Tsvg draws it. */
static void draw_dot(const Picture *p)
{
    Text t = {0};
    text_add(&t,
             "digraph layout {\n  bgcolor=\"white\"\n  node [shape=plain fontname=\"monospace\" fontsize=11]\n"
             "  grid [label=<<table border=\"0\" cellborder=\"1\" cellspacing=\"0\" cellpadding=\"3\">\n"
             "  <tr><td border=\"0\" colspan=\"%lld\">",
             (long long)p->columns + 1);
    add_html(&t, p->title);
    text_add(&t, "</td></tr>\n  <tr><td border=\"0\">");
    add_html(&t, p->row_name);
    text_add(&t, " / ");
    add_html(&t, p->column_name);
    text_add(&t, "</td>");
    for (int64_t c = 0; c < p->columns; c++) {
        text_add(&t, "<td border=\"0\">%lld</td>", (long long)(c * p->column_step));
    }
    text_add(&t, "</tr>\n");
    for (int64_t r = 0; r < p->rows; r++) {
        text_add(&t, "  <tr><td border=\"0\">%lld</td>", (long long)(r * p->row_step));
        for (int64_t c = 0; c < p->columns; c++) {
            int64_t cell = r * p->columns + c;
            if (p->colour[cell] >= 0) text_add(&t, "<td bgcolor=\"%s\">", html[p->colour[cell]]);
            else text_add(&t, "<td>");
            add_html(&t, p->text[cell]);
            text_add(&t, "</td>");
        }
        text_add(&t, "</tr>\n");
    }
    text_add(&t, "  </table>>]\n}\n");
    fputs(t.s, stdout);
}

static void draw(const Picture *p)
{
    if (layout_error()) return;
    if (drawing == DRAW_DOT) draw_dot(p);
    else draw_terminal(p);
}

/* ---- What there is to draw ---- */

/* Rows are mode 0, columns the modes after it.  The colour is the group of four banks (16 bytes of halves) that an
 * offset falls into: eight rows of one colour in a column are an eight-way bank conflict of ldmatrix. */
void draw_offsets(Composed a)
{
    bool one_row = rank(a.layout) == 1;
    int64_t rows = one_row ? 1 : size(mode(a.layout, 0)), columns = size(a.layout) / rows;
    const Layout *leaf = a.layout;
    while (leaf->rank != LEAF) leaf = leaf->mode[leaf->rank - 1];
    bool axes = leaf->axis != NO_AXIS; /* an identity layout: show the coordinate */
    const char *title = composed_text(a);
    if (drawing != DRAW_PLAIN && !axes) title = text_of("%s  (one colour: the same four banks)", title);
    Picture p = picture(title, "mode 0", one_row ? "" : "mode 1", rows, columns);
    for (int64_t i = 0; i < p.rows * p.columns && !layout_error(); i++) {
        int64_t x = composed_index(i, a), c[2] = {0};
        coordinate_of(i, a.layout, 2, c);
        const char *text = axes ? text_of("%lld,%lld", (long long)c[0], (long long)c[1]) : number_text(x);
        set(&p, i % rows, i / rows, text, axes ? c[0] : x / 8);
    }
    draw(&p);
}

static const char *const row_names[] = {"m", "n", "m"}, *const column_names[] = {"k", "k", "n"}; /* of A, B, C */

void draw_mma(char operand)
{
    const Layout *tv = mma_atom(operand), *lanes = mode(tv, 0), *values = mode(tv, 1);
    int64_t rows = operand == 'B' ? 8 : 16, columns = operand == 'C' ? 8 : 16;
    Picture p = picture(text_of("mma.m16n8k16 operand %c: T lane, V value", operand), row_names[operand - 'A'],
                        column_names[operand - 'A'], rows, columns);
    for (int64_t t = 0; t < size(lanes); t++) {
        for (int64_t v = 0; v < size(values); v++) {
            int64_t x = index_of(t, lanes) + index_of(v, values);
            set(&p, x % rows, x / rows, owner_text(t, v), t);
        }
    }
    draw(&p);
}

/* Of B only the first warp: every warp has all of it. */
void draw_tiled_mma(Mma mma, char operand, int64_t rows, int64_t columns)
{
    Picture p = picture(text_of("%lld warps, operand %c: the thread that owns an element%s", (long long)mma.warps,
                                operand, operand == 'B' ? " (the others as the first)" : ""),
                        row_names[operand - 'A'], column_names[operand - 'A'], rows, columns);
    if (layout_error()) return;
    Deal d = mma_deal(mma, operand, column_major(rows, columns));
    const Layout *values = dealt(d);
    for (int64_t t = 0; t < (operand == 'B' ? 32 : size(d.threads)); t++) {
        for (int64_t v = 0; v < size(values); v++) {
            int64_t x = index_of(t, d.threads) + index_of(v, values);
            set(&p, x % rows, x / rows, text_of("T%lld", (long long)t), t);
        }
    }
    draw(&p);
}

/* Matrix i is rows 8i to 8i+7 of the picture; its rows are where lanes 8i to 8i+7 point. */
void draw_ldmatrix(bool transposed)
{
    const Layout *tv = ldmatrix_result(transposed);
    Picture p = picture(text_of("ldmatrix.x4%s: who receives what (row r is where lane r points)",
                                transposed ? ".trans" : ""),
                        "lane that points here", "element", 32, 8);
    for (int64_t t = 0; t < 32; t++) {
        for (int64_t v = 0; v < 8; v++) {
            int64_t x = index_of(t, mode(tv, 0)) + index_of(v, mode(tv, 1));
            set(&p, x / 8, x % 8, owner_text(t, v), t);
        }
    }
    draw(&p);
}

/* One cell a 16-byte chunk. */
void draw_copy(Copy copy, int64_t rows, int64_t columns)
{
    Picture p = picture("16-byte copies: T thread, the number of its instruction", "row", "column", rows, columns / 8);
    if (layout_error()) return;
    p.column_step = 8;
    Deal d = copy_deal(copy, false, column_major(rows, columns));
    const Layout *steps = LAYOUTS(d.rest[0], d.rest[1]);
    for (int64_t t = 0; t < size(d.threads) && !layout_error(); t++) {
        for (int64_t i = 0; i < size(steps); i++) {
            int64_t x = index_of(t, d.threads) + index_of(i, steps);
            set(&p, x % rows, x / rows / 8, text_of("T%lld #%lld", (long long)t, (long long)i), t);
        }
    }
    draw(&p);
}

/* Who computes which scores of one head: a row of cells is a warp's rows, a column is a tile of keys. */
void draw_work(Settings s, int64_t seq_q, int64_t seq_kv)
{
    int64_t warp_rows = 16 * s.row_tiles, strips = (seq_q + warp_rows - 1) / warp_rows;
    Picture p = picture(text_of("Scores of one head, %lld queries x %lld keys: who, and in which turn of its loop",
                                (long long)seq_q, (long long)seq_kv),
                        "first query", "first key", strips, (seq_kv + s.block_n - 1) / s.block_n);
    p.row_step = warp_rows, p.column_step = s.block_n;
    for (int64_t i = 0; i < p.rows; i++) {
        for (int64_t tile = 0; tile < p.columns; tile++) {
            set(&p, i, tile, text_of("block %lld warp %lld turn %lld", (long long)(i / s.warps),
                                     (long long)(i % s.warps), (long long)tile), i);
        }
    }
    draw(&p);
}

/* P between the products, 16 x 16 of a warp: c counts the accumulators of two 16 x 8 pieces of S, a the values of an A
 * operand.  One lane stands in a cell where the accumulator is already where the operand is wanted. */
void draw_reuse(void)
{
    Picture p = picture("P, 16 x 16: T lane; c its accumulator of S; a its place in the A operand", "query", "key",
                        16, 16);
    Deal c = mma_deal((Mma){1, 1}, 'C', column_major(16, 16));
    Deal a = mma_deal((Mma){1, 1}, 'A', column_major(16, 16));
    int64_t lane[256];
    for (int64_t i = 0; i < 256; i++) {
        int64_t t = i / 8, v = i % 8, x = index_of(t, c.threads) + index_of(v, dealt(c));
        lane[x] = t;
        set(&p, x % 16, x / 16, text_of("T%lld c%lld", (long long)t, (long long)v), t);
    }
    for (int64_t i = 0; i < 256; i++) {
        int64_t t = i / 8, v = i % 8, x = index_of(t, a.threads) + index_of(v, dealt(a));
        const char *place = text_of("a%lld", (long long)v);
        set(&p, x % 16, x / 16, lane[x] == t ? place : text_of("T%lld %s", (long long)t, place), t);
    }
    draw(&p);
}
