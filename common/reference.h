/* Attention in float64 by the plain formula (all scores of a row, one softmax, no tiles), with every variant, and the
 * comparison of a step's output with it under a tolerance that is derived, not chosen. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Results, laid out like p->o and p->lse (same offsets); sizes in elements. */
typedef struct Reference {
    int64_t o_count, lse_count;
    double *o;
    double *o_abs; /* A = sum_j P_j |V_j|: what a relative error of P can move */
    double *lse;
    double *magnitude;        /* M = max over visible j of |scale| sum_d |Q_d K_d|: what rounding can move a score */
    unsigned char *row_state; /* like lse: 0 not a row of the problem, 1 left out by sampling, 2 checked */
    double value_max;         /* max |V| of any finite value that a checked row sees */
    int64_t rows, rows_checked;
    int bf16, head_dim, seq_kv;
    double *small_keys; /* like lse: visible keys whose P is below the element type's normal range, over l */
} Reference;

/* p: host pointers.  max_work: multiply-adds it may spend; a larger problem is sampled by rows, first and last rows
 * included (rows_checked < rows).  Uses all cores; the result does not depend on how many.  Returns 0, or -1 if memory
 * is short (then there is nothing to free). */
int reference_compute(const AttentionParams *p, int bf16, double max_work, Reference *reference);
void reference_free(Reference *reference);

/* The outcome of a comparison.  A value fails if it is not within its bound, or is not of the reference's kind: finite,
 * NaN, +inf, -inf (two exceptions at rounding's edge: kind_fits in reference.c).  -inf must be -inf, and an empty row's
 * O exactly 0.  Rows that sampling left out are not compared, but a NaN in one is a failure unless what the row sees
 * holds a NaN or an infinity: fill the outputs with NaN before the launch, and rows that nothing wrote are found. */
typedef struct Comparison {
    int64_t compared, failures;
    int64_t not_finite;      /* values NaN or infinite where the reference is finite */
    double max_error, bound; /* the largest |difference| of finite values, and the bound at that place */
    int64_t index;           /* its offset; -1: no finite values */
    double worst_ratio;      /* largest error / bound; <= 1 passes; DBL_MAX for a value of the wrong kind */
    int64_t worst_index;     /* where; -1: nothing was compared */
} Comparison;

Comparison compare_o(const Reference *reference, const AttentionParams *p, const element_t *o);
Comparison compare_lse(const Reference *reference, const AttentionParams *p, const float *lse);
/* Two steps' outputs against each other: each may be off by its bound, so the bound is twice that of one. */
Comparison compare_o_pair(const Reference *reference, const AttentionParams *p, const element_t *o,
                          const element_t *previous);
Comparison compare_lse_pair(const Reference *reference, const AttentionParams *p, const float *lse,
                            const float *previous);

/* The 16-bit types on the host, exact one way, round to nearest even the other.  bf16 != 0: bfloat16. */
float element_to_float(uint16_t bits, int bf16);
uint16_t float_to_element(float value, int bf16);

#ifdef __cplusplus
}
#endif
#endif
