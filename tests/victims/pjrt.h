/* The part of the PJRT C interface that the stand-ins use, as 64-bit words: each structure begins with its size and a list
 * of extensions; functions are at fixed places in the table. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct { uint64_t size, extensions, of, out, more; } small_args;                  /* most functions */
typedef struct { uint64_t size, extensions, client, data, type, dims, dim_count, strides, stride_count, semantics, device, memory, layout, done, buffer; } from_host_args;
typedef struct { uint64_t size, extensions, client, dims, dim_count, type, layout, device, memory, buffer; } uninitialized_args;
typedef struct { uint64_t size, extensions, executable, options, arguments, devices, count, outputs, events, device; } execute_args;
typedef struct { uint64_t size, extensions, buffer, callback_data, callback, out; } donate_args;
typedef uint64_t error; /* 0: success */
typedef error (*function)(void *);
typedef struct { uint64_t size, extensions, version_size, version_extensions; int major, minor; function functions[138]; } table;

enum { /* places in `functions` */
    ERROR_DESTROY = 0, ERROR_GET_CODE = 2, FROM_HOST = 22, LOCAL_HARDWARE_ID = 31, MEMORY_KIND = 36, EXECUTABLE_DESTROY = 40,
    NUM_OUTPUTS = 44, LOADED_DESTROY = 50, GET_EXECUTABLE = 51, EXECUTE = 55, BUFFER_DESTROY = 58, BUFFER_SIZE = 64,
    BUFFER_DEVICE = 65, BUFFER_MEMORY = 66, BUFFER_DELETE = 67, IS_DELETED = 68, COPY_TO_DEVICE = 69, UNSAFE_POINTER = 73,
    COPY_TO_MEMORY = 92, RETRIEVE = 104, UNINITIALIZED = 112, DONATE = 125,
};
_Static_assert(offsetof(table, functions) == 40, "functions begin at byte 40");
