/* NumPy's .npy files (format versions 1.0 to 3.0): read any harmless variant of what a step takes, refuse the rest
 * by name; write files that appear whole or not at all.
 * Format: https://numpy.org/neps/nep-0001-npy-format.html */
#ifndef NPY_H
#define NPY_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { NPY_MAX_DIMS = 8 };

typedef enum NpyType {
    NPY_F16, /* <f2 */
    NPY_F32, /* <f4 */
    NPY_U16, /* <u2: bfloat16 bits */
    NPY_I32, /* <i4 */
    NPY_I64, /* <i8 */
    NPY_U8,  /* |u1 */
    NPY_BOOL /* |b1 */
} NpyType;

typedef struct NpyArray {
    NpyType type;
    int dims;
    int64_t shape[NPY_MAX_DIMS];
    int64_t count; /* elements */
    void *data;    /* C order, little-endian, malloc'ed */
} NpyArray;

/* Reads a file whole.  Big-endian and Fortran-ordered files are converted.  Returns 0, or -1 with one line in error that
 * names the file, the offending value and the rule (a missing file; not .npy; a truncated header or data; trailing
 * bytes; a type not listed above, float64, complex, object and structured types by name; a size that overflows).
 * A file larger than memory is refused before it is read. */
int npy_read(const char *path, NpyArray *array, char *error, size_t error_size);
void npy_free(NpyArray *array);

/* Writes as write_whole does. */
int npy_write(const char *path, const NpyArray *array, char *error, size_t error_size);

/* Any file that appears whole or not at all: fill writes to a temporary file beside it, which is then renamed.  Returns
 * 0, or -1 with one line in error; then no file is left, and an older file at path is untouched.  A symbolic link stays
 * one, the file that it leads to is written; an older file's mode stays. */
int write_whole(const char *path, void (*fill)(FILE *file, const void *content), const void *content, char *error,
                size_t error_size);

/* Where a file of this path is written: the end of its symbolic links, which need not exist.  -1: errno says why. */
int link_target(const char *path, char target[PATH_MAX]);

size_t npy_item_size(NpyType type);
const char *npy_type_name(NpyType type); /* "f16", "f32", "u16 (bf16)", ... */

#ifdef __cplusplus
}
#endif
#endif
