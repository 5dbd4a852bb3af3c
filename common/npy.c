/* .npy files, in and out: see npy.h.  A file is magic, version, header length, header, data.  The header is the text of
 * a Python dict of three keys; it is read by hand: nothing in it may be executed, and each refusal needs a name. */
#include "npy.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEADER_MAX = 10000, /* what numpy.load itself takes; a plain array needs about 100 */
    HEADER_ALIGN = 64,  /* what numpy.save pads to, so that a mapped file's data is aligned */
    SHAPE_TEXT = 192    /* NPY_MAX_DIMS numbers of up to 19 digits, with their commas */
};
static const char magic[] = "\x93NUMPY";
#define MAGIC_BYTES (sizeof magic - 1)

/* In the order of NpyType. */
static const struct {
    const char *code, *descr, *name;
    size_t size;
} types[] = {
    {"f2", "<f2", "f16", 2}, {"f4", "<f4", "f32", 4}, {"u2", "<u2", "u16 (bf16)", 2}, {"i4", "<i4", "i32", 4},
    {"i8", "<i8", "i64", 8}, {"u1", "|u1", "u8", 1},  {"b1", "|b1", "bool", 1},
};
enum { TYPES = sizeof(types) / sizeof(types[0]) };
#define TYPE_RULE "the types are float16, float32, uint16 (bfloat16 bits), int32, int64, uint8 and bool"

/* Refused by name: the first whose code begins the file's type. */
static const struct {
    const char *code, *name;
} refused[] = {
    /* clang-format off */
    {"f8", "float64"}, {"f1", "long double"}, {"c", "complex"}, {"i1", "int8"}, {"i2", "int16"}, {"u4", "uint32"},
    {"u8", "uint64"}, {"O", "Python objects"}, {"S", "byte strings"}, {"U", "strings"}, {"M", "dates"},
    {"m", "time spans"}, {"V2", "raw 2-byte values; save bfloat16 as array.view(numpy.uint16)"}, {"V", "raw bytes"},
    {"", "unknown"},
    /* clang-format on */
};

typedef struct Context {
    const char *path;
    char *error;
    size_t error_size;
    const char *at; /* where parsing stands in the header: printable text that ends with '\0' */
    int big_endian, fortran;
} Context;

/* Writes "path: ..." as one line and returns -1.  A long path loses its beginning, so that the reason still fits, and
 * a control character in a file's name must not break the line. */
__attribute__((format(printf, 2, 3))) static int fail(const Context *c, const char *format, ...)
{
    size_t length = strlen(c->path), keep = c->error_size / 2;
    if (!c->error_size) return -1;
    size_t used = (size_t)snprintf(c->error, c->error_size, "%s: ", c->path + (length > keep ? length - keep : 0));
    if (used < c->error_size) {
        va_list args;
        va_start(args, format);
        vsnprintf(c->error + used, c->error_size - used, format, args);
        va_end(args);
    }
    for (char *letter = c->error; *letter; letter++)
        if ((*letter > 0 && *letter < ' ') || *letter == 127) *letter = '?';
    return -1;
}

static int cannot_write(const Context *c)
{
    return fail(c, "cannot write: %s", strerror(errno));
}

/* Sets count; -1 if the bytes overflow.  Even beside a size of 0 the others must fit: strides are made of them. */
static int count_elements(NpyArray *array)
{
    int64_t item = (int64_t)npy_item_size(array->type), product = 1;
    array->count = 1;
    for (int axis = 0; axis < array->dims; axis++) {
        int64_t size = array->shape[axis];
        if (size == 0) array->count = 0;
        if (size < 0 || size > INT64_MAX / item / product) return -1;
        if (size > 0) product *= size;
    }
    array->count *= product;
    return 0;
}

/* As Python writes a tuple: (), (5,), (2, 3). */
static const char *shape_text(const NpyArray *array, char text[SHAPE_TEXT])
{
    int used = snprintf(text, SHAPE_TEXT, "(");
    for (int axis = 0; axis < array->dims; axis++) {
        const char *format = axis ? ", %lld" : "%lld";
        used += snprintf(text + used, (size_t)(SHAPE_TEXT - used), format, (long long)array->shape[axis]);
    }
    snprintf(text + used, (size_t)(SHAPE_TEXT - used), array->dims == 1 ? ",)" : ")");
    return text;
}

/* ---- The header ---- */

static int expected(const Context *c, const char *what)
{
    if (!*c->at) return fail(c, "malformed header: it ends where %s must stand", what);
    return fail(c, "malformed header: \"%.20s\" where %s must stand", c->at, what);
}

