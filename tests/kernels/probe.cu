/* Who really gets what: ldmatrix and mma run on coordinates, and what arrives is set beside the maps of
 * common/layout_maps.c.  make probe runs it; exit 1 if they differ.
 * test_probe banks ACCESS: 32 byte offsets a line from standard input; for each line the wavefronts that the executor
 * counts for one ACCESS (load4, load8, load16, store4, store8, store16, ldmatrix) of a warp to those offsets.
 *
 * ldmatrix: 32 rows of 8 elements hold their own index; a lane's registers then say where they came from.
 * mma: the operands come from memory by ldmatrix as in step05, so that m, n and k are those of memory.
 *   C: a[m][0] = m, a[m][1] = 1; b[n][0] = 1, b[n][1] = 16 n.  The product is m + 16 n: an accumulator names its place.
 *   A: all of the operand is 0 but for one value of one lane, which is 1; b[n][k] = 1 + n + 8 k.  Row m of the product
 *      is then b[..][k], all other rows are 0: the row tells m, what stands in it tells k.
 *   B: likewise, with a[m][k] = 1 + m + 16 k; the column tells n. */
#include "../../common/backend.h"
#include "../../common/cuda_c.h"
#include "../../common/layout_maps.h"
#include "../../common/ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 32, A_VALUES = 8, B_VALUES = 4, C_VALUES = 4 };
enum { PRODUCT = WARP_SIZE * C_VALUES }; /* accumulators of a warp */
enum { BANK_ROOM = 16384 };              /* bytes of shared memory that a bank access may reach */

typedef struct Params {
    const float *in;   /* ldmatrix: [32][8]; mma: a [16][16], then b [16][16], of which rows 0 to 7 count */
    float *out;        /* ldmatrix: [plain, trans][lane][8]; mma: [experiment][lane][4] */
    const int *offset; /* banks: [lane], bytes */
    unsigned *sink;    /* banks: [lane], what was loaded */
    int operand;       /* mma: 'C', or 'A' or 'B': one experiment for each value of that operand */
    int access, bytes; /* banks */
} Params;
KERNEL_PARAMS(Params)

static __device__ inline void put_halves(float *out, uint4 m)
{
    const unsigned word[4] = {m.x, m.y, m.z, m.w};
    for (int i = 0; i < 4; i++) {
        const float2 both = unpack4(word[i]);
        out[2 * i] = both.x;
        out[2 * i + 1] = both.y;
    }
}

__global__ void probe_ldmatrix(const Params p)
{
    SHARED(element_t, smem);
    const int lane = threadIdx.x;
    for (int i = lane; i < ROWS * 8; i += WARP_SIZE) smem[i] = to_element(p.in[i]);
    __syncwarp();
    put_halves(p.out + 8 * lane, ldmatrix_x4(smem + 8 * lane));
    put_halves(p.out + 8 * (WARP_SIZE + lane), ldmatrix_x4_trans(smem + 8 * lane));
}

/* Value i of a lane's registers alone is 1, and only if it is this lane's turn. */
static __device__ inline unsigned one_hot(int i, int word, int turn)
{
    return turn && i / 2 == word ? (i % 2 ? pack4(0, 1) : pack4(1, 0)) : 0;
}

__global__ void probe_mma(const Params p)
{
    SHARED(element_t, smem);
    const int lane = threadIdx.x;
    const element_t *a_smem = smem, *b_smem = smem + 256; /* [16][16] each */
    for (int i = lane; i < 512; i += WARP_SIZE) smem[i] = to_element(p.in[i]);
    __syncwarp();
    uint4 a = ldmatrix_x4(a_smem + lane % 16 * 16 + lane / 16 * 8);
    uint4 b = ldmatrix_x4(b_smem + (lane / 16 * 8 + lane % 8) * 16 + lane / 8 % 2 * 8);
    const int values = p.operand == 'A' ? A_VALUES : B_VALUES;
    const int experiments = p.operand == 'C' ? 1 : WARP_SIZE * values;
    for (int i = 0; i < experiments; i++) {
        const int turn = i / values == lane, value = i % values;
        if (p.operand == 'A') {
            a.x = one_hot(value, 0, turn), a.y = one_hot(value, 1, turn);
            a.z = one_hot(value, 2, turn), a.w = one_hot(value, 3, turn);
        } else if (p.operand == 'B') {
            b.x = one_hot(value, 0, turn), b.y = one_hot(value, 1, turn);
        }
        float d[4] = {0, 0, 0, 0};
        mma_m16n8k16(d, a, b.x, b.y);
        for (int j = 0; j < C_VALUES; j++) p.out[i * PRODUCT + C_VALUES * lane + j] = d[j];
    }
}

