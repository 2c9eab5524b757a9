/* What every machine of the architecture has: SSE2 on x86-64, NEON on arm64. */
#include "internal.h"
#include "dispatch.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define VECTOR_BYTES 16

#include "kernels/level.inc"

const rl_table rl_table_base = {
#include "table.inc"
};