/* Steps over the word if it comes next, and over space before and after it. */
static int take(Context *c, const char *word)
{
    size_t length = strlen(word);
    c->at += strspn(c->at, " \t\r\n");
    if (strncmp(c->at, word, length) != 0) return 0;
    c->at += length;
    c->at += strspn(c->at, " \t\r\n");
    return 1;
}

static int parse_string(Context *c, const char *what, char *text, size_t size)
{
    const char *close = *c->at == '\'' || *c->at == '"' ? strchr(c->at + 1, *c->at) : NULL;
    if (!close) return expected(c, what);
    snprintf(text, size, "%.*s", (int)(close - c->at - 1), c->at + 1);
    c->at = close + 1;
    return 0;
}

static int parse_type(Context *c, NpyArray *array)
{
    char descr[24];
    int i = 0;
    if (*c->at == '[' || *c->at == '(') /* a list of fields, or a pair of a type and a shape */
        return fail(c, "a structured type (%.12s...) is not supported: " TYPE_RULE, c->at);
    if (parse_string(c, "a quoted type", descr, sizeof descr)) return -1;
    /* '=', '|' and nothing all mean the machine's own order, which is little-endian here. */
    const char *code = descr + (strspn(descr, "<>=|") > 0);
    c->big_endian = descr[0] == '>';
    for (int type = 0; type < TYPES; type++)
        if (strcmp(code, types[type].code) == 0) {
            array->type = (NpyType)type;
            return 0;
        }
    while (strncmp(code, refused[i].code, strlen(refused[i].code)) != 0) i++;
    return fail(c, "type '%s' (%s) is not supported: " TYPE_RULE, descr, refused[i].name);
}

static int parse_shape(Context *c, NpyArray *array)
{
    if (!take(c, "(")) return expected(c, "a shape such as (2, 3)");
    for (array->dims = 0; !take(c, ")");) {
        char *after;
        errno = 0;
        long long size = strtoll(c->at, &after, 10);
        int digits = after - c->at < 24 ? (int)(after - c->at) : 24; /* to show */
        if (digits == 0 || *c->at == '+' || (*c->at == '0' && digits > 1)) return expected(c, "a plain size");
        if (*c->at == '-') return fail(c, "size %.*s is negative: sizes are 0 or more", digits, c->at);
        if (errno) return fail(c, "size %.*s overflows: it must fit in 63 bits", digits, c->at);
        if (array->dims == NPY_MAX_DIMS)
            return fail(c, "the shape has more dimensions than the %d allowed", array->dims);
        array->shape[array->dims++] = size;
        c->at = after;
        /* One size needs its comma: to Python, (5) is the number 5. */
        if (!take(c, ",") && (array->dims == 1 || *c->at != ')')) return expected(c, "','");
    }
    return 0;
}

static int parse_header(Context *c, NpyArray *array)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    int seen[3] = {0, 0, 0};
    if (!take(c, "{")) return expected(c, "'{'");
    while (!take(c, "}")) {
        char text[24];
        int key = 0;
        if (parse_string(c, "a quoted key", text, sizeof text)) return -1;
        while (key < 3 && strcmp(text, keys[key]) != 0) key++;
        if (key == 3) return fail(c, "header key '%s' is not descr, fortran_order or shape", text);
        if (seen[key]++) return fail(c, "header key '%s' stands twice: once is the rule", text);
        if (!take(c, ":")) return expected(c, "':'");
        if (key == 0 && parse_type(c, array)) return -1;
        if (key == 1 && !(c->fortran = take(c, "True")) && !take(c, "False")) return expected(c, "True or False");
        if (key == 2 && parse_shape(c, array)) return -1;
        if (!take(c, ",") && *c->at != '}') return expected(c, "',' or '}'");
    }
    if (*c->at) return expected(c, "the header's end");
    for (int key = 0; key < 3; key++)
        if (!seen[key]) return fail(c, "the header lacks its key '%s'", keys[key]);
    return 0;
}

/* ---- Reading ---- */

/* Fills array->data in C order (last axis fastest), little-endian, from the file's data.  `place` follows there if the
 * first axis is the fastest. */
static void convert(const Context *c, NpyArray *array, size_t item, const unsigned char *from)
{
    int64_t index[NPY_MAX_DIMS] = {0}, stride[NPY_MAX_DIMS] = {1}, place = 0;
    unsigned char *to = (unsigned char *)array->data;
    for (int axis = 1; axis < array->dims; axis++) stride[axis] = stride[axis - 1] * array->shape[axis - 1];
    for (int64_t i = 0; i < array->count; i++, to += item) {
        const unsigned char *source = from + (size_t)(c->fortran ? place : i) * item;
        for (size_t byte = 0; byte < item; byte++) to[byte] = source[c->big_endian ? item - 1 - byte : byte];
        for (int axis = array->dims - 1; axis >= 0; axis--) {
            place += stride[axis];
            if (++index[axis] < array->shape[axis]) break;
            place -= stride[axis] * array->shape[axis]; /* this axis starts over, the one before it moves on */
            index[axis] = 0;
        }
    }
}

