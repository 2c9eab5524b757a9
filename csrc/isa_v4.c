/* x86-64-v4: AVX-512 F, BW, DQ, VL. */
#include "internal.h"
#include "dispatch.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define VECTOR_BYTES 64
#define LEVEL_AVX512
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi,bmi2,prefer-vector-width=512")
#endif

#include "kernels/level.inc"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const rl_table rl_table_v4 = {
#include "table.inc"
};
#endif
