/* What a run of a step was given and what came of it, and the three ways to tell: the report, --json and --row. */
#ifndef RESULT_H
#define RESULT_H

#include "attention.h"
#include "backend.h"
#include "npy.h"
#include "options.h"
#include "reference.h"

typedef struct Run {
    const Step *step;
    Options options;
    DeviceInfo info;
    AttentionParams host;                       /* the problem as it was given, host pointers: for the reference */
    AttentionParams device;                     /* the problem as the kernel gets it */
    NpyArray q, k, v, previous_o, previous_lse; /* files */
    int64_t q_rows, kv_rows;                    /* of q and of k, over all batch entries or pages, in one head */
    int64_t q_count, kv_count, lse_count;       /* elements; o is as large as q */
    int64_t mask_bytes;                         /* of the block mask */
    double keys, pairs; /* in use, in one KV head; of a query row and a key of its sequence, in one head */
    int64_t workspace_bytes;
    Counters counters;
    Reference reference;
    Comparison o, lse, o_change, lse_change; /* with the reference; with the step before */
    double time_ms, tflops, tb_per_s;        /* NAN: not timed */
    int pass;
} Run;

void print_problem(const Run *run); /* the first lines of the report, before the launch */
void print_report(const Run *run);  /* the rest */
void write_json(const Run *run);
void append_row(const Run *run); /* of the table of all steps */

#endif
