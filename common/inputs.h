/* The problem that the options ask for: its shape, its sequences, its index arrays. */
#ifndef INPUTS_H
#define INPUTS_H

#include "result.h"

/* Reads all files but the results of the step before, refuses what contradicts itself, and fills run->host but for
 * q, k, v, o, lse and the strides. */
void read_problem(Run *run);

/* Reads one file, or refuses it by its option. */
void read_file(const Run *run, const char *option, const char *path, NpyArray *array);

/* malloc, or the refusal that the host has no memory left. */
void *allocate(const Run *run, int64_t bytes);

#endif
