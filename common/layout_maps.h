/* Who owns what: the thread-value maps of mma.sync.m16n8k16, ldmatrix.x4 and the 16-byte tile copy, as layouts,
 * computed from the instruction's own map; the bank counts of a warp's access; and the pictures of all of them.
 *
 * A TV layout maps (thread, value) to an element of a tile, the tile counted column by column: (m,k) of a 16x16 tile is
 * m + 16*k.  Operands: A is (M,K), B is (N,K), C is (M,N). */
#ifndef LAYOUT_MAPS_H
#define LAYOUT_MAPS_H

#include "layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The constants of a step, as in the kernel files. */
typedef struct Settings {
    int64_t head_dim, block_n, warps, row_tiles, stages;
} Settings;

/* A tensor dealt out: threads says where a thread starts, values and rest what it has from there: its values of one
 * instruction, and the repetitions along the tensor's two modes. */
typedef struct Deal {
    const Layout *threads, *values, *rest[2];
} Deal;

/* Warps along M.  A warp's row_tiles tiles of 16 rows lie next to each other. */
typedef struct Mma {
    int64_t warps, row_tiles;
} Mma;

/* A copy by tiles: tv says who owns what in a tile; the instruction gives its (thread, value) maps of what it reads
 * (source) and writes (destination), and which of them tv speaks of (reference). */
typedef struct Copy {
    const Layout *tv;
    int64_t tile[2];
    const Layout *source, *destination, *reference;
} Copy;

const Layout *mma_atom(char operand);           /* A, B or C: (lane, value) -> element */
const Layout *ldmatrix_address(void);           /* (lane, 8 values) -> half of the four matrices */
const Layout *ldmatrix_result(bool transposed); /* who receives it */
Deal mma_deal(Mma mma, char operand, const Layout *tensor);
const Layout *mma_tv(Mma mma, char operand); /* of the tile of one mma of all warps */
void mma_tile(Mma mma, char operand, int64_t tile[2]);
Copy tile_copy(const Layout *threads, const Layout *values); /* 16 bytes at a time: values (1,8) */
Copy mma_copy(Mma mma, char operand, bool transposed);       /* ldmatrix.x4 into the operand's registers */
Deal copy_deal(Copy copy, bool destination, const Layout *tensor);
const Layout *retile(Copy copy, const Layout *fragment);    /* a fragment as the copy counts it */
const Layout *dealt(Deal deal);                             /* (values, rest, rest) */
Composed slice(Deal deal, int64_t thread, Composed tensor); /* one thread's part, and where it starts */
const Layout *fragment_like(const Layout *part);            /* registers for a part, by its strides */
const Layout *row_column_view(const Layout *accumulators);  /* ((2,M),(2,N)) */
const Layout *operand_view(const Layout *accumulators);     /* C of one product as A of the next */

/* Shared memory: 32 banks of 4 bytes.  A warp's access is served in phases; a phase takes as many wavefronts as the
 * most wanted bank has different words. */
typedef enum Access { ACCESS_LOAD, ACCESS_STORE, ACCESS_LDMATRIX } Access;
#define ABSENT INT64_MIN /* the offset of a lane that takes no part */
int wavefronts(Access access, int bytes, const int64_t byte_offset[32], int phase[4], int *phases);
void print_banks(const char *pattern, Composed tile, const Layout *lane_elements, int64_t warps, int element_bytes);

/* Pictures */
typedef enum Drawing { DRAW_PLAIN, DRAW_COLOUR, DRAW_DOT } Drawing;
extern Drawing drawing;
void draw_offsets(Composed a);
void draw_mma(char operand);
void draw_tiled_mma(Mma mma, char operand, int64_t rows, int64_t columns);
void draw_ldmatrix(bool transposed);
void draw_copy(Copy copy, int64_t rows, int64_t columns);
void draw_work(Settings s, int64_t seq_q, int64_t seq_kv);
void draw_reuse(void);

/* What a step uses, CuTe's name beside ours (step 1 to 6); and every object of the walk through CuTe's own kernel. */
void print_step(int step, Settings s, int64_t thread);
void print_walk(Settings s, int64_t seq_q);

#ifdef __cplusplus
}
#endif
#endif
