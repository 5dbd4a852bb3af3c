/* Layouts in the notation of CuTe (the layout algebra of NVIDIA's CUTLASS): shape:stride, both nested alike.
 *
 *   (4,8):(8,1)          coordinate (i,j) stands at 8*i + j; an integer coordinate counts the first mode fastest
 *   ((2,4),8):((1,16),2) a mode can have modes: i = (i0,i1) stands at 1*i0 + 16*i1
 *
 * Layouts are values: no function changes its arguments, every result is new.  All memory belongs to one pool that
 * layout_free() empties; nothing else is ever freed.  (One pool: do not call from two threads at once.)
 *
 * What CuTe refuses is refused here: the first refusal since layout_clear_error() is kept as a sentence, and the
 * function returns 1:0, so that an expression can be written in one line and checked once.
 * The names are CuTe's. */
#ifndef LAYOUT_H
#define LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LEAF = -1, NO_AXIS = -1, MAX_DEPTH = 10000 };

/* A mode: an integer (rank LEAF) or a tuple of modes.  (4) and 4 differ: a tuple of one mode, and a mode.
 * As a shape or a coordinate only the field `shape` of the leaves counts. */
typedef struct Layout {
    int64_t shape, stride;            /* of a leaf: how many, and how far apart */
    int axis;                         /* of a leaf: NO_AXIS, or i: steps along coordinate i instead, printed 8@1 */
    bool runtime;                     /* of a leaf: the compiler cannot know the stride (fragment_like asks) */
    int rank;                         /* LEAF, or the number of modes */
    const struct Layout *const *mode; /* rank modes */
} Layout;

/* Sw<bits,base,shift>: x ^ ((x >> shift) & mask), where mask has `bits` ones from bit `base` up. */
typedef struct Swizzle {
    int bits, base, shift;
} Swizzle;

/* Sw<3,3,3> o offset o layout; swizzled == false: a plain layout that starts at offset. */
typedef struct Composed {
    bool swizzled;
    Swizzle swizzle;
    int64_t offset;
    const Layout *layout;
} Composed;

/* What cuts a layout: a number n (n:1), a layout, _ (leave this mode alone) or a list of one tiler for each mode. */
typedef struct Tiler {
    enum { TILE_KEEP, TILE_NUMBER, TILE_LAYOUT, TILE_LIST } kind;
    int64_t number;
    const Layout *layout;
    int count;
    const struct Tiler *const *item;
} Tiler;

#define PRINTF_LIKE(n) __attribute__((format(printf, n, (n) + 1)))

/* The pool and the refusal */
void layout_free(void);
void layout_clear_error(void);
const char *layout_error(void); /* NULL, or a sentence; after bad text two more lines: the text, ^ under the place */
const Layout *layout_refuse(const char *format, ...) PRINTF_LIKE(1);
void *layout_alloc(size_t bytes); /* from the pool, zeroed */

/* Text.  The parsers take the whole string; CuTe's mark _ of static integers (_8) may be there. */
const Layout *parse_layout(const char *text); /* a shape alone means its column-major layout */
const Layout *parse_tuple(const char *text);  /* integers >= 0 in `shape` */
Composed parse_composed(const char *text);    /* Sw<3,3,3> o 0 o (8,64):(64,1), or a plain layout */
Tiler parse_tiler(const char *text);          /* 8, (2,4):(1,8), <4:1, _, <8, 2>>, or a tuple of numbers (2,_,8) */
int64_t parse_number(const char *text);
const char *layout_text(const Layout *layout);
const char *tuple_text(const Layout *tuple); /* the shapes only */
const char *composed_text(Composed composed);

