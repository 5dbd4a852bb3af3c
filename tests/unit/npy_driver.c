/* Drives common/npy.c for tests/test_npy.py.
 *     npy_driver read FILE [RAW]   prints type, shape and count; RAW gets the data's bytes
 *     npy_driver copy IN OUT
 * Exit 2 and one line on stderr for what is refused, as every step does. */
#include "npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    char error[512];
    NpyArray array;
    int read = argc >= 3 && argc <= 4 && strcmp(argv[1], "read") == 0;
    int copy = argc == 4 && strcmp(argv[1], "copy") == 0;
    if (!read && !copy) {
        fprintf(stderr, "usage: npy_driver read FILE [RAW] | copy IN OUT\n");
        return 64;
    }
    if (npy_read(argv[2], &array, error, sizeof error)) {
        fprintf(stderr, "%s\n", error);
        return array.data ? 70 : 2; /* 70: a refusal must leave nothing to free */
    }
    if (copy && npy_write(argv[3], &array, error, sizeof error)) {
        fprintf(stderr, "%s\n", error);
        npy_free(&array);
        return 2;
    }
    if (read) {
        printf("%s (", npy_type_name(array.type));
        for (int axis = 0; axis < array.dims; axis++) printf(axis ? ", %lld" : "%lld", (long long)array.shape[axis]);
        printf("%s count=%lld\n", array.dims == 1 ? ",)" : ")", (long long)array.count);
    }
    if (read && argc == 4) {
        size_t bytes = (size_t)array.count * npy_item_size(array.type);
        FILE *raw = fopen(argv[3], "wb");
        if (!raw || fwrite(array.data, 1, bytes, raw) != bytes || fclose(raw)) {
            perror(argv[3]);
            return 74;
        }
    }
    npy_free(&array);
    return 0;
}
