/* module.c - modules: any image is accepted; what counts is the names of its kernels.
 *
 * An image in PTX (text) is searched for the names that are asked for; anything else has every kernel.
 */
#define _GNU_SOURCE
#include "driver.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX (16u << 20)

/* A copy of the image if it is PTX, else NULL: it begins with ".version" after blanks and comments. */
static char *text_of(const void *image)
{
    const char *at = image;
    if (!memchr("./ \t\r\n", *at, 6)) return NULL;
    for (;;) {
        while (*at && isspace((unsigned char)*at)) at++;
        if (at[0] != '/' || at[1] != '/') break;
        while (*at && *at != '\n') at++;
    }
    return strncmp(at, ".version", 8) == 0 ? strndup(image, TEXT_MAX) : NULL;
}

/* Whether `word` stands by itself somewhere in the text. */
static bool has_word(const char *text, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = text; (at = strstr(at, word)); at += length) {
        char before = at == text ? ' ' : at[-1], after = at[length];
        if (!isalnum((unsigned char)before) && before != '_' && before != '$' && !isalnum((unsigned char)after) &&
            after != '_' && after != '$')
            return true;
    }
    return false;
}

static CUresult load(CUmodule *module, const void *image)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
    if (!*(const char *)image) return CUDA_ERROR_INVALID_IMAGE;
    CUmodule made = calloc(1, sizeof *made);
    if (!made || !handle_add(made, H_MODULE)) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->context = context;
    made->text = text_of(image);
    *module = made;
    return CUDA_SUCCESS;
}

API cuModuleLoadData(CUmodule *module, const void *image)
{
    return load(module, image);
}

API cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options, void **values)
{
    (void)count, (void)options, (void)values;
    return load(module, image);
}

API cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    return load(module, image);
}

API cuModuleLoad(CUmodule *module, const char *path)
{
    char *image = calloc(1, TEXT_MAX + 1);
    FILE *file = path ? fopen(path, "rb") : NULL;
    CUresult result = CUDA_ERROR_FILE_NOT_FOUND;
    if (image && file && fread(image, 1, TEXT_MAX, file) > 0) result = load(module, image);
    if (file) fclose(file);
    free(image);
    return result;
}

API cuModuleUnload(CUmodule module)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_drop(module, H_MODULE)) return CUDA_ERROR_INVALID_HANDLE;
    while (module->functions) {
        struct CUfunc_st *function = module->functions;
        module->functions = function->next;
        handle_drop(function, H_FUNCTION);
        free(function);
    }
    while (module->globals) {
        struct global *global = module->globals;
        struct range range;
        module->globals = global->next;
        if (range_remove(global->address, &range)) free(range.bytes);
        free(global);
    }
    free(module->text);
    free(module);
    return CUDA_SUCCESS;
}

API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(module, H_MODULE)) return CUDA_ERROR_INVALID_HANDLE;
    if (!function || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver.lock);
    struct CUfunc_st *found = module->functions;
    while (found && strcmp(found->name, name) != 0) found = found->next;
    if (!found && (!module->text || has_word(module->text, name)) &&
        (found = calloc(1, sizeof *found + strlen(name) + 1))) {
        strcpy(found->name, name);
        found->burns = strncmp(name, "burn", 4) == 0;
        found->module = module;
        found->next = module->functions;
        module->functions = found;
        handle_add(found, H_FUNCTION);
    }
    pthread_mutex_unlock(&driver.lock);
    *function = found;
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Every global is 4096 bytes of zeros: its size is not worth a parser. */
API cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name)
{
    struct range range;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(module, H_MODULE)) return CUDA_ERROR_INVALID_HANDLE;
    if (!name || !*name) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver.lock);
    struct global *found = module->globals;
    while (found && strcmp(found->name, name) != 0) found = found->next;
    if (!found && (!module->text || has_word(module->text, name)) &&
        (found = calloc(1, sizeof *found + strlen(name) + 1))) {
        if (range_make(4096, 512, RANGE_GLOBAL, &range) == CUDA_SUCCESS) {
            strcpy(found->name, name);
            found->address = range.base;
            found->bytes = range.size;
            found->next = module->globals;
            module->globals = found;
        } else {
            free(found);
            found = NULL;
        }
    }
    pthread_mutex_unlock(&driver.lock);
    if (!found) return CUDA_ERROR_NOT_FOUND;
    if (address) *address = found->address;
    if (bytes) *bytes = found->bytes;
    return CUDA_SUCCESS;
}

API cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(module, H_MODULE)) return CUDA_ERROR_INVALID_HANDLE;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = 0;
    for (struct CUfunc_st *f = module->functions; f; f = f->next) ++*count;
    return CUDA_SUCCESS;
}

API cuFuncGetModule(CUmodule *module, CUfunction function)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(function, H_FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
    if (!module) return CUDA_ERROR_INVALID_VALUE;
    *module = function->module;
    return CUDA_SUCCESS;
}

API cuFuncGetName(const char **name, CUfunction function)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(function, H_FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = function->name;
    return CUDA_SUCCESS;
}

API cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    static const int VALUES[] = { 1024, 0, 0, 0, 32, 90, 90, 0, 49152, -1 };
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(function, H_FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
    if (!value || (int)attribute < 0 || (int)attribute > 17) return CUDA_ERROR_INVALID_VALUE;
    *value = (size_t)attribute < sizeof VALUES / sizeof *VALUES ? VALUES[attribute] : 0;
    return CUDA_SUCCESS;
}

API cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    (void)attribute, (void)value;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    return handle_is(function, H_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
    (void)config;
    return cuFuncSetAttribute(function, 0, 0);
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int size, size_t shared)
{
    (void)shared;
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(function, H_FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
    if (!blocks || size <= 0) return CUDA_ERROR_INVALID_VALUE;
    *blocks = size > 1024 ? 0 : 2048 / size < 32 ? 2048 / size : 32;
    return CUDA_SUCCESS;
}