static int read_bytes(const Context *c, FILE *file, void *data, size_t bytes)
{
    if (fread(data, 1, bytes, file) == bytes) return 0;
    return fail(c, "cannot read: %s", ferror(file) ? strerror(errno) : "it was truncated meanwhile");
}

/* Leaves the file at its data.  size: the file's; a length that the header states is compared with it before use. */
static int read_header(Context *c, FILE *file, int64_t size, NpyArray *array, int64_t *data_at)
{
    unsigned char start[12] = {0};
    char text[HEADER_MAX + 1];
    if (read_bytes(c, file, start, size < 10 ? (size_t)size : 10)) return -1;
    if (memcmp(start, magic, MAGIC_BYTES) != 0)
        return fail(c, "not an .npy file: its %lld bytes begin with %02x %02x %02x, not with \\x93NUMPY%s",
                    (long long)size, start[0], start[1], start[2],
                    memcmp(start, "PK\3\4", 4) == 0 ? " (an .npz? use numpy.save)" : "");
    int major = start[6], minor = start[7], fixed = major == 1 ? 10 : 12;
    if (size >= 8 && (major < 1 || major > 3 || minor != 0))
        return fail(c, "unknown .npy version %d.%d: 1.0, 2.0 and 3.0 are known", major, minor);
    if (size < fixed) return fail(c, "truncated header: %lld bytes there, %d needed", (long long)size, fixed);
    if (read_bytes(c, file, start + 10, (size_t)fixed - 10)) return -1;
    int64_t length = start[8] | start[9] << 8 | start[10] << 16 | (int64_t)start[11] << 24;
    *data_at = fixed + length;
    if (size < *data_at)
        return fail(c, "truncated header: %lld bytes there, %lld needed", (long long)size, (long long)*data_at);
    if (length > HEADER_MAX) return fail(c, "a header of %lld bytes: %d is the most", (long long)length, HEADER_MAX);
    if (read_bytes(c, file, text, (size_t)length)) return -1;
    /* All that we accept is printable ASCII; '?' in place of the rest mismatches, and is safe to show. */
    for (char *letter = text; letter < text + length; letter++)
        if ((*letter < ' ' || *letter > '~') && *letter != '\t' && *letter != '\r' && *letter != '\n') *letter = '?';
    text[length] = '\0';
    c->at = text;
    int result = parse_header(c, array);
    c->at = NULL; /* text ends here */
    return result;
}

static int read_file(Context *c, FILE *file, int64_t size, NpyArray *array)
{
    int64_t data_at = 0;
    char text[SHAPE_TEXT];
    if (read_header(c, file, size, array, &data_at)) return -1;
    const char *type = npy_type_name(array->type), *shape = shape_text(array, text);
    if (count_elements(array)) return fail(c, "shape %s of %s overflows: its bytes must fit in 63 bits", shape, type);

    /* The file's own size comes first: a header that claims more must not make us allocate it. */
    size_t item = npy_item_size(array->type), bytes = (size_t)array->count * item;
    long long there = size - data_at, needed = array->count * (long long)item;
    if (there != needed)
        return fail(c, "%s: %lld bytes there, %lld needed for shape %s of %s",
                    there < needed ? "truncated data" : "trailing bytes", there, needed, shape, type);
    int twice = c->big_endian || c->fortran; /* the data as it is, and converted */
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    /* One byte more, so that an empty array's pointer is not NULL. */
    if ((uint64_t)needed < memory / (twice ? 2 : 1)) array->data = malloc(bytes + 1);
    unsigned char *raw = (unsigned char *)(twice && array->data ? malloc(bytes + 1) : array->data);
    if (!raw)
        return fail(c, "%llu bytes of memory needed for shape %s of %s%s: more than can be had",
                    (unsigned long long)needed * (twice ? 2 : 1), shape, type, twice ? ", half of it to convert" : "");
    int result = read_bytes(c, file, raw, bytes);
    if (result == 0 && twice) convert(c, array, item, raw);
    if (twice) free(raw);
    return result;
}

int npy_read(const char *path, NpyArray *array, char *error, size_t error_size)
{
    Context context = {path, error, error_size, NULL, 0, 0};
    struct stat info;
    memset(array, 0, sizeof *array);
    if (stat(path, &info)) return fail(&context, "cannot read: %s", strerror(errno));
    /* A pipe has no size to check a header against, and opening one that nobody writes to would hang. */
    if (!S_ISREG(info.st_mode))
        return fail(&context, "a %s: a regular file is needed", S_ISDIR(info.st_mode) ? "directory" : "pipe or device");
    FILE *file = fopen(path, "rb");
    if (!file) return fail(&context, "cannot read: %s", strerror(errno));
    int result = read_file(&context, file, (int64_t)info.st_size, array);
    fclose(file);
    if (result) npy_free(array);
    return result;
}

