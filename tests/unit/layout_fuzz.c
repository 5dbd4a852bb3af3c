/* layout_fuzz N [SEED]: N texts to the parsers of common/layout.c.  Most are a sound text with a few bytes changed, cut
 * out or doubled.  Whatever is read must print, read back the same, and go through the algebra without harm. */
#include "layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint32_t random_below(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

static const char *const seeds[] = {
    "4", "8:1", "(4,8):(8,1)", "((2,2),8,4):((1,2),16,4)", "Sw<3,3,3> o 0 o (8,64):(64,1)", "<4:1,_,<8,(2,4):(1,8)>>",
    "((_2,_2,_2),_1,_4):((_1,_2,_4),_0,_8)", "(2,(3,(4,(5)))):(60,(20,(5,(1))))", "(64,64):(1@0,1@1)", "(1,1,1):(0,0,0)",
    "(2,_,8)", "3:-5", "(9223372036854775807,2):(1,1)", "((((((((2))))))))", "Sw<2,4,-3> o 128:2", "(4,4):(0,0)"};

static const char alphabet[] = "()<>,:_ @-o0123456789Sw\t\n\x01\xff";

static void mutate(char *text, size_t capacity)
{
    for (uint32_t edits = random_below(5); edits > 0; edits--) {
        size_t n = strlen(text), at = random_below((uint32_t)n + 1);
        char c = alphabet[random_below(sizeof alphabet - 1)];
        switch (random_below(4)) {
        case 0: /* change */
            if (n) text[at < n ? at : 0] = c;
            break;
        case 1: /* insert */
            if (n + 2 > capacity) break;
            memmove(text + at + 1, text + at, n - at + 1);
            text[at] = c;
            break;
        case 2: /* cut */
            if (at < n) memmove(text + at, text + at + 1, n - at);
            break;
        default: /* double the tail */
            if (n + (n - at) + 1 > capacity) break;
            memmove(text + n, text + at, n - at);
            text[n + n - at] = 0;
        }
    }
}

/* Refusals are welcome here; only the sanitizers are listening. */
static void exercise(const Layout *a)
{
    if (size(a) > 100000 || layout_error()) return;
    coalesce(a);
    filter(a);
    layout_clear_error();
    complement(a, make_leaf(1000, 0));
    layout_clear_error();
    left_inverse(a);
    layout_clear_error();
    composition(a, right_inverse(a));
    layout_clear_error();
    logical_divide(a, tile_number(2));
    layout_clear_error();
    blocked_product(a, a);
    layout_clear_error();
    upcast(a, 4);
    layout_clear_error();
    index_of(1000000007, a);
    layout_clear_error();
}

int main(int argc, char **argv)
{
    long texts = argc > 1 ? atol(argv[1]) : 1000000, read = 0;
    char text[256];
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (long i = 0; i < texts; i++) {
        snprintf(text, sizeof text, "%s", seeds[random_below(sizeof seeds / sizeof *seeds)]);
        mutate(text, sizeof text);
        layout_clear_error();
        Composed a = parse_composed(text);
        if (!layout_error() && a.layout) {
            read++;
            const char *printed = composed_text(a);
            Composed b = parse_composed(printed);
            if (layout_error() || strcmp(composed_text(b), printed) != 0) {
                printf("'%s' printed as '%s', which reads differently\n", text, printed);
                return 1;
            }
            if (i % 16 == 0) exercise(a.layout);
        }
        layout_clear_error();
        parse_tiler(text);
        layout_clear_error();
        parse_tuple(text);
        layout_free();
    }
    printf("%ld texts, %ld read\n", texts, read);
    return 0;
}
