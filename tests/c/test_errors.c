/* What is wrong with a call becomes a status and a text that names the kernel; nothing crashes.  The table of kernels that Python's door
 * uses gives every kernel's arguments, so a new kernel is tested without a line here. */
#include "check.h"
#include "program.h"

#define LISTED 2

typedef struct {
    rl_argument arguments[RL_MAX_ARGUMENTS];
    rl_view views[RL_MAX_ARGUMENTS], listed[RL_MAX_ARGUMENTS][LISTED];
    rl_list lists[RL_MAX_ARGUMENTS];
} call;

static int kind_of(const rl_kernel *kernel, int i) { return kernel->kinds[i] & KIND_ALONE; }
static bool is_view(int kind) { return kind <= KIND_BITS; }

static rl_dtype dtype_of(int kind, rl_dtype real) {
    return kind == KIND_INTS ? RL_INT64 : kind == KIND_MASK ? RL_BOOL : kind == KIND_BITS ? RL_UINT64 : real;
}

/* a small array of any rank, size, and layout; sizes repeat, so that some calls are right */
static rl_view random_view(rl_dtype dtype) {
    static const int64_t likely[] = {3, 2, 3, 4};
    int64_t shape[RL_MAX_DIMS];
    int ndim = pick(6) ? (int)pick(5) : (int)pick(RL_MAX_DIMS + 1), usual = (int)pick(3);
    for (int d = 0; d < ndim; d++) shape[d] = usual ? likely[(d + usual) % 4] : pick(4);
    rl_view x = laid_out(pick(3) ? PLAIN : (int)pick(LAYOUTS), dtype, ndim, shape);
    if (dtype == RL_INT64)
        for (int64_t i = 0; i < size_of(&x); i++) put(&x, i, (double)(pick(20) ? pick(3) : pick(9) - 4));
    return x;
}

/* `alike`: all views that are reals have one shape */
static void fill_call(call *c, const rl_kernel *kernel, rl_dtype real, bool alike) {
    static const int64_t integers[] = {0, 1, -1, 2, 3, -100, INT64_MAX};
    static const double numbers[] = {0, 0.5, 1, -1, 1e300, NAN};
    rl_view shared = random_view(real);
    for (int i = 0; i < kernel->argument_count; i++) {
        int kind = kind_of(kernel, i);
        if (is_view(kind)) c->views[i] = alike && kind == KIND_REAL ? copy_of(&shared) : random_view(dtype_of(kind, real));
        for (int k = 0; kind == KIND_LIST && k < LISTED; k++) c->listed[i][k] = alike ? copy_of(&shared) : random_view(real);
        c->lists[i] = (rl_list){alike ? LISTED : pick(LISTED + 1), c->listed[i]};
        if (is_view(kind)) c->arguments[i].view = &c->views[i];
        else if (kind == KIND_LIST) c->arguments[i].list = &c->lists[i];
        else if (kind == KIND_INT) c->arguments[i].integer = integers[pick(7)];
        else c->arguments[i].number = numbers[pick(6)];
    }
}

static bool names_kernel(const rl_ctx *ctx, const rl_kernel *kernel) {
    size_t length = strlen(kernel->name);
    return !strncmp(rl_error(ctx), kernel->name, length) && !strncmp(rl_error(ctx) + length, ": ", 2) && rl_error(ctx)[length + 2];
}

#define REJECTED(expected, status, what)                                                                                                   \
    do {                                                                                                                                   \
        rl_status got = status;                                                                                                            \
        CHECK(got == (expected), "%s, argument %d %s: status %d, text %s", kernel->name, i, what, (int)got, rl_error(ctx));                \
        CHECK(names_kernel(ctx, kernel), "%s, argument %d %s: text %s", kernel->name, i, what, rl_error(ctx));                             \
    } while (0)

static void test_dtypes(rl_ctx *ctx, rl_dtype real) {
    static const rl_dtype dtypes[] = {RL_FLOAT32, RL_FLOAT64, RL_INT64, RL_BOOL, RL_UINT64, RL_BFLOAT16};
    for (const rl_kernel *kernel = rl_kernels; kernel < rl_kernels + rl_kernel_count; kernel++) {
        call c;
        int reals = 0;
        fill_call(&c, kernel, real, true);
        for (int i = 0; i < kernel->argument_count; i++) reals += kind_of(kernel, i) == KIND_REAL || kind_of(kernel, i) == KIND_LIST;
        for (int i = 0; i < kernel->argument_count; i++) {
            int kind = kind_of(kernel, i);
            if (!is_view(kind) && kind != KIND_LIST) continue;
            rl_view *view = is_view(kind) ? &c.views[i] : &c.listed[i][1], good = *view;
            for (int k = 0; k < 6; k++) {
                bool float_here = (kind == KIND_REAL || kind == KIND_LIST) && (dtypes[k] == RL_FLOAT32 || dtypes[k] == RL_FLOAT64);
                if ((int)dtypes[k] == good.dtype || (float_here && reals == 1 && kind == KIND_REAL)) continue;
                view->dtype = (int32_t)dtypes[k];
                REJECTED(RL_DTYPE_ERROR, kernel->run(ctx, c.arguments), "of another dtype");
            }
            *view = good;
        }
        free_arrays();
    }
}

