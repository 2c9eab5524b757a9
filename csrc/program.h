/* A recorded program: kernel calls with their views, run again as one loop. */
#ifndef RUSHLIGHT_PROGRAM_H
#define RUSHLIGHT_PROGRAM_H

#include "rushlight.h"

#define RL_MAX_ARGUMENTS 16

/* What a kernel's argument is; KIND_WRITTEN is or-ed to it. */
enum { KIND_REAL, KIND_INTS, KIND_MASK, KIND_BITS, KIND_LIST, KIND_INT, KIND_DOUBLE, KIND_ALONE = 15, KIND_WRITTEN = 16 };

typedef union {
    rl_view *view;
    rl_list *list;
    int64_t integer;
    double number;
} rl_argument;

typedef struct {
    const char *name;
    rl_status (*run)(rl_ctx *ctx, const rl_argument *arguments);
    int argument_count;
    unsigned char kinds[RL_MAX_ARGUMENTS];
} rl_kernel;

/* Every kernel of rushlight.h, in its order. */
extern const rl_kernel rl_kernels[];
extern const int rl_kernel_count;

typedef struct rl_program rl_program;
rl_program *rl_program_new(void);
void rl_program_free(rl_program *program);
/* Copies the arguments, views and lists included, but not the data they point to.  False when memory is short. */
int rl_program_append(rl_program *program, int kernel, const rl_argument *arguments);
int64_t rl_program_length(const rl_program *program);
/* Runs the calls in order, stopping at the first that fails. */
rl_status rl_program_run(const rl_program *program, rl_ctx *ctx);

#endif
