/* card.c - the driver API by dlopen: the program must also run where there is none. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "probe.h"

static const char PTX[] = ".version 6.4\n.target sm_70\n.address_size 64\n"
                          ".visible .entry burn(.param .u64 a, .param .u64 b)\n{\n    ret;\n}\n";
static void *library;
static void *burn_of[64], *event_of[64][2];
static int current = -1;

/* Each call is looked up when it is made: a program like any other, for whoever stands between it and the driver. */
static void *symbol(const char *name)
{
    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, name) : NULL;
}

#define CALL(name, types, ...)                                          \
    ({                                                                  \
        int (*function) types = (int (*) types)symbol(name);            \
        function ? function(__VA_ARGS__) : -1;                          \
    })

static int start(void)
{
    static int result = -2;
    if (result == -2)
        result = CALL("cuInit", (unsigned), 0);
    return result;
}

const char *cuda_name(int result)
{
    const char *text = NULL;
    CALL("cuGetErrorName", (int, const char **), result, &text);
    return text;
}

static int context_of(int card, void **context)
{
    int device = 0, result = CALL("cuDeviceGet", (int *, int), &device, card);
    if (!result)
        result = CALL("cuDevicePrimaryCtxRetain", (void **, int), context, device);
    if (!result)
        result = CALL("cuCtxSetCurrent", (void *), *context);
    return result;
}

int cuda_use(int card)
{
    void *context = NULL, *module = NULL;
    int result = start();
    if (result || card == current)
        return result;
    if (card < 0 || card >= 64)
        return 101;     /* CUDA_ERROR_INVALID_DEVICE */
    result = context_of(card, &context);
    if (!result && !burn_of[card]) {
        result = CALL("cuModuleLoadData", (void **, const void *), &module, PTX);
        if (!result)
            result = CALL("cuModuleGetFunction", (void **, void *, const char *), &burn_of[card], module, "burn");
        for (int slot = 0; slot < 2 && !result; slot++)
            result = CALL("cuEventCreate", (void **, unsigned), &event_of[card][slot], 1 | 2);  /* sleeps, no times */
    }
    if (!result)
        current = card;
    return result;
}

int cuda_alloc(uint64_t bytes)
{
    uint64_t pointer = 0;
    return CALL("cuMemAlloc_v2", (uint64_t *, size_t), &pointer, bytes);
}

int cuda_memory(uint64_t *free_bytes, uint64_t *total)
{
    size_t left = 0, whole = 0;
    int result = CALL("cuMemGetInfo_v2", (size_t *, size_t *), &left, &whole);
    *free_bytes = left;
    *total = whole;
    return result;
}

int cuda_launch(double ms)
{
    uint64_t iterations = (uint64_t)(ms * 1e6), out = 0;
    void *arguments[] = { &iterations, &out };
    return CALL("cuLaunchKernel",
                (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
                burn_of[current], 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
}

int cuda_mark(int slot)
{
    return CALL("cuEventRecord", (void *, void *), event_of[current][slot], NULL);
}

int cuda_wait(int slot)
{
    return CALL("cuEventSynchronize", (void *), event_of[current][slot]);
}

static void report_card(int index)
{
    unsigned char id[16] = { 0 };
    char uuid[48], *end = uuid;
    int device = 0;
    size_t total = 0;
    uint64_t left = 0, whole = 0;
    void *context = NULL;
    line_open(NULL, '{');
    CALL("cuDeviceGet", (int *, int), &device, index);
    if (CALL("cuDeviceGetUuid_v2", (void *, int), id, device))
        CALL("cuDeviceGetUuid", (void *, int), id, device);
    end += sprintf(end, "GPU");
    for (int each = 0; each < 16; each++)
        end += sprintf(end, "%s%02x", each == 0 || each == 4 || each == 6 || each == 8 || each == 10 ? "-" : "", id[each]);
    line_text("uuid", uuid);
    CALL("cuDeviceTotalMem_v2", (size_t *, int), &total, device);
    line_number("total_mem", (double)total);
    int result = context_of(index, &context);
    if (!result) {
        result = cuda_memory(&left, &whole);
        line_number("free", (double)left);
        line_number("total", (double)whole);
        CALL("cuDevicePrimaryCtxRelease_v2", (int), device);
    }
    line_number("result", result);
    line_close('}');
}

void cuda_report(void)
{
    int result = start(), count = 0;
    if (result == -1) {
        const char *why = library ? NULL : dlerror();
        line_text("cuda", NULL);
        line_text("cuda_error", why ? why : "no libcuda.so.1");
        return;
    }
    line_open("cuda", '{');
    line_number("result", result);
    line_text("name", result ? cuda_name(result) : NULL);
    if (!result)
        CALL("cuDeviceGetCount", (int *), &count);
    line_number("count", count);
    line_open("cards", '[');
    for (int index = 0; index < count; index++)
        report_card(index);
    line_close(']');
    line_close('}');
}