__global__ void probe_banks(const Params p)
{
    SHARED(uint4, room);
    const int lane = threadIdx.x;
    const uint4 zero = {0, 0, 0, 0};
    if (p.access != ACCESS_STORE)
        for (int i = lane; i < BANK_ROOM / 16; i += WARP_SIZE) STORE16(room + i, zero);
    __syncthreads();
    char *address = (char *)room + p.offset[lane];
    unsigned got = 0;
    if (p.access == ACCESS_LDMATRIX) {
        got = ldmatrix_x4((const element_t *)address).x;
    } else if (p.access == ACCESS_LOAD) {
        if (p.bytes == 4) got = LOAD4(address);
        if (p.bytes == 8) got = (unsigned)(*(const uint64_t *)address % 3); /* of all bytes, or fewer would be loaded */
        if (p.bytes == 16) {
            const uint4 quad = LOAD16(address);
            got = quad.x + quad.y + quad.z + quad.w;
        }
    } else {
        if (p.bytes == 4) STORE4(address, 0);
        if (p.bytes == 8) *(uint64_t *)address = 0;
        if (p.bytes == 16) STORE16(address, zero);
    }
    p.sink[lane] = got;
}

/* ---- Running them ---- */

/* operand: 0 for ldmatrix, else of mma. */
static void run(int operand, const float *in, int inputs, float *out, int outputs)
{
    const int64_t in_bytes = inputs * (int64_t)sizeof *in, out_bytes = outputs * (int64_t)sizeof *out;
    Params p;
    memset(&p, 0, sizeof p);
    float *device_in = (float *)backend_alloc(in_bytes, "in");
    backend_upload(device_in, in, in_bytes);
    p.in = device_in;
    p.out = (float *)backend_alloc(out_bytes, "out");
    p.operand = operand;
    if (operand)
        LAUNCH(probe_mma, 1, WARP_SIZE, inputs * sizeof(element_t), p);
    else
        LAUNCH(probe_ldmatrix, 1, WARP_SIZE, inputs * sizeof(element_t), p);
    backend_synchronize();
    backend_download(out, p.out, out_bytes);
    backend_free(device_in);
    backend_free(p.out);
}

/* ---- Setting them beside the layouts ---- */

static void print_place(int x, int rows, int by_rows)
{
    if (x < 0)
        printf(" (?,?)");
    else if (by_rows)
        printf(" (%d,%d)", x / rows, x % rows);
    else
        printf(" (%d,%d)", x % rows, x / rows);
}

/* place[lane][value] as tv counts places, -1 if nothing sensible arrived; printed as (i,j), from i + size * j, or, by
 * rows, from size * i + j.  Returns how many differ from tv. */
static int compare(const char *title, const int *place, int values, int size, int by_rows, const Layout *tv)
{
    int wrong = 0, said[A_VALUES];
    printf("%s\n", title);
    for (int lane = 0; lane < WARP_SIZE; lane++) {
        int differs = 0;
        printf("  lane %2d  ", lane);
        for (int v = 0; v < values; v++) {
            said[v] = (int)(index_of(lane, mode(tv, 0)) + index_of(v, mode(tv, 1)));
            differs += said[v] != place[lane * values + v];
            print_place(place[lane * values + v], size, by_rows);
        }
        printf(differs ? "  but the layout says" : "  as the layout says");
        for (int v = 0; differs && v < values; v++) print_place(said[v], size, by_rows);
        printf("\n");
        wrong += differs;
    }
    printf("  %d of %d values are where %s says\n\n", WARP_SIZE * values - wrong, WARP_SIZE * values, layout_text(tv));
    return wrong;
}

