/* driver.h - the few types of the CUDA driver API and of NVML that the hooks touch, written out by hand.
 *
 * The shim must build without the CUDA toolkit and fit every driver from 11 to 13, so it names no type that it does not
 * read: handles are opaque pointers, enums are ints, structs are spelled only as far as they are looked into.
 */
#ifndef ALIQUOT_DRIVER_H
#define ALIQUOT_DRIVER_H
#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_UNKNOWN = 999,
    CUDA_ERROR_NOT_FOUND = 500,         /* what a wrapper answers when the driver has no such function */
};

typedef uint64_t CUdeviceptr;
typedef int      CUdevice;
typedef void    *CUcontext, *CUstream, *CUfunction, *CUevent, *CUarray, *CUmipmappedArray, *CUmemoryPool;
typedef void    *CUgraph, *CUgraphNode, *CUgraphExec, *nvmlDevice_t;
typedef uint64_t CUmemHandle;           /* CUmemGenericAllocationHandle */
typedef struct { unsigned char bytes[16]; } CUuuid;

/* CUmemLocation. `id` is a device ordinal for LOCATION_DEVICE. */
typedef struct { int type, id; } CUmemLocation;
enum { ALLOCATION_PINNED = 1, ALLOCATION_MANAGED = 2 };         /* CUmemAllocationType */
enum { HANDLE_FD = 1 };                                         /* CUmemAllocationHandleType */
enum { LOCATION_DEVICE = 1, LOCATION_DEVICE_PART = 6 /* id: the low byte is the ordinal, the next the part */ };

typedef struct { int type, handle_types; CUmemLocation location; } CUmemAllocationProp;     /* its beginning */
typedef struct { int type, handle_types; CUmemLocation location; void *security; size_t max_size; uint8_t rest[56]; } CUmemPoolProps;
typedef struct { CUmemPoolProps pool; const void *access; size_t access_count, bytes; CUdeviceptr pointer; } CUDA_MEM_ALLOC_NODE_PARAMS;
typedef struct { CUgraph graph; int ownership; } CUDA_CHILD_GRAPH_NODE_PARAMS;
typedef struct { uint64_t handle; int type; unsigned size; CUgraph *bodies; } CUDA_CONDITIONAL_NODE_PARAMS;     /* its beginning */
typedef struct { int type, reserved[3]; union { CUDA_MEM_ALLOC_NODE_PARAMS alloc; CUdeviceptr free; CUDA_CHILD_GRAPH_NODE_PARAMS child;
                 CUDA_CONDITIONAL_NODE_PARAMS conditional; uint8_t bytes[232]; } u; } CUgraphNodeParams;
enum { NODE_GRAPH = 4, NODE_MEM_ALLOC = 10, NODE_MEM_FREE = 11, NODE_CONDITIONAL = 13 };

typedef struct { char bytes[64]; } CUipcMemHandle;
typedef struct { int type; union { int fd; void *win32[2]; } handle; unsigned long long size; } CUDA_EXTERNAL_MEMORY_HANDLE_DESC; /* its beginning */
typedef struct { int resource_type; void *resource; int subresource_type; union { unsigned level[8]; uint64_t tail[3]; } subresource;
                 int operation, handle_type; CUmemHandle handle; uint64_t offset; unsigned devices, flags, reserved[2]; } CUarrayMapInfo;
enum { OPERATION_MAP = 1, OPERATION_UNMAP = 2 };
enum { LIMIT_MALLOC_HEAP = 2 };                                 /* CUlimit */

typedef struct { unsigned grid[3], block[3], shared; CUstream stream; } CUlaunchConfig;     /* its beginning */
typedef struct { CUfunction function; unsigned grid[3], block[3], shared; CUstream stream; } CUDA_LAUNCH_PARAMS;

typedef struct { size_t width, height; int format; unsigned channels; } CUDA_ARRAY_DESCRIPTOR;
typedef struct { unsigned width, height; int format; unsigned channels; } CUDA_ARRAY_DESCRIPTOR_v1;
typedef struct { size_t width, height, depth; int format; unsigned channels, flags; } CUDA_ARRAY3D_DESCRIPTOR;
typedef struct { unsigned width, height, depth; int format; unsigned channels, flags; } CUDA_ARRAY3D_DESCRIPTOR_v1;
enum { ARRAY_LAYERED = 0x01, ARRAY_CUBEMAP = 0x04, ARRAY_SPARSE = 0x40, ARRAY_DEFERRED = 0x80 };

enum { POOL_RESERVED_NOW = 5, POOL_USED_NOW = 7 };              /* CUmemPool_attribute */
enum { GRAPH_USED_NOW = 0, GRAPH_RESERVED_NOW = 2 };            /* CUgraphMem_attribute */
#define FAULT(result) ((result) >= 700 && (result) < 800)   /* of a kernel, mostly: such a context answers it from then on */
enum { CAPTURE_NONE = 0, CAPTURE_MODE_RELAXED = 2 };
#define CAPTURE_FORBIDS(result) ((result) >= 900 && (result) <= 909)    /* CUDA_ERROR_STREAM_CAPTURE_*: ask again later */

typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;

_Static_assert(sizeof(CUmemPoolProps) == 88 && sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120, "graph allocation node");
_Static_assert(offsetof(CUgraphNodeParams, u) == 16, "graph node");
_Static_assert(offsetof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size) == 24 && sizeof(CUarrayMapInfo) == 96, "import, sparse array");
_Static_assert(offsetof(CUarrayMapInfo, operation) == 56 && offsetof(CUarrayMapInfo, handle) == 64, "sparse array");
_Static_assert(offsetof(CUDA_CONDITIONAL_NODE_PARAMS, bodies) == 16, "conditional node");
_Static_assert(offsetof(CUlaunchConfig, stream) == 32, "launch configuration");
_Static_assert(offsetof(CUDA_LAUNCH_PARAMS, stream) == 40, "launch of many");
#endif