/* Making */
const Layout *make_leaf(int64_t shape, int64_t stride);
const Layout *make_tuple(int count, const Layout *const *modes);
const Layout *make_compact(const Layout *shape, bool column_major);
const Layout *make_ordered(const Layout *shape, const Layout *order);  /* the smaller the order, the faster the mode */
const Layout *make_identity(const Layout *shape);                      /* (M,N):(1@0,1@1) */
const Layout *pair(int64_t a, int64_t b);                              /* (a,b), a shape or a coordinate */
const Layout *column_major(int64_t rows, int64_t columns);             /* (rows,columns):(1,rows) */
const Layout *row_major(int64_t rows, int64_t columns, int64_t pitch); /* (rows,columns):(pitch,1) */
#define LAYOUTS(...)                                                                                                   \
    make_tuple((int)(sizeof((const Layout *[]){__VA_ARGS__}) / sizeof(const Layout *)), (const Layout *[]){__VA_ARGS__})

/* Asking */
int rank(const Layout *a);
int depth(const Layout *a);
int64_t size(const Layout *a);
int64_t cosize(const Layout *a);
const Layout *mode(const Layout *a, int i); /* mode 0 of a leaf is the leaf */
int64_t crd2idx(const Layout *coord, const Layout *a);
int64_t index_of(int64_t i, const Layout *a); /* crd2idx of an integer coordinate */
const Layout *idx2crd(int64_t index, const Layout *shape);
const Layout *idx2crd_stride(int64_t index, const Layout *a);           /* (index / stride) % shape, mode by mode */
void coordinate_of(int64_t i, const Layout *a, int axes, int64_t *sum); /* adds to sum[axis]; plain strides: sum[0] */
int64_t swizzle_apply(Swizzle s, int64_t x);
int64_t composed_offset(int64_t x, Composed a); /* swizzle(offset + x) */
int64_t composed_index(int64_t i, Composed a);

/* The algebra */
const Layout *coalesce(const Layout *a);
const Layout *coalesce_by_mode(const Layout *a, const Layout *profile);
const Layout *filter(const Layout *a);
const Layout *composition(const Layout *a, const Layout *b); /* i -> a(b(i)) */
const Layout *composition_by(const Layout *a, Tiler tiler);
const Layout *complement(const Layout *a, const Layout *cotarget); /* what a leaves out, up to size(cotarget) */
const Layout *right_inverse(const Layout *a);                      /* a(r(i)) == i, as far as it goes */
const Layout *left_inverse(const Layout *a);                       /* l(a(i)) == i */
const Layout *logical_divide(const Layout *a, Tiler tiler);        /* (tile, rest), mode by mode for a list */
const Layout *zipped_divide(const Layout *a, Tiler tiler);         /* ((tile,tile,..),(rest,rest,..)) */
const Layout *tiled_divide(const Layout *a, Tiler tiler);          /* ((tile,tile,..),rest,rest,..) */
const Layout *flat_divide(const Layout *a, Tiler tiler);           /* (tile,tile,..,rest,rest,..) */
const Layout *logical_product(const Layout *a, const Layout *b);   /* (a, b's copies of a) */
const Layout *blocked_product(const Layout *a, const Layout *b);   /* ((a0,b0),(a1,b1),..) */
const Layout *raked_product(const Layout *a, const Layout *b);     /* ((b0,a0),(b1,a1),..) */
const Layout *tile_to_shape(const Layout *a, const Layout *shape, const Layout *order); /* order NULL: first fastest */
const Layout *upcast(const Layout *a, int64_t n); /* the same bytes in elements n times as wide */
int64_t max_common_vector(const Layout *a, const Layout *b);

Tiler tile_number(int64_t n);
Tiler tile_layout(const Layout *layout);
Tiler tile_numbers(int count, const int64_t *n); /* -1: _ */

/* Growing text and lists, from the pool */
typedef struct Text {
    char *s;
    size_t length, capacity;
} Text;
void text_add(Text *text, const char *format, ...) PRINTF_LIKE(2);
const char *text_of(const char *format, ...) PRINTF_LIKE(1);

typedef struct List {
    int count, capacity;
    const Layout **item;
} List;
void list_add(List *list, const Layout *item);

#ifdef __cplusplus
}
#endif
#endif
