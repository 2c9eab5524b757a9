/* From a public call to the body of the level in use; level choice; contexts and their errors. */
#include "dispatch.h"
#include "internal.h"
#include "program.h"

#include <stdarg.h>
#include <stdio.h>

extern const rl_table rl_table_base;
#if defined(__x86_64__)
extern const rl_table rl_table_v4;
#endif

static const rl_table *rl_active = &rl_table_base;
static const char *active_name = "base";

/* ---- levels ---- */

static bool cpu_has(const char *level) {
#if defined(__x86_64__)
    /* __builtin_cpu_supports asks the operating system for the registers too (XGETBV) */
    if (!strcmp(level, "v4"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#endif
    return !strcmp(level, "base");
}

static const rl_table *table_of(const char *level) {
#if defined(__x86_64__)
    if (!strcmp(level, "v4")) return &rl_table_v4;
#endif
    return !strcmp(level, "base") ? &rl_table_base : NULL;
}

const char *const *rl_levels(void) {
    static const char *const built[] = {"base",
#if defined(__x86_64__)
                                        "v4",
#endif
                                        NULL};
    return built;
}

const char *rl_level(void) { return active_name; }

int rl_set_level(const char *name) {
    for (const char *const *level = rl_levels(); *level; level++)
        if (!strcmp(*level, name) && cpu_has(name)) {
            rl_active = table_of(name);
            active_name = *level;
            return 1;
        }
    return 0;
}

/* ---- contexts ---- */

rl_ctx *rl_ctx_new(void) { return calloc(1, sizeof(rl_ctx)); }

void rl_ctx_free(rl_ctx *ctx) {
    if (ctx) rl_os_release(ctx->workspace, ctx->workspace_bytes);
    free(ctx);
}

const char *rl_error(const rl_ctx *ctx) { return ctx->error; }

rl_status rl_fail(rl_ctx *ctx, rl_status status, const char *format, ...) {
    int used = snprintf(ctx->error, sizeof ctx->error, "%s: ", ctx->kernel);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(ctx->error + used, sizeof ctx->error - (size_t)used, format, arguments);
    va_end(arguments);
    return ctx->status = status;
}

void *rl_workspace(rl_ctx *ctx, size_t bytes) {
    if (bytes > ctx->workspace_bytes) {
        rl_os_release(ctx->workspace, ctx->workspace_bytes);
        ctx->workspace_bytes = bytes + bytes / 4;
        ctx->workspace = rl_os_reserve(NULL, &ctx->workspace_bytes);
        if (!ctx->workspace) {
            ctx->workspace_bytes = 0;
            rl_fail(ctx, RL_MEMORY_ERROR, "no memory for a workspace of %zu bytes", bytes);
        }
    }
    return ctx->workspace;
}

rl_shape_text rl_shape_of(const rl_view *view) {
    rl_shape_text shape;
    char *end = shape.text;
    *end++ = '(';
    for (int d = 0; d < view->ndim; d++) end += sprintf(end, d ? ", %lld" : "%lld", (long long)view->shape[d]);
    strcpy(end, view->ndim == 1 ? ",)" : ")");
    return shape;
}

/* ---- dtype checks ---- */

static const char *dtype_name(int dtype) {
    static const char *const names[] = {"float32", "float64", "int64", "bool", "uint64", "bfloat16"};
    return dtype >= RL_FLOAT32 && dtype <= RL_BFLOAT16 ? names[dtype] : "of an unknown dtype";
}

static rl_status check_view(rl_ctx *ctx, const char *name, const rl_view *view, bool optional, int *real, int kind) {
    static const int exact[] = {[KIND_INTS] = RL_INT64, [KIND_MASK] = RL_BOOL, [KIND_BITS] = RL_UINT64};
    if (!view) return optional ? RL_OK : rl_fail(ctx, RL_VALUE_ERROR, "%s is missing", name);
    if (view->ndim < 0 || view->ndim > RL_MAX_DIMS)
        return rl_fail(ctx, RL_SHAPE_ERROR, "%s has %d axes, expected 0 to %d", name, (int)view->ndim, RL_MAX_DIMS);
    if (kind != KIND_REAL) {
        if (view->dtype == exact[kind]) return RL_OK;
        return rl_fail(ctx, RL_DTYPE_ERROR, "%s is %s, expected %s", name, dtype_name(view->dtype), dtype_name(exact[kind]));
    }
    if (view->dtype != RL_FLOAT32 && view->dtype != RL_FLOAT64)
        return rl_fail(ctx, RL_DTYPE_ERROR, "%s is %s, expected float32 or float64", name, dtype_name(view->dtype));
    if (*real >= 0 && *real != view->dtype)
        return rl_fail(ctx, RL_DTYPE_ERROR, "%s is %s where the other arguments are %s", name, dtype_name(view->dtype), dtype_name(*real));
    *real = view->dtype;
    return RL_OK;
}

static rl_status check_list(rl_ctx *ctx, const char *name, const rl_list *list, bool optional, int *real) {
    if (!list) return optional ? RL_OK : rl_fail(ctx, RL_VALUE_ERROR, "%s is missing", name);
    for (int64_t i = 0; i < list->count; i++)
        if (check_view(ctx, name, &list->views[i], false, real, KIND_REAL)) return ctx->status;
    return RL_OK;
}

#include "dispatch.inc"