void npy_free(NpyArray *array)
{
    free(array->data);
    memset(array, 0, sizeof *array);
}

/* ---- Writing ---- */

static void write_array(FILE *file, const void *content)
{
    const NpyArray *array = (const NpyArray *)content;
    char header[4 * HEADER_ALIGN], shape[SHAPE_TEXT];
    size_t bytes = (size_t)array->count * npy_item_size(array->type);
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\1\0", MAGIC_BYTES + 2); /* version 1.0 */
    int used = 10 + snprintf(header + 10, sizeof header - 10, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                             types[array->type].descr, shape_text(array, shape));
    size_t end = ((size_t)used / HEADER_ALIGN + 1) * HEADER_ALIGN; /* + 1: room for the newline, always */
    header[used] = ' ';                                            /* snprintf's '\0' */
    header[end - 1] = '\n';
    header[8] = (char)((end - 10) & 0xff);
    header[9] = (char)((end - 10) >> 8);
    if (fwrite(header, 1, end, file) == end && bytes) fwrite(array->data, 1, bytes, file);
}

static const char temporary[] = ".new-XXXXXX"; /* short: it fits wherever the file's own name does */

int link_target(const char *path, char target[PATH_MAX])
{
    char link[PATH_MAX];
    size_t length = strlen(path), folder = 0;
    memcpy(link, path, length < PATH_MAX ? length : 0);
    for (int links = 0; links < 40; links++) { /* as many as Linux follows */
        if (folder + length + sizeof temporary > PATH_MAX) {
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(target + folder, link, length);
        target[folder + length] = 0;
        const ssize_t read = readlink(target, link, sizeof link);
        if (read < 0) return 0; /* no link */
        length = (size_t)read;
        const char *slash = strrchr(target, '/');
        folder = slash && link[0] != '/' ? (size_t)(slash + 1 - target) : 0;
    }
    errno = ELOOP;
    return -1;
}

static int fill_and_close(const Context *c, FILE *file, void (*fill)(FILE *file, const void *content),
                          const void *content)
{
    fill(file, content);
    const int failed = ferror(file) ? cannot_write(c) : 0;
    /* A full disk may show only now, when the last buffer goes out. */
    return fclose(file) && !failed ? cannot_write(c) : failed;
}

int write_whole(const char *path, void (*fill)(FILE *file, const void *content), const void *content, char *error,
                size_t error_size)
{
    Context context = {path, error, error_size, NULL, 0, 0}, *c = &context;
    struct stat older;
    char target[PATH_MAX], temp[PATH_MAX];
    if (link_target(path, target)) return cannot_write(c);
    const int exists = stat(path, &older) == 0;
    if (exists && !S_ISREG(older.st_mode)) {
        /* A device such as /dev/null: a rename would put a file in its place.  fopen refuses a directory. */
        FILE *file = fopen(path, "wb");
        return file ? fill_and_close(c, file, fill, content) : cannot_write(c);
    }
    if (exists && access(path, W_OK)) return cannot_write(c); /* a write-protected file is left, as by fopen */
    const char *slash = strrchr(target, '/');
    const size_t folder = slash ? (size_t)(slash + 1 - target) : 0;
    memcpy(temp, target, folder);
    memcpy(temp + folder, temporary, sizeof temporary);
    int fd = mkstemp(temp);
    if (fd < 0) return cannot_write(c);
    /* mkstemp's file is its owner's alone; fopen would have given a new file this mode and left an older one's. */
    mode_t mask = umask(0);
    umask(mask);
    (void)fchmod(fd, exists ? older.st_mode & 0777 : 0666 & ~mask);
    FILE *file = fdopen(fd, "wb");
    int result = file ? fill_and_close(c, file, fill, content) : cannot_write(c);
    if (!file) close(fd);
    if (result == 0 && rename(temp, target)) result = cannot_write(c);
    if (result) unlink(temp);
    return result;
}

int npy_write(const char *path, const NpyArray *array, char *error, size_t error_size)
{
    Context context = {path, error, error_size, NULL, 0, 0};
    NpyArray check = *array;
    if (count_elements(&check) || check.count != array->count)
        return fail(&context, "cannot write: count is %lld, the shape disagrees", (long long)array->count);
    return write_whole(path, write_array, array, error, error_size);
}

size_t npy_item_size(NpyType type)
{
    return types[type].size;
}

const char *npy_type_name(NpyType type)
{
    return types[type].name;
}
