#include "fibre.h"

#include <stdint.h>
#include <string.h>

#if !defined(SIMT_UCONTEXT) && defined(__x86_64__)

/* System V ABI: a callee must keep rbx, rbp, r12-r15; everything else is already saved by the caller of this call. */
void simt_switch(void **save, void *load) __asm__("simt_switch");
__asm__(".text\n"
        "simt_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  popq %rcx\n"
        "  jmp *%rcx\n");

void fibre_create(Fibre *fibre, void *stack_bottom, void *stack_top, void (*entry)(void))
{
    (void)stack_bottom;
    void **sp = (void **)stack_top;
    *--sp = 0;             /* where entry would return to; also makes rsp % 16 == 8 at its start, as after a call */
    *--sp = (void *)entry; /* where simt_switch jumps to */
    sp -= 6;
    memset(sp, 0, 6 * sizeof *sp);
    fibre->sp = sp;
}

void fibre_switch(Fibre *from, Fibre *to)
{
    simt_switch(&from->sp, to->sp);
}

#elif !defined(SIMT_UCONTEXT) && defined(__aarch64__)

/* AAPCS64: a callee keeps x19-x29, the return address x30, and the low halves of v8-v15. */
void simt_switch(void **save, void *load) __asm__("simt_switch");
__asm__(".text\n"
        ".p2align 2\n"
        "simt_switch:\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
        "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n"
        "  ret\n");

void fibre_create(Fibre *fibre, void *stack_bottom, void *stack_top, void (*entry)(void))
{
    (void)stack_bottom;
    uint64_t *sp = (uint64_t *)stack_top - 20;
    memset(sp, 0, 20 * sizeof *sp);
    sp[11] = (uint64_t)(uintptr_t)entry; /* x30 */
    fibre->sp = sp;
}

void fibre_switch(Fibre *from, Fibre *to)
{
    simt_switch(&from->sp, to->sp);
}

#else

void fibre_create(Fibre *fibre, void *stack_bottom, void *stack_top, void (*entry)(void))
{
    getcontext(&fibre->start);
    fibre->start.uc_stack.ss_sp = stack_bottom;
    fibre->start.uc_stack.ss_size = (size_t)((char *)stack_top - (char *)stack_bottom);
    fibre->start.uc_link = 0;
    makecontext(&fibre->start, entry, 0);
    fibre->started = 0;
}

void fibre_switch(Fibre *from, Fibre *to)
{
    from->started = 1;
    if (_setjmp(from->registers)) return;
    if (to->started) _longjmp(to->registers, 1);
    to->started = 1;
    setcontext(&to->start);
}

#endif
