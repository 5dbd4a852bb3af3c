/* Fibres: call stacks that one operating-system thread switches between.  A CUDA thread is one fibre. */
#ifndef SIMT_FIBRE_H
#define SIMT_FIBRE_H

#if !defined(SIMT_UCONTEXT) && (defined(__x86_64__) || defined(__aarch64__))

typedef struct Fibre {
    void *sp; /* the saved registers lie on the fibre's own stack */
} Fibre;

#else /* portable: ucontext makes the stack, _setjmp and _longjmp switch (swapcontext would make a system call) */

#ifdef _FORTIFY_SOURCE
#error "_FORTIFY_SOURCE takes a jump between stacks for an attack: build with -U_FORTIFY_SOURCE"
#endif
#include <setjmp.h>
#include <ucontext.h>
typedef struct Fibre {
    jmp_buf registers;
    ucontext_t start;
    int started;
} Fibre;

#endif

/* Makes fibre start at entry(), which must never return, on the stack that ends at stack_top (16-byte aligned). */
void fibre_create(Fibre *fibre, void *stack_bottom, void *stack_top, void (*entry)(void));
/* Saves the running fibre into from and goes on with to. */
void fibre_switch(Fibre *from, Fibre *to);

#endif
