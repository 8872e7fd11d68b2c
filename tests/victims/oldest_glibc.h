/* The version of glibc's oldest symbols, which is that of the first glibc for the processor. */
#pragma once
#ifdef __aarch64__
#define OLDEST_GLIBC "GLIBC_2.17"
#else
#define OLDEST_GLIBC "GLIBC_2.2.5"
#endif
