/* --trace: what thread 0 of block 0 of each kernel does, in order.  Commits, waits and barriers are what a pipeline is
 * made of; accesses between two of them are put together by source line and array. */
#include "simt.h"
#include "../backend.h"

#include <stdlib.h>

typedef struct Event {
    const char *what;  /* a string constant, compared by its address */
    const void *pc;    /* NULL: no access but a commit, a wait, a barrier, the start of a kernel */
    const char *array; /* in global memory; NULL: none */
    int64_t offset, shared, count; /* of the first access: byte in array, byte in shared memory (-1: none) */
} Event;

int simt_tracing;
static int phase; /* the first event after the last one without pc */
static Event *events;
static int event_count, event_room;

void backend_trace(int on)
{
    simt_tracing = on;
}

void simt_trace(const char *what, const void *pc, const void *global, const void *shared, int64_t count)
{
    const Worker *w = simt_worker;
    if (!simt_tracing || !w || w->block || w->warp || w->lane) return; /* one thread at a time gets past this */
    const Allocation *array = global ? simt_allocation(global) : NULL;
    const Event event = {what, pc, array ? array->name : NULL, array ? (const char *)global - array->base : 0,
                         shared ? (const char *)shared - w->shared : -1, count};
    for (int i = phase; pc && i < event_count; i++)
        if (events[i].what == what && events[i].array == event.array && report_same_line(events[i].pc, pc)) {
            events[i].count += count;
            return;
        }
    if (event_count == event_room) {
        event_room = event_room ? 2 * event_room : 256;
        events = realloc(events, (size_t)event_room * sizeof *events);
        if (!events) abort();
    }
    events[event_count++] = event;
    if (!pc) phase = event_count;
}

void backend_trace_print(FILE *out)
{
    for (int i = 0; i < event_count; i++) {
        const Event *e = &events[i];
        char from[32] = "", to[32] = "", text[45] = "";
        if (e->array) snprintf(from, sizeof from, "%s + %lld", e->array, (long long)e->offset);
        if (e->shared >= 0) snprintf(to, sizeof to, "shared + %lld", (long long)e->shared);
        if (e->pc) profile_source_text(e->pc, text, sizeof text);
        fprintf(out, "trace    %-9s %5lld%s", e->what, (long long)e->count, e->pc ? "" : "\n");
        if (e->pc) fprintf(out, "  %-12s  %-14s  %s\n", from, to, text);
    }
}