static int probe_all(void)
{
    static float out[WARP_SIZE * A_VALUES][PRODUCT];
    static int place[WARP_SIZE * A_VALUES], c_place[PRODUCT];
    float in[512], loaded[2][WARP_SIZE * 8];
    int wrong = 0;

    for (int i = 0; i < ROWS * 8; i++) in[i] = (float)i;
    run(0, in, ROWS * 8, loaded[0], 2 * WARP_SIZE * 8);
    for (int trans = 0; trans < 2; trans++) {
        for (int i = 0; i < WARP_SIZE * 8; i++) {
            const float x = loaded[trans][i];
            place[i] = x >= 0 && x < ROWS * 8 ? (int)x : -1;
        }
        wrong += compare(trans ? "ldmatrix.x4.trans (row,element)" : "ldmatrix.x4 (row,element)", place, 8, 8, 1,
                         ldmatrix_result(trans));
    }

    memset(in, 0, sizeof in);
    for (int m = 0; m < 16; m++) in[16 * m] = (float)m, in[16 * m + 1] = 1;
    for (int n = 0; n < 8; n++) in[256 + 16 * n] = 1, in[256 + 16 * n + 1] = (float)(16 * n);
    run('C', in, 512, out[0], PRODUCT);
    for (int i = 0; i < PRODUCT; i++) c_place[i] = out[0][i] >= 0 && out[0][i] < 128 ? (int)out[0][i] : -1;
    wrong += compare("mma C (m,n)", c_place, C_VALUES, 16, 0, mma_atom('C'));

    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 16; k++) {
            in[16 * m + k] = (float)(1 + m + 16 * k);
            in[256 + 16 * m + k] = m < 8 ? (float)(1 + m + 8 * k) : 0;
        }
    for (int operand = 'A'; operand <= 'B'; operand++) {
        const int values = operand == 'A' ? A_VALUES : B_VALUES, rows = operand == 'A' ? 16 : 8;
        const int others = operand == 'A' ? 8 : 16; /* how many of the product a single value reaches */
        run(operand, in, 512, out[0], WARP_SIZE * values * PRODUCT);
        for (int i = 0; i < WARP_SIZE * values; i++) {
            int reached = 0;
            place[i] = -1;
            for (int j = 0; j < PRODUCT; j++) {
                if (out[i][j] == 0) continue;
                const int m = c_place[j] % 16, n = c_place[j] / 16, code = (int)out[i][j] - 1;
                const int row = operand == 'A' ? m : n, other = operand == 'A' ? n : m;
                const int here = row + rows * (code / others);
                if (code % others != other || (reached++ && place[i] != here)) reached = 1000;
                place[i] = here;
            }
            if (reached != others) place[i] = -1;
        }
        wrong +=
            compare(operand == 'A' ? "mma A (m,k)" : "mma B (n,k)", place, values, rows, 0, mma_atom((char)operand));
    }
    printf("%s\n", wrong ? "FAIL" : "PASS: the instructions do what the layouts say");
    return wrong != 0;
}

static int64_t wavefronts_so_far(int access)
{
    const Counters c = backend_counters();
    return access == ACCESS_STORE ? c.shared_store_wavefronts : c.shared_load_wavefronts;
}

/* 32 offsets a line until the end; a line of output each: wavefronts. */
static int count_banks(const char *access)
{
    int offset[WARP_SIZE];
    Params p;
    memset(&p, 0, sizeof p);
    p.access = access[0] == 's' ? ACCESS_STORE : strcmp(access, "ldmatrix") ? ACCESS_LOAD : ACCESS_LDMATRIX;
    p.bytes = atoi(access + strcspn(access, "0123456789"));
    int *device_offset = (int *)backend_alloc(sizeof offset, "offset");
    p.sink = (unsigned *)backend_alloc(sizeof offset, "sink");
    p.offset = device_offset;
    for (;;) {
        for (int lane = 0; lane < WARP_SIZE; lane++)
            if (scanf("%d", &offset[lane]) != 1 || offset[lane] < 0 || offset[lane] > BANK_ROOM - 16) return lane != 0;
        backend_upload(device_offset, offset, sizeof offset);
        const int64_t before = wavefronts_so_far(p.access);
        LAUNCH(probe_banks, 1, WARP_SIZE, BANK_ROOM, p);
        backend_synchronize();
        printf("%lld\n", (long long)(wavefronts_so_far(p.access) - before));
    }
}

int main(int argc, char **argv)
{
    backend_init(1);
    if (argc == 3 && !strcmp(argv[1], "banks")) return count_banks(argv[2]);
    if (argc != 1) return fprintf(stderr, "probe: takes nothing, or: banks ACCESS\n"), 2;
    printf("%s\n\n", backend_info().name);
    return probe_all();
}
