/* The command line of every step: a table of options in options.c, read into this struct. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "attention.h"

typedef struct Options {
    int batch, heads, seq_q, seq_kv, head_dim; /* of generated input */
    uint64_t seed;
    const char *q, *k, *v; /* files, all three or none (NULL: generated input) */
    int bshd;              /* arrays are [B, S, H, D], not [B, H, S, D] */
    double scale;          /* NAN: not given, 1 / sqrt(D) */
    const char *out, *lse, *json, *row;
    const char *previous_out, *previous_lse; /* files that the step before wrote */
    int no_check, no_observe, no_flush, profile, by_cost, trace, observe_blocks;
    int bench; /* timed launches; 0: none */

    /* Variants.  Step 06 alone takes what stands from here on. */
    int kv_heads; /* of generated input */
    int causal, window[2], block_causal, splits, block_size;
    double softcap;
    const char *sinks, *block_mask, *kv_lens, *cu_seqlens_q, *cu_seqlens_kv, *block_table; /* files */
} Options;

/* Reads the command line and fills in the defaults.  Returns 1 if --help was asked for (and printed), else 0. */
int parse_options(int argc, char **argv, const Step *step, Options *options);

/* What cannot be done ends the program here: one line on stderr (what was given, the rule, what to do), exit 2. */
_Noreturn void refuse(const Step *step, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
