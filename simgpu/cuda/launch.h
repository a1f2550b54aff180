/* launch.h - a kernel as a piece of work. */
#ifndef SIMGPU_CUDA_LAUNCH_H
#define SIMGPU_CUDA_LAUNCH_H
#include "driver.h"

/* What the kernel will do, from the arguments of its launch. Returns a CUresult. */
CUresult kernel_op(CUfunction function, const unsigned int shape[6], void **parameters, void **extra, struct op *op);
#endif
