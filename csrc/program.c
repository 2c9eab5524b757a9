/* Recorded programs, and the trampolines that call a kernel with an array of arguments. */
#include "program.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "door.inc"

typedef struct {
    int kernel;
    rl_argument arguments[RL_MAX_ARGUMENTS];
} recorded_call;

struct rl_program {
    recorded_call *calls;
    int64_t count, capacity;
};

static bool is_view(int kind) { return (kind & KIND_ALONE) <= KIND_BITS; }
static bool is_list(int kind) { return (kind & KIND_ALONE) == KIND_LIST; }

static void *duplicate(const void *source, size_t bytes) {
    void *copy = malloc(bytes ? bytes : 1);
    return copy ? memcpy(copy, source, bytes) : NULL;
}

static rl_list *duplicate_list(const rl_list *list) {
    rl_list *copy = duplicate(list, sizeof *list);
    if (copy && !(copy->views = duplicate(list->views, (size_t)list->count * sizeof *list->views))) {
        free(copy);
        return NULL;
    }
    return copy;
}

static void free_arguments(recorded_call *call) {
    const rl_kernel *kernel = &rl_kernels[call->kernel];
    for (int i = 0; i < kernel->argument_count; i++) {
        if (is_list(kernel->kinds[i]) && call->arguments[i].list) free(call->arguments[i].list->views);
        if (is_view(kernel->kinds[i]) || is_list(kernel->kinds[i])) free(call->arguments[i].view);
    }
}

rl_program *rl_program_new(void) { return calloc(1, sizeof(rl_program)); }

void rl_program_free(rl_program *program) {
    if (!program) return;
    for (int64_t i = 0; i < program->count; i++) free_arguments(&program->calls[i]);
    free(program->calls);
    free(program);
}

int rl_program_append(rl_program *program, int kernel, const rl_argument *arguments) {
    if (program->count == program->capacity) {
        int64_t capacity = program->capacity * 2 + 64;
        recorded_call *calls = realloc(program->calls, (size_t)capacity * sizeof *calls);
        if (!calls) return 0;
        program->calls = calls;
        program->capacity = capacity;
    }
    recorded_call *call = &program->calls[program->count];
    *call = (recorded_call){.kernel = kernel};
    const rl_kernel *description = &rl_kernels[kernel];
    for (int i = 0; i < description->argument_count; i++) {
        int kind = description->kinds[i];
        if (!is_view(kind) && !is_list(kind)) {
            call->arguments[i] = arguments[i];
        } else if (arguments[i].view) {
            if (is_list(kind)) call->arguments[i].list = duplicate_list(arguments[i].list);
            else call->arguments[i].view = duplicate(arguments[i].view, sizeof(rl_view));
            if (!call->arguments[i].view) {
                free_arguments(call);
                return 0;
            }
        }
    }
    program->count++;
    return 1;
}

int64_t rl_program_length(const rl_program *program) { return program->count; }

rl_status rl_program_run(const rl_program *program, rl_ctx *ctx) {
    for (int64_t i = 0; i < program->count; i++) {
        const recorded_call *call = &program->calls[i];
        rl_status status = rl_kernels[call->kernel].run(ctx, call->arguments);
        if (status) return status;
    }
    return RL_OK;
}
