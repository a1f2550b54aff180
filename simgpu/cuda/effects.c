/* effects.c - what finished work leaves behind: contents of memory, times of events.
 *
 * A program can look at these only after it has waited (or asked) for the work, so they are applied then, by the
 * process itself, in the order of submission; the player never touches a program's memory.
 */
#include "driver.h"
#include <stdlib.h>
#include <string.h>

/* Allocates what is to be done later. NULL: nothing is left behind, or there is no memory for it. */
struct effect *effect_of(const struct op *op)
{
    struct range to;
    if (op->kind == OP_NOTHING || op->kind == OP_AFTER || op->kind == OP_HOST) return NULL;
    if (op->kind == OP_KERNEL && !op->kernel.out) return NULL;
    struct effect *effect = calloc(1, sizeof *effect);
    if (!effect) return NULL;
    effect->op = *op;
    if (op->kind == OP_EVENT) __atomic_add_fetch(&op->event.event->users, 1, __ATOMIC_SEQ_CST);
    if (op->kind == OP_COPY && op->copy.from_host && !op->copy.to_host && range_find(op->copy.to, &to) && to.bytes &&
        (effect->staged = malloc(op->copy.bytes * op->copy.rows)))
        for (size_t row = 0; row < op->copy.rows; row++)
            memcpy((char *)effect->staged + row * op->copy.bytes,
                   (const char *)(uintptr_t)op->copy.from + row * op->copy.from_pitch, op->copy.bytes);
    return effect;
}

bool effect_wants_times(const struct op *op)
{
    return (op->kind == OP_KERNEL && op->kernel.out) ||
           (op->kind == OP_EVENT && !(op->event.event->flags & CU_EVENT_DISABLE_TIMING));
}

static void apply_copy(const struct effect *effect, size_t row)
{
    const struct op *op = &effect->op;
    CUdeviceptr to = op->copy.to + row * op->copy.to_pitch, from = op->copy.from + row * op->copy.from_pitch;
    size_t bytes = op->copy.bytes;
    if (op->copy.to_host && op->copy.from_host)
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    else if (op->copy.to_host) memory_read((void *)(uintptr_t)to, from, bytes);
    else if (op->copy.from_host) {
        if (effect->staged) memory_write(to, (const char *)effect->staged + row * bytes, bytes);
        else vmm_write(to, (const void *)(uintptr_t)from, bytes);
    } else
        for (size_t done = 0, part; done < bytes; done += part) {
            char buffer[4096];
            part = bytes - done < sizeof buffer ? bytes - done : sizeof buffer;
            memory_read(buffer, from + done, part);
            memory_write(to + done, buffer, part);
        }
}

/* What is mapped may be large: fill it in pieces. */
static void fill_mapped(const struct op *op)
{
    if (!op->fill.value) {
        for (size_t row = 0; row < op->fill.rows; row++)
            vmm_clear(op->fill.to + row * op->fill.pitch, op->fill.count * op->fill.width);
        return;
    }
    char pattern[16384];
    for (size_t i = 0; i < sizeof pattern; i += op->fill.width) memcpy(pattern + i, &op->fill.value, op->fill.width);
    for (size_t row = 0; row < op->fill.rows; row++)
        for (size_t done = 0, part, all = op->fill.count * op->fill.width; done < all; done += part) {
            part = all - done < sizeof pattern ? all - done : sizeof pattern;
            vmm_write(op->fill.to + row * op->fill.pitch + done, pattern, part);
        }
}

static void apply_fill(const struct op *op)
{
    struct range to;
    if (!range_find(op->fill.to, &to) || (!to.bytes && to.kind != RANGE_RESERVED)) return;
    if (to.kind == RANGE_RESERVED) {
        fill_mapped(op);
        return;
    }
    for (size_t row = 0; row < op->fill.rows; row++)
        for (size_t i = 0; i < op->fill.count; i++)
            memory_write(op->fill.to + row * op->fill.pitch + i * op->fill.width, &op->fill.value, op->fill.width);
}

/* What the burn kernel does on a real card: counts one more, and notes when it began and ended. */
static void apply_kernel(const struct op *op, const struct lane_result *times)
{
    uint64_t words[3] = { 0 };
    memory_read(&words[0], op->kernel.out, sizeof words[0]);
    words[0]++;
    words[1] = times ? times->start_ns : 0;
    words[2] = times ? times->end_ns : 0;
    memory_write(op->kernel.out, words, sizeof words);
}

void effect_apply(struct effect *effect, const struct lane_result *times)
{
    CUevent event = effect->op.event.event;
    switch (effect->op.kind) {
    case OP_COPY:
        for (size_t row = 0; row < effect->op.copy.rows; row++) apply_copy(effect, row);
        break;
    case OP_FILL: apply_fill(&effect->op); break;
    case OP_KERNEL: apply_kernel(&effect->op, times); break;
    case OP_EVENT:
        if (event->seq == effect->seq && times) event->time_ns = times->end_ns;
        break;
    default: break;
    }
}

void effect_free(struct effect *effect)
{
    if (effect->op.kind == OP_EVENT) event_release(effect->op.event.event);
    free(effect->staged);
    free(effect);
}
