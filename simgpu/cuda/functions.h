/* functions.h - the table of all exported functions, for cuGetProcAddress. */
#ifndef SIMGPU_CUDA_FUNCTIONS_H
#define SIMGPU_CUDA_FUNCTIONS_H
#include <stddef.h>

/* `since`: the version of CUDA that brought this form. `per_thread` is `symbol` where there is no twin. */
struct function { const char *name; int since; void (*symbol)(void), (*per_thread)(void); };
extern const struct function FUNCTIONS[];
extern const size_t FUNCTION_COUNT;
#endif
