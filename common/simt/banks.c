/* What a warp instruction costs in the memory system: counts of addresses, nothing else. */
#include "simt.h"

/* 32-byte sectors that the lanes in mask touch.  Accesses are aligned to their size, so none crosses a sector. */
int global_sectors(const uint64_t address[LANES], unsigned mask, int size)
{
    uint64_t seen[2 * LANES];
    int count = 0;
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        const uint64_t first = address[__builtin_ctz(rest)] / 32;
        const uint64_t last = (address[__builtin_ctz(rest)] + (uint64_t)size - 1) / 32;
        for (uint64_t sector = first; sector <= last; sector++) {
            int i = count - 1; /* neighbours touch the same sector: look at the newest first */
            while (i >= 0 && seen[i] != sector) i--;
            if (i < 0 && count < 2 * LANES) seen[count++] = sector;
        }
    }
    return count;
}

/* Shared memory has 32 banks, each giving one 4-byte word a wavefront.  A warp's access is cut into phases: 16-byte
 * accesses into quarter-warps, 8-byte ones into half-warps, narrower ones not at all.  A phase takes as many wavefronts
 * as the busiest bank has different words to give.  8- and 16-byte loads (not stores, not ldmatrix) may join phases in
 * pairs: if every lane has the address of lane ^ 1, or every lane that of lane ^ 2.  Found by measuring single
 * instructions on an H200; tests/test_executor.py holds the measured cases. */
static int neighbours_agree(const uint64_t address[LANES], unsigned mask, int distance)
{
    for (int lane = 0; lane < LANES; lane++)
        if (mask >> lane & mask >> (lane ^ distance) & 1 && address[lane] != address[lane ^ distance]) return 0;
    return 1;
}

static int lanes_in_phase(const uint64_t address[LANES], unsigned mask, int size, Access access)
{
    const int lanes = size >= 16 ? 8 : size == 8 ? 16 : 32;
    const int joins = access == ACCESS_LOAD && size >= 8 &&
                      (neighbours_agree(address, mask, 1) || neighbours_agree(address, mask, 2));
    return joins ? 2 * lanes : lanes;
}

int shared_wavefronts(const uint64_t address[LANES], unsigned mask, int size, Access access, int *least)
{
    const int lanes = lanes_in_phase(address, mask, size, access);
    int total = 0;
    *least = 0;
    for (int first = 0; first < LANES; first += lanes) {
        uint64_t word[4 * LANES];
        int words = 0, load[32] = {0}, busiest = 0;
        for (int lane = first; lane < first + lanes; lane++)
            for (int byte = 0; (mask >> lane & 1) && byte < size; byte += 4) {
                const uint64_t w = (address[lane] + (uint64_t)byte) / 4;
                int i = words - 1;
                while (i >= 0 && word[i] != w) i--;
                if (i >= 0) continue;
                word[words++] = w;
                if (++load[w % 32] > busiest) busiest = load[w % 32];
            }
        total += busiest;
        *least += (words + 31) / 32;
    }
    return total;
}
