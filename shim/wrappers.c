/* wrappers.c - the exported hooks, one for each symbol of hooks.def. Nothing here is written twice by hand. */
#include "shim.h"

#define WRAP_GATE(symbol, name, ptsz, params, args, stream_) \
    ALQ_EXPORT fn_##name symbol; \
    int symbol params \
    { \
        struct alq_use *use = alq_work(true, ptsz, stream_); \
        int entered = alq_enter(); \
        int result = ALQ_RARE(entered == ALQ_GONE) ? CUDA_ERROR_UNKNOWN : ALQ_REAL_AS(name, symbol) args; \
        alq_handed_over(use); \
        alq_leave(entered); \
        alq_note_fault(result); \
        return result; \
    }

#define WRAP_NOTE(symbol, name, ptsz, params, args) \
    ALQ_EXPORT fn_##name symbol; \
    int symbol params \
    { \
        alq_work(false, ptsz, NULL); \
        int entered = alq_enter(); \
        int result = ALQ_RARE(entered == ALQ_GONE) ? CUDA_ERROR_UNKNOWN : ALQ_REAL_AS(name, symbol) args; \
        alq_leave(entered); \
        alq_note_fault(result); \
        return result; \
    }

/* A wait is shown on the page while it lasts, so that the daemon does not take this process for idle. */
#define WAITING(name, symbol, args) \
    int card = 0; \
    struct alq_use *use = alq_here(&card); \
    if (use) \
        __atomic_fetch_add(&use->waiting, 1, __ATOMIC_RELAXED); \
    int result = ALQ_REAL_AS(name, symbol) args; \
    alq_note_fault(result); \
    if (use && alq_waited(use)) \
        alq_busy_end(use, card);

#define WRAP_COPY(symbol, name, ptsz, params, args) \
    ALQ_EXPORT fn_##name symbol; \
    int symbol params \
    { \
        alq_work(false, ptsz, NULL); \
        int entered = alq_enter(); \
        if (ALQ_RARE(entered == ALQ_GONE)) { \
                return CUDA_ERROR_UNKNOWN; \
        } \
        WAITING(name, symbol, args) \
        alq_leave(entered); \
        return result; \
    }

#define WRAP_WAIT(symbol, name, ptsz, params, args) \
    ALQ_EXPORT fn_##name symbol; \
    int symbol params \
    { \
        WAITING(name, symbol, args) \
        if (ALQ_RARE(__atomic_load_n(&alq_pools_live, __ATOMIC_RELAXED))) { \
            alq_settle(); \
            alq_ordered_settle(); \
        } \
        return result; \
    }

/* "Done" tells as much as a wait that ended, unless a thread is still waiting for other work. */
#define WRAP_QUERY(symbol, name, ptsz, params, args) \
    ALQ_EXPORT fn_##name symbol; \
    int symbol params \
    { \
        int card = 0, result = ALQ_REAL_AS(name, symbol) args; \
        alq_note_fault(result); \
        struct alq_use *use = result == CUDA_SUCCESS ? alq_here(&card) : NULL; \
        if (use && !__atomic_load_n(&use->waiting, __ATOMIC_RELAXED)) \
            alq_busy_end(use, card); \
        return result; \
    }

#define WRAP_TOUCH(symbol, name, ptsz, params, args) \
    ALQ_EXPORT fn_##name symbol; \
    int symbol params \
    { \
        return ALQ_INSIDE(ALQ_REAL_AS(name, symbol) args); \
    }

#define WRAP_WORD(symbol, name, ptsz, params, args) \
    ALQ_EXPORT fn_##name symbol; \
    int symbol params \
    { \
        int entered = alq_enter_as(true); \
        int result = ALQ_RARE(entered == ALQ_GONE) ? CUDA_ERROR_UNKNOWN : ALQ_REAL_AS(name, symbol) args; \
        alq_leave(entered); \
        return result; \
    }

#define WRAP_BODY(symbol, name, ptsz, params, args) \
    ALQ_EXPORT fn_##name symbol; \
    int symbol params \
    { \
        fn_##name *real = ALQ_REAL_AS(name, symbol); \
        if (!alq_on()) \
            return real args; \
        int saved = errno; \
        int result = alq_##name(real, ptsz, ALQ_STRIP args); \
        errno = saved; \
        return result; \
    }

#define GATE(name, kinds, params, args, stream) ALQ_##kinds(WRAP_GATE, name, params, args, stream)
#define NOTE(name, kinds, params, args) ALQ_##kinds(WRAP_NOTE, name, params, args)
#define COPY(name, kinds, params, args) ALQ_##kinds(WRAP_COPY, name, params, args)
#define WAIT(name, kinds, params, args) ALQ_##kinds(WRAP_WAIT, name, params, args)
#define QUERY(name, kinds, params, args) ALQ_##kinds(WRAP_QUERY, name, params, args)
#define TOUCH(name, kinds, params, args) ALQ_##kinds(WRAP_TOUCH, name, params, args)
#define WORD(name, kinds, params, args) ALQ_##kinds(WRAP_WORD, name, params, args)
#define BODY(name, kinds, params, args) ALQ_##kinds(WRAP_BODY, name, params, args)
#include "hooks.def"
