"""A program that uses the first GPU it sees, by the driver alone: `python burn.py SECONDS` prints how many it sees."""

import ctypes
import sys
import time

BYTES = 512 * 1024 * 1024


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    memory = ctypes.c_uint64()
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    print("gpus", count.value, flush=True)
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device), "cuCtxCreate")
    check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(BYTES)), "cuMemAlloc")
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        for value in range(200):
            check(cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(value), ctypes.c_size_t(BYTES)), "cuMemsetD8")
        check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
    print("burnt", flush=True)


def check(result: int, call: str) -> None:
    if result:
        sys.exit(f"{call} failed: {result}")


if __name__ == "__main__":
    main()
