/* array.c - arrays and mipmapped arrays: memory of the card in shapes, without contents. */
#include "driver.h"
#include <stdlib.h>

struct CUarray_st { struct device *device; CUDA_ARRAY3D_DESCRIPTOR shape; uint64_t bytes; CUmipmappedArray of; };
struct CUmipmappedArray_st { struct device *device; CUDA_ARRAY3D_DESCRIPTOR shape; uint64_t bytes; unsigned levels; };

/* Bytes of one element, 0: unknown format. */
static uint64_t element(int format, unsigned channels)
{
    if (channels != 1 && channels != 2 && channels != 4) return 0;
    switch (format) {
    case 0x01: case 0x08: return channels;
    case 0x02: case 0x09: case 0x10: return 2ull * channels;
    case 0x03: case 0x0a: case 0x20: return 4ull * channels;
    default: return 0;
    }
}

/* Bytes of a shape, or 0 when it is no valid one. */
static uint64_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    uint64_t size = element((int)shape->Format, shape->NumChannels);
    uint64_t height = shape->Height ? shape->Height : 1, depth = shape->Depth ? shape->Depth : 1;
    if (!size || !shape->Width || shape->Width > 1u << 20 || height > 1u << 20 || depth > 1u << 14) return 0;
    return (shape->Width * size + 511) / 512 * 512 * height * depth;
}

static CUresult create(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    uint64_t bytes = bytes_of(shape);
    if (!array || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if ((result = ledger_reserve(context->device, bytes)) != CUDA_SUCCESS) return result;
    CUarray made = calloc(1, sizeof *made);
    if (!made || !handle_add(made, H_ARRAY)) {
        ledger_release(context->device, bytes);
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct CUarray_st){ .device = context->device, .shape = *shape, .bytes = bytes };
    *array = made;
    return CUDA_SUCCESS;
}

API cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *shape)
{
    if (!shape) return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR full = { .Width = shape->Width, .Height = shape->Height, .Format = shape->Format,
                                     .NumChannels = shape->NumChannels };
    return create(array, &full);
}

API cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    return shape ? create(array, shape) : CUDA_ERROR_INVALID_VALUE;
}

API cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *shape, CUarray array)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(array, H_ARRAY)) return CUDA_ERROR_INVALID_HANDLE;
    if (!shape) return CUDA_ERROR_INVALID_VALUE;
    *shape = (CUDA_ARRAY_DESCRIPTOR){ array->shape.Width, array->shape.Height, array->shape.Format,
                                      array->shape.NumChannels };
    return CUDA_SUCCESS;
}

API cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray array)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(array, H_ARRAY)) return CUDA_ERROR_INVALID_HANDLE;
    if (!shape) return CUDA_ERROR_INVALID_VALUE;
    *shape = array->shape;
    return CUDA_SUCCESS;
}

API cuArrayDestroy(CUarray array)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(array, H_ARRAY) || array->of) return CUDA_ERROR_INVALID_HANDLE;
    handle_drop(array, H_ARRAY);
    ledger_release(array->device, array->bytes);
    free(array);
    return CUDA_SUCCESS;
}

API cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    uint64_t first = shape ? bytes_of(shape) : 0, bytes = 0;
    if (!mipmap || !first || !levels || levels > 32) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < levels; i++) bytes += first >> (2 * i) ? first >> (2 * i) : 512;
    if ((result = ledger_reserve(context->device, bytes)) != CUDA_SUCCESS) return result;
    CUmipmappedArray made = calloc(1, sizeof *made);
    if (!made || !handle_add(made, H_MIPMAP)) {
        ledger_release(context->device, bytes);
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct CUmipmappedArray_st){ context->device, *shape, bytes, levels };
    *mipmap = made;
    return CUDA_SUCCESS;
}

API cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray mipmap, unsigned int level)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_is(mipmap, H_MIPMAP)) return CUDA_ERROR_INVALID_HANDLE;
    if (!array || level >= mipmap->levels) return CUDA_ERROR_INVALID_VALUE;
    CUarray made = calloc(1, sizeof *made);
    if (!made || !handle_add(made, H_ARRAY)) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct CUarray_st){ .device = mipmap->device, .shape = mipmap->shape, .of = mipmap };
    made->shape.Width = mipmap->shape.Width >> level ? mipmap->shape.Width >> level : 1;
    made->shape.Height = mipmap->shape.Height >> level;
    *array = made;
    return CUDA_SUCCESS;
}

API cuMipmappedArrayDestroy(CUmipmappedArray mipmap)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS) return result;
    if (!handle_drop(mipmap, H_MIPMAP)) return CUDA_ERROR_INVALID_HANDLE;
    ledger_release(mipmap->device, mipmap->bytes);
    free(mipmap);
    return CUDA_SUCCESS;
}
