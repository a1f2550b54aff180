"""A tenant that allocates and then does nothing. usage: hold.py GIB"""

from __future__ import annotations

import ctypes
import sys
import time
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, device, made = c_void_p(), c_int(), c_uint64()
    cuda.cuInit(0)
    cuda.cuDeviceGet(byref(device), 0)
    cuda.cuDevicePrimaryCtxRetain(byref(context), device)
    cuda.cuCtxSetCurrent(context)
    for _ in range(int(sys.argv[1])):
        if code := cuda.cuMemAlloc_v2(byref(made), c_size_t(1 << 30)):
            sys.exit(f"cuMemAlloc: error {code}")
    print("READY", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
