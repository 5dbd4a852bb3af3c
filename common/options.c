/* The command line.  An option is one row of the table below: it is parsed, refused and listed by --help from there. */
#include "options.h"
#include "npy.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum Kind {
    HEADING, /* a line of --help */
    HELP,    /* --help itself */
    FLAG,    /* no value; int */
    COUNT,   /* 1 to INT_MAX; int */
    SIZE,    /* a COUNT that describes generated input: refused beside --q --k --v */
    SEED,    /* 0 to 2^64 - 1; uint64_t; generated input too */
    NUMBER,  /* double */
    CAP,     /* a NUMBER that is not negative */
    WINDOW,  /* two whole numbers from -1, with a comma between; int[2] */
    INPUT,   /* a file that is read; const char * */
    OUTPUT   /* a file that is written; const char * */
} Kind;

typedef struct OptionRow {
    Kind kind;
    const char *name, *value; /* value: what --help calls it */
    size_t offset;            /* in Options */
    const char *help;
} OptionRow;

#define AT(member) offsetof(Options, member)
static const OptionRow rows[] = {
    {HEADING, "Generated input (normal random numbers; defaults in brackets):", "", 0, ""},
    {SIZE, "--batch", "N", AT(batch), "batch entries, B (1)"},
    {SIZE, "--heads", "N", AT(heads), "heads, H (2)"},
    {SIZE, "--seq-q", "N", AT(seq_q), "query rows, Sq (128)"},
    {SIZE, "--seq-kv", "N", AT(seq_kv), "keys and values, Skv (as many as query rows)"},
    {SIZE, "--head-dim", "N", AT(head_dim), "D, a multiple of 8 (the HEAD_DIM of this build)"},
    {SEED, "--seed", "N", AT(seed), "where the random numbers start (1)"},
    {HEADING, "Input from files (NumPy .npy, shape [B,H,S,D]; all three):", "", 0, ""},
    {INPUT, "--q", "FILE", AT(q), "queries; float32 is rounded to the type of this build"},
    {INPUT, "--k", "FILE", AT(k), "keys"},
    {INPUT, "--v", "FILE", AT(v), "values"},
    {HEADING, "The problem:", "", 0, ""},
    {FLAG, "--bshd", "", AT(bshd), "arrays are [B,S,H,D], input and output"},
    {NUMBER, "--scale", "X", AT(scale), "factor of the scores, any sign (1/sqrt(D))"},
    {HEADING, "Results:", "", 0, ""},
    {OUTPUT, "--out", "FILE", AT(out), "write O, shaped like q (.npy; bf16 as uint16)"},
    {OUTPUT, "--lse", "FILE", AT(lse), "write LSE, float32 [B,H,Sq] (.npy)"},
    {OUTPUT, "--json", "FILE", AT(json), "write the report as JSON"},
    {OUTPUT, "--row", "FILE", AT(row), "append one line of the table that make run prints"},
    {INPUT, "--previous-out", "FILE", AT(previous_out), "compare O with the --out of the step before"},
    {INPUT, "--previous-lse", "FILE", AT(previous_lse), "compare LSE with the --lse of the step before"},
    {HEADING, "How to run:", "", 0, ""},
    {FLAG, "--no-check", "", AT(no_check), "do not compare with the float64 reference"},
    {FLAG, "--no-observe", "", AT(no_observe), "CPU: do not count and check memory accesses; faster"},
    {FLAG, "--profile", "", AT(profile), "CPU: print what each source line costs"},
    {FLAG, "--by-cost", "", AT(by_cost), "--profile: the dearest line first, not in file order"},
    {FLAG, "--trace", "", AT(trace), "CPU: print what thread 0 of block 0 does, in order"},
    {COUNT, "--observe-blocks", "N", AT(observe_blocks), "CPU: watch N blocks of each kernel, evenly spread, not all"},
    {COUNT, "--bench", "N", AT(bench), "GPU: time N launches once the result is right, and print the median"},
    {FLAG, "--no-flush", "", AT(no_flush), "--bench: leave the L2 cache warm between launches"},
    {HELP, "--help", "", 0, "print this text"},
    {HEADING, "Variants, in any combination (index arrays: int32 or int64):", "", AT(kv_heads), ""},
    {SIZE, "--kv-heads", "N", AT(kv_heads), "heads of generated k and v, a divisor of H: GQA, MQA (H)"},
    {FLAG, "--causal", "", AT(causal), "row i sees keys 0 to c, c = i + Skv - Sq: the last row sees all"},
    {WINDOW, "--window", "L,R", AT(window), "row i sees keys c - L to c + R; -1: no limit"},
    {COUNT, "--block-causal", "N", AT(block_causal), "row i sees the block of N keys that holds c, and those before"},
    {CAP, "--softcap", "X", AT(softcap), "a score s becomes X * tanh(s / X); 0: it stays"},
    {INPUT, "--sinks", "FILE", AT(sinks), "float32 [H]: one more logit in each row's denominator"},
    {INPUT, "--block-mask", "FILE", AT(block_mask), "uint8 or bool [Sq/N,Skv/N], rounded up, or [B,H,..]; 1: compute"},
    {COUNT, "--block-size", "N", AT(block_size), "rows and keys of a block of --block-mask"},
    {INPUT, "--kv-lens", "FILE", AT(kv_lens), "[B]: keys in use of each batch entry"},
    {INPUT, "--cu-seqlens-q", "FILE", AT(cu_seqlens_q), "[B+1]: rows where sequences start; q is [T,H,D], LSE [H,T]"},
    {INPUT, "--cu-seqlens-kv", "FILE", AT(cu_seqlens_kv), "[B+1]: the same for keys; k and v are [T,H,D]"},
    {INPUT, "--block-table", "FILE", AT(block_table), "[B,slots]: page numbers; k and v are [pages,page size,H,D]"},
    {COUNT, "--splits", "N", AT(splits), "split-KV: parts of the keys computed side by side"},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

/* Whether the step has the option; the variants are those whose members stand last in Options. */
static int has_option(const Step *step, const OptionRow *row)
{
    return step->variants || row->offset < AT(kv_heads);
}

_Noreturn void refuse(const Step *step, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(NULL, 0, format, args); /* a path may be long, and the reason stands behind it */
    va_end(args);
    char *text = calloc((size_t)length + 1, 1);
    va_start(args, format);
    if (text) vsnprintf(text, (size_t)length + 1, format, args);
    va_end(args);
    for (char *c = text; c && *c; c++) {
        if ((unsigned char)*c < ' ') *c = '?'; /* a file name may hold a line break; a refusal is one line */
    }
    fprintf(stderr, "%s: %s\n", step->name, text ? text : format);
    exit(2);
}

static void print_help(const char *program, const Step *step)
{
    const int number = (int)strcspn(step->name, "_"); /* of "step02_online_softmax": the make target */
    printf("usage: %s [option ...]\n\n"
           "%s computes attention, O = softmax(scale * Q K^T) V, for each batch entry and head,\n"
           "compares O and LSE (the logarithm of each softmax sum) with a float64 reference, and ends in PASS or\n"
           "FAIL.  Without options it does so on a small random problem, in seconds.\n\n"
           "This build: %s, head dimensions up to %d.  Others: make %.*s HEAD_DIM=128 DTYPE=%s\n",
           program, step->name, step->bf16 ? "bf16" : "f16", step->head_dim, number, step->name,
           step->bf16 ? "f16" : "bf16");
    for (int i = 0; i < ROWS; i++) {
        if (!has_option(step, &rows[i])) continue;
        if (rows[i].kind == HEADING) {
            printf("\n%s\n", rows[i].name);
            continue;
        }
        const int width = printf("  %s %s", rows[i].name, rows[i].value);
        printf("%*s%s\n", 24 - width, "", rows[i].help);
    }
    printf("\nSpeeds of --bench: 4*D operations for each head, row and key of its sequence%s; K and V read once.\n",
           step->variants ? "\n(half of them with --causal, all with other masks)" : "");
    printf(
        "\nExit code: 0 right, 1 a wrong result or an error in the kernel, 2 bad input or option, 3 no GPU or a CUDA "
        "error.\nExample: %s --seq-q 100 --seq-kv 300 --out o.npy\n",
        program);
}

/* Digits alone, no sign, not above max: a text that strtoull takes is not yet a number. */
static int parse_whole(const char *text, uint64_t max, uint64_t *number)
{
    if (!*text || text[strspn(text, "0123456789")]) return 0;
    errno = 0;
    const unsigned long long parsed = strtoull(text, NULL, 10);
    if (errno || parsed > max) return 0;
    *number = parsed;
    return 1;
}

static int parse_window(const char *text, int window[2])
{
    const char *comma = strchr(text, ',');
    if (!comma) return 0;
    for (int side = 0; side < 2; side++) {
        const char *from = side ? comma + 1 : text;
        const size_t length = side ? strlen(from) : (size_t)(comma - text);
        char part[24];
        uint64_t whole;
        if (length >= sizeof part) return 0;
        memcpy(part, from, length);
        part[length] = 0;
        if (!strcmp(part, "-1"))
            window[side] = -1;
        else if (parse_whole(part, INT_MAX, &whole))
            window[side] = (int)whole;
        else
            return 0;
    }
    return 1;
}

static void store_value(const Step *step, const OptionRow *row, const char *value, Options *options)
{
    void *member = (char *)options + row->offset;
    uint64_t whole;
    char *end;
    switch (row->kind) {
    case COUNT:
    case SIZE:
        if (!parse_whole(value, INT_MAX, &whole) || whole == 0)
            refuse(step, "%s '%s': it must be a whole number from 1 to %d", row->name, value, INT_MAX);
        *(int *)member = (int)whole;
        break;
    case SEED:
        if (!parse_whole(value, UINT64_MAX, &whole))
            refuse(step, "%s '%s': it must be a whole number from 0 to %llu", row->name, value, ULLONG_MAX);
        *(uint64_t *)member = whole;
        break;
    case NUMBER:
    case CAP: { /* the limit leaves room to multiply by log2(e) in float32 */
        const double number = strtod(value, &end);
        if (!*value || *end || strchr(" \t\n\v\f\r", *value) || !(fabs(number) <= 1e38))
            refuse(step, "%s '%s': it must be a finite number such as 0.125, between -1e38 and 1e38", row->name, value);
        if (row->kind == CAP && number < 0)
            refuse(step, "%s '%s': it must not be negative; 0 turns it off", row->name, value);
        *(double *)member = number;
        break;
    }
    case WINDOW:
        if (!parse_window(value, (int *)member))
            refuse(step,
                   "%s '%s': it must be two whole numbers from -1 to %d with a comma between, such as 128,0; -1 means "
                   "no limit",
                   row->name, value, INT_MAX);
        break;
    default:
        if (!*value) refuse(step, "%s: the file name is empty; name a file", row->name);
        *(const char **)member = value;
    }
}

static const char *file_of(const Options *options, const OptionRow *row)
{
    return *(const char *const *)((const char *)options + row->offset);
}

static const char *name_of(const char *path) /* its last part */
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static char *directory_of(const char *path)
{
    const size_t length = (size_t)(name_of(path) - path);
    return length ? strndup(path, length) : strdup(".");
}

/* What would stop a file from being written, found before the work and not after it. */
static void check_output(const Step *step, const OptionRow *row, const char *path)
{
    struct stat status;
    char target[PATH_MAX];
    if (link_target(path, target)) refuse(step, "%s %s: %s; name another", row->name, path, strerror(errno));
    int error = stat(path, &status) ? errno : 0;
    if (!error && !S_ISREG(status.st_mode))
        refuse(step, "%s %s: it exists and is no regular file; name another", row->name, path);
    if (!error && access(path, W_OK)) error = errno;
    char *directory = directory_of(target);
    const int known = directory && stat(directory, &status) == 0 && S_ISDIR(status.st_mode);
    const int writable = known && access(directory, W_OK | X_OK) == 0;
    free(directory);
    if (!known) refuse(step, "%s %s: its directory does not exist; make it first", row->name, path);
    const int appends = row->offset == AT(row) && !error; /* the only output that is no new file */
    if (!writable && !appends) refuse(step, "%s %s: its directory may not be written to; name another", row->name, path);
    if (error && error != ENOENT) refuse(step, "%s %s: %s; name another", row->name, path, strerror(error));
}

/* Whether two paths lead to one file, which need not exist yet. */
static int same_file(const char *path_a, const char *path_b)
{
    struct stat at_a, at_b;
    char a[PATH_MAX], b[PATH_MAX];
    if (link_target(path_a, a) || link_target(path_b, b)) return 0;
    const int a_exists = stat(a, &at_a) == 0, b_exists = stat(b, &at_b) == 0;
    if (a_exists != b_exists || (!a_exists && strcmp(name_of(a), name_of(b)))) return 0;
    if (!a_exists) {
        char *directory_a = directory_of(a), *directory_b = directory_of(b);
        const int known = directory_a && directory_b && !stat(directory_a, &at_a) && !stat(directory_b, &at_b);
        free(directory_a);
        free(directory_b);
        if (!known) return 0;
    }
    return at_a.st_dev == at_b.st_dev && at_a.st_ino == at_b.st_ino;
}

/* The rules that take more than one option: those of the variants ... */
static void check_variants(const Step *step, const Options *o)
{
    const char *from_files = o->block_table ? "--block-table" : o->cu_seqlens_q ? "--cu-seqlens-q" : NULL;
    if (!o->block_mask != !o->block_size)
        refuse(step, "%s without %s: the mask has an entry for each block of that size; give both",
               o->block_mask ? "--block-mask" : "--block-size", o->block_mask ? "--block-size" : "--block-mask");
    if (o->cu_seqlens_kv && o->block_table)
        refuse(step, "--cu-seqlens-kv beside --block-table: keys are packed or paged; leave one out");
    if (o->cu_seqlens_kv && !o->cu_seqlens_q)
        refuse(step, "--cu-seqlens-kv without --cu-seqlens-q: packed keys go with packed queries; give both");
    if (o->cu_seqlens_q && !o->cu_seqlens_kv && !o->block_table)
        refuse(step,
               "--cu-seqlens-q without --cu-seqlens-kv: packed queries go with packed keys or with a --block-table; "
               "give one");
    if (o->block_table && !o->kv_lens)
        refuse(step, "--block-table without --kv-lens: the keys of each batch entry must be known; give both");
    if (o->kv_lens && o->cu_seqlens_kv)
        refuse(step, "--kv-lens beside --cu-seqlens-kv: that gives the lengths already; leave one out");
    if (o->block_mask && o->cu_seqlens_q)
        refuse(step,
               "--block-mask beside --cu-seqlens-q: sequences of their own lengths have no mask in common; leave one "
               "out");
    if (o->bshd && o->cu_seqlens_q)
        refuse(step, "--bshd beside --cu-seqlens-q: packed arrays are [T,H,D] always; leave --bshd out");
    if (from_files && !o->q)
        refuse(step, "%s without --q, --k and --v: generated input is dense; give the three files", from_files);
}

/* ... and all others. */
static void check_together(const Step *step, const Options *options, const int given[ROWS])
{
    const int files = !!options->q + !!options->k + !!options->v;
    if (files != 0 && files != 3) {
        refuse(step, "%s without %s: --q, --k and --v go together; give all three, or none for generated input",
               options->q   ? "--q"
               : options->k ? "--k"
                            : "--v",
               !options->q   ? "--q"
               : !options->k ? "--k"
                             : "--v");
    }
    for (int i = 0; i < ROWS; i++) {
        if (given[i] && files && (rows[i].kind == SIZE || rows[i].kind == SEED))
            refuse(step, "%s beside --q: it is for generated input, the files have their own shape; leave it out",
                   rows[i].name);
        if (!given[i] || rows[i].kind != OUTPUT) continue;
        check_output(step, &rows[i], file_of(options, &rows[i]));
        for (int j = 0; j < ROWS; j++) {
            const int other = given[j] && (rows[j].kind == INPUT || (rows[j].kind == OUTPUT && j < i));
            if (other && same_file(file_of(options, &rows[i]), file_of(options, &rows[j])))
                refuse(step, "%s %s and %s %s are one file: one would overwrite the other; name two", rows[j].name,
                       file_of(options, &rows[j]), rows[i].name, file_of(options, &rows[i]));
        }
    }
    check_variants(step, options);
    if (options->by_cost && !options->profile) refuse(step, "--by-cost sorts the lines of --profile; add --profile");
    if (options->observe_blocks && options->no_observe)
        refuse(step, "--observe-blocks says what to observe, --no-observe forbids it; leave one out");
    if (options->profile && options->no_observe)
        refuse(step, "--profile prints what the observer counted; leave --no-observe out");
    if (options->trace && options->no_observe)
        refuse(step, "--trace prints what the observer saw; leave --no-observe out");
    if (options->trace && options->observe_blocks)
        refuse(step, "--trace follows a thread of block 0, which --observe-blocks may leave out; leave one out");
    if (options->no_flush && !options->bench)
        refuse(step, "--no-flush without --bench: it says how to time; add --bench N");
    if (options->no_check && (options->previous_out || options->previous_lse))
        refuse(step, "%s beside --no-check: the bound of a comparison comes from the check; leave --no-check out",
               options->previous_out ? "--previous-out" : "--previous-lse");
}

int parse_options(int argc, char **argv, const Step *step, Options *options)
{
    int given[ROWS] = {0};
    memset(options, 0, sizeof *options);
    options->scale = NAN;
    options->window[0] = options->window[1] = -1;
    options->seed = 1;
    for (int a = 1; a < argc; a++) {
        const char *text = strcmp(argv[a], "-h") ? argv[a] : "--help", *equals = strchr(text, '=');
        const size_t length = equals ? (size_t)(equals - text) : strlen(text);
        if (strncmp(text, "--", 2)) refuse(step, "'%s': it belongs to no option; --help lists what can be given", text);
        int i = 0;
        while (i < ROWS &&
               (rows[i].kind == HEADING || strlen(rows[i].name) != length || strncmp(rows[i].name, text, length)))
            i++;
        if (i == ROWS) refuse(step, "'%.*s' is no option of this step; --help lists them", (int)length, text);
        if (!has_option(step, &rows[i])) refuse(step, "'%s' is no option of this step; step06 has it", rows[i].name);
        if (given[i]) refuse(step, "%s is given twice; give it once", rows[i].name);
        given[i] = 1;
        if (rows[i].kind == HELP || rows[i].kind == FLAG) {
            if (equals) refuse(step, "'%s': %s takes no value; write it alone", text, rows[i].name);
            if (rows[i].kind == FLAG) {
                *(int *)((char *)options + rows[i].offset) = 1;
                continue;
            }
            print_help(argv[0], step);
            return 1;
        }
        const char *value = equals ? equals + 1 : a + 1 < argc ? argv[++a] : NULL;
        if (!value || (!equals && !strncmp(value, "--", 2)))
            refuse(step, "%s has no value; write %s %s", rows[i].name, rows[i].name, rows[i].value);
        store_value(step, &rows[i], value, options);
    }
    check_together(step, options, given);
    if (!options->batch) options->batch = 1;
    if (!options->heads) options->heads = 2;
    if (!options->kv_heads) options->kv_heads = options->heads;
    if (!options->seq_q) options->seq_q = 128;
    if (!options->seq_kv) options->seq_kv = options->seq_q;
    if (!options->head_dim) options->head_dim = step->head_dim;
    return 0;
}