/* A missing argument is refused where it must be there, and nothing else happens where it need not. */
static void test_missing(rl_ctx *ctx, rl_dtype real) {
    for (const rl_kernel *kernel = rl_kernels; kernel < rl_kernels + rl_kernel_count; kernel++) {
        call c;
        fill_call(&c, kernel, real, true);
        for (int i = 0; i < kernel->argument_count; i++) {
            int kind = kind_of(kernel, i);
            if (!is_view(kind) && kind != KIND_LIST) continue;
            rl_argument good = c.arguments[i];
            c.arguments[i].view = NULL;
            if (kernel->run(ctx, c.arguments) != RL_OK) CHECK(names_kernel(ctx, kernel), "%s: text %s", kernel->name, rl_error(ctx));
            c.arguments[i] = good;
        }
        int i = 0;
        c.arguments[0].view = NULL; /* the first one is never optional */
        REJECTED(RL_VALUE_ERROR, kernel->run(ctx, c.arguments), "missing");
        free_arrays();
    }
}

/* Thousands of calls with arguments that hardly ever fit: a status each, and the sanitizer watches the memory. */
static void test_random_shapes(rl_ctx *ctx, rl_dtype real) {
    int accepted = 0, refused = 0;
    for (const rl_kernel *kernel = rl_kernels; kernel < rl_kernels + rl_kernel_count; kernel++)
        for (int round = 0; round < 400; round++) {
            call c;
            fill_call(&c, kernel, real, round % 4 == 0);
            rl_status status = kernel->run(ctx, c.arguments);
            bool known = status == RL_OK || status == RL_SHAPE_ERROR || status == RL_INDEX_ERROR || status == RL_VALUE_ERROR;
            CHECK(known && (status == RL_OK || names_kernel(ctx, kernel)), "%s: status %d, text %s", kernel->name, (int)status,
                  rl_error(ctx));
            accepted += status == RL_OK;
            refused += status != RL_OK;
            free_arrays();
        }
    CHECK(accepted > 2000 && refused > 5000, "%d calls accepted, %d refused", accepted, refused);
}

/* views that no caller should make */
static void test_impossible_views(rl_ctx *ctx, rl_dtype real) {
    for (const rl_kernel *kernel = rl_kernels; kernel < rl_kernels + rl_kernel_count; kernel++) {
        call c;
        fill_call(&c, kernel, real, true);
        for (int i = 0; i < kernel->argument_count; i++) {
            if (!is_view(kind_of(kernel, i))) continue;
            rl_view good = c.views[i];
            static const int32_t dtypes[] = {-1, 6, 1000, INT32_MAX, INT32_MIN};
            for (int k = 0; k < 5; k++) {
                c.views[i].dtype = dtypes[k];
                REJECTED(RL_DTYPE_ERROR, kernel->run(ctx, c.arguments), "of no dtype");
            }
            c.views[i] = good;
            static const int32_t ranks[] = {-1, RL_MAX_DIMS + 1, INT32_MAX};
            for (int k = 0; k < 3; k++) {
                c.views[i].ndim = ranks[k];
                REJECTED(RL_SHAPE_ERROR, kernel->run(ctx, c.arguments), "of no rank");
            }
            c.views[i] = good;
        }
        free_arrays();
    }
}

static void test_levels(void) {
    const char *before = rl_level();
    CHECK(!rl_set_level("v99") && !rl_set_level("") && !strcmp(rl_level(), before), "an unknown level became %s", rl_level());
    CHECK(rl_set_level("base") && !strcmp(rl_level(), "base"), "level %s after base", rl_level());
    rl_ctx_free(NULL);
}

int main(void) {
    at_every_level(test_dtypes);
    at_every_level(test_missing);
    at_every_level(test_random_shapes);
    at_every_level(test_impossible_views);
    test_levels();
    return finish();
}
