/* Rushlight's kernels: the one public header.  C11 and C++.
 *
 * Every kernel is `rl_status rl_NAME(rl_ctx *ctx, …)`.  Its contract stands above it; the build reads these very prototypes to
 * generate the dispatch over instruction-set levels, the dtype checks and Python's door, so an argument's type IS its contract:
 *
 *   rl_real    a view of float32 or float64; all rl_real arguments of one call have the same dtype
 *   rl_ints    a view of int64          rl_mask  a view of bool (one byte, 0 or 1)      rl_bits  a view of uint64
 *   rl_list    many rl_real views of one dtype
 *   const      is read; without const it is written (and read as well where the formula says so)
 *   RL_OPTIONAL  may be NULL: a bias or residual is 0 then, a weight or scale 1, and an output is not computed
 *
 * Strides count elements and may be 0 (broadcast) or negative.  "Contiguous" is row-major without gaps.  Sizes of 0 are defined for
 * every kernel.  Shape legend: B batch, H heads, T queries, S keys, K head width, M x N x K matrix product, R rows, D row width,
 * V vocabulary.  Unless said otherwise an output may not overlap an input.
 */
#ifndef RUSHLIGHT_H
#define RUSHLIGHT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RL_MAX_DIMS 8
#define RL_OPTIONAL

typedef enum { RL_OK, RL_SHAPE_ERROR, RL_DTYPE_ERROR, RL_INDEX_ERROR, RL_VALUE_ERROR, RL_MEMORY_ERROR } rl_status;

typedef enum { RL_FLOAT32, RL_FLOAT64, RL_INT64, RL_BOOL, RL_UINT64, RL_BFLOAT16 } rl_dtype;

typedef struct {
    void *data;
    int32_t dtype, ndim;
    int64_t shape[RL_MAX_DIMS], stride[RL_MAX_DIMS];
} rl_view;

typedef rl_view rl_real, rl_ints, rl_mask, rl_bits;

typedef struct {
    int64_t count;
    rl_view *views;
} rl_list;

/* Workspace and the text of the last error.  One per calling thread; any number may exist. */
typedef struct rl_ctx rl_ctx;
rl_ctx *rl_ctx_new(void);
void rl_ctx_free(rl_ctx *ctx);
const char *rl_error(const rl_ctx *ctx);

/* Threads of the one pool that all kernels share, the caller included.  Results never depend on this number. */
void rl_set_num_threads(int count);
int rl_get_num_threads(void);

/* Instruction-set levels built in, best last; `rl_level` is the one in use.  rl_set_level returns 0 when the CPU or the build lacks it. */
const char *const *rl_levels(void);
const char *rl_level(void);
int rl_set_level(const char *name);

/* ---- element-wise: y[i] = f(x[i]); y has x's shape, any strides; y may be x itself -------------------------------------------- */

rl_status rl_neg(rl_ctx *ctx, rl_real *y, const rl_real *x);
rl_status rl_abs(rl_ctx *ctx, rl_real *y, const rl_real *x);
rl_status rl_sign(rl_ctx *ctx, rl_real *y, const rl_real *x);
rl_status rl_exp(rl_ctx *ctx, rl_real *y, const rl_real *x);
rl_status rl_log(rl_ctx *ctx, rl_real *y, const rl_real *x);
rl_status rl_sqrt(rl_ctx *ctx, rl_real *y, const rl_real *x);
rl_status rl_sin(rl_ctx *ctx, rl_real *y, const rl_real *x);
rl_status rl_cos(rl_ctx *ctx, rl_real *y, const rl_real *x);
rl_status rl_erf(rl_ctx *ctx, rl_real *y, const rl_real *x);
rl_status rl_tanh(rl_ctx *ctx, rl_real *y, const rl_real *x);
/* 1 / (1 + exp(-x)) */
rl_status rl_sigmoid(rl_ctx *ctx, rl_real *y, const rl_real *x);
rl_status rl_relu(rl_ctx *ctx, rl_real *y, const rl_real *x);
/* x * sigmoid(x) */
rl_status rl_silu(rl_ctx *ctx, rl_real *y, const rl_real *x);
/* x * (1 + erf(x / sqrt(2))) / 2 */
rl_status rl_gelu(rl_ctx *ctx, rl_real *y, const rl_real *x);
/* x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2 */
rl_status rl_gelu_tanh(rl_ctx *ctx, rl_real *y, const rl_real *x);

/* gx[i] = g[i] * f'(x[i]), all of one shape; tanh and sigmoid take their output y in place of x.  gx may be g. */
rl_status rl_tanh_backward(rl_ctx *ctx, rl_real *gx, const rl_real *g, const rl_real *y);
rl_status rl_sigmoid_backward(rl_ctx *ctx, rl_real *gx, const rl_real *g, const rl_real *y);
rl_status rl_relu_backward(rl_ctx *ctx, rl_real *gx, const rl_real *g, const rl_real *x);
rl_status rl_silu_backward(rl_ctx *ctx, rl_real *gx, const rl_real *g, const rl_real *x);
rl_status rl_gelu_backward(rl_ctx *ctx, rl_real *gx, const rl_real *g, const rl_real *x);
rl_status rl_gelu_tanh_backward(rl_ctx *ctx, rl_real *gx, const rl_real *g, const rl_real *x);

/* z[i] = f(x[i], y[i]); x and y broadcast to z's shape (aligned at the last axis); z may be x or y where their shapes are equal */
rl_status rl_add(rl_ctx *ctx, rl_real *z, const rl_real *x, const rl_real *y);
rl_status rl_sub(rl_ctx *ctx, rl_real *z, const rl_real *x, const rl_real *y);
rl_status rl_mul(rl_ctx *ctx, rl_real *z, const rl_real *x, const rl_real *y);
rl_status rl_div(rl_ctx *ctx, rl_real *z, const rl_real *x, const rl_real *y);
rl_status rl_pow(rl_ctx *ctx, rl_real *z, const rl_real *x, const rl_real *y);
/* NaN wins */
rl_status rl_maximum(rl_ctx *ctx, rl_real *z, const rl_real *x, const rl_real *y);
rl_status rl_minimum(rl_ctx *ctx, rl_real *z, const rl_real *x, const rl_real *y);

/* z = condition ? x : y, all three broadcast to z's shape */
rl_status rl_where(rl_ctx *ctx, rl_real *z, const rl_mask *condition, const rl_real *x, const rl_real *y);
/* y = value everywhere */
rl_status rl_fill(rl_ctx *ctx, rl_real *y, double value);
/* y = x, x broadcast to y's shape */
rl_status rl_copy(rl_ctx *ctx, rl_real *y, const rl_real *x);
/* y += x, x broadcast to y's shape */
rl_status rl_accumulate(rl_ctx *ctx, rl_real *y, const rl_real *x);

/* ---- reductions: y has x's rank, each of its axes is 1 (reduced) or x's own; sums run in a fixed order -------------------------- */

/* y = scale * sum(x).  An empty sum is 0. */
rl_status rl_sum(rl_ctx *ctx, rl_real *y, const rl_real *x, double scale);
/* y = largest (smallest) of x; NaN wins.  RL_VALUE_ERROR when a reduced axis is empty. */
rl_status rl_amax(rl_ctx *ctx, rl_real *y, const rl_real *x);
rl_status rl_amin(rl_ctx *ctx, rl_real *y, const rl_real *x);

/* ---- rows: x and y (..., D), contiguous ----------------------------------------------------------------------------------------- */

rl_status rl_softmax(rl_ctx *ctx, rl_real *y, const rl_real *x);
/* gx = y * (g - sum(g * y)) */
rl_status rl_softmax_backward(rl_ctx *ctx, rl_real *gx, const rl_real *g, const rl_real *y);
/* y = x - logsumexp(x) */
rl_status rl_log_softmax(rl_ctx *ctx, rl_real *y, const rl_real *x);
/* gx = g - exp(y) * sum(g) */
rl_status rl_log_softmax_backward(rl_ctx *ctx, rl_real *gx, const rl_real *g, const rl_real *y);
/* y (...) = log(sum(exp(x))); a row of -inf gives -inf */
rl_status rl_logsumexp(rl_ctx *ctx, rl_real *y, const rl_real *x);
/* gx = g * exp(x - y), g and y (...); 0 where y is -inf */
rl_status rl_logsumexp_backward(rl_ctx *ctx, rl_real *gx, const rl_real *g, const rl_real *x, const rl_real *y);

/* y = (x - mean) / sqrt(variance + eps) * weight + bias, biased two-pass variance; stats (R, 2) receives mean and 1 / sqrt(…) */
rl_status rl_layer_norm(rl_ctx *ctx, rl_real *y, rl_real *stats, const rl_real *x, const rl_real *RL_OPTIONAL weight,
                        const rl_real *RL_OPTIONAL bias, double eps);
/* gradients of rl_layer_norm; gx += residual when given (residual may be gx itself); gweight, gbias (D,) */
rl_status rl_layer_norm_backward(rl_ctx *ctx, rl_real *gx, rl_real *RL_OPTIONAL gweight, rl_real *RL_OPTIONAL gbias, const rl_real *g,
                                 const rl_real *x, const rl_real *stats, const rl_real *RL_OPTIONAL weight,
                                 const rl_real *RL_OPTIONAL residual);
/* y = x / sqrt(mean(x^2) + eps) * weight; stats (R, 2) receives 0 and 1 / sqrt(…) */
rl_status rl_rms_norm(rl_ctx *ctx, rl_real *y, rl_real *stats, const rl_real *x, const rl_real *RL_OPTIONAL weight, double eps);
rl_status rl_rms_norm_backward(rl_ctx *ctx, rl_real *gx, rl_real *RL_OPTIONAL gweight, const rl_real *g, const rl_real *x,
                               const rl_real *stats, const rl_real *RL_OPTIONAL weight, const rl_real *RL_OPTIONAL residual);

/* ---- channels: x and y (N, C, P), contiguous -------------------------------------------------------------------------------------- */

/* y = (x - mean) / sqrt(variance + eps) * weight + bias per channel, stats (C, 4) receives mean, biased variance, 1 / sqrt(…) and
 * what the mean lost when it was rounded.
 * training 1: of this batch, of 2 values per channel at least; then mean and variance (C,), the running ones, become (1 - momentum) times
 * themselves + momentum times the batch's (the variance unbiased) and batches (1,) counts one more: all or, where one would not stay
 * finite, nothing.  training 0: mean and variance are used, and must be there; there is never one without the other. */
rl_status rl_batch_norm(rl_ctx *ctx, rl_real *y, rl_real *stats, rl_real *RL_OPTIONAL mean, rl_real *RL_OPTIONAL variance,
                        rl_ints *RL_OPTIONAL batches, const rl_real *x, const rl_real *RL_OPTIONAL weight, const rl_real *RL_OPTIONAL bias,
                        double eps, double momentum, int64_t training);
/* gradients of rl_batch_norm; with training 0 mean and variance are constants */
rl_status rl_batch_norm_backward(rl_ctx *ctx, rl_real *gx, rl_real *RL_OPTIONAL gweight, rl_real *RL_OPTIONAL gbias, const rl_real *g,
                                 const rl_real *x, const rl_real *stats, const rl_real *RL_OPTIONAL weight, int64_t training);

/* y (..., D) = table[index], table (V, D) and y contiguous, index (...) any strides.  RL_INDEX_ERROR names the first bad index. */
rl_status rl_embedding(rl_ctx *ctx, rl_real *y, const rl_real *table, const rl_ints *index);
/* table[index[i]] += g[i], repeated indices add up in order; rows equal to skip are left alone (skip < 0: none) */
rl_status rl_embedding_backward(rl_ctx *ctx, rl_real *table, const rl_real *g, const rl_ints *index, int64_t skip);

/* ---- matrix product ------------------------------------------------------------------------------------------------------------- */

typedef enum { RL_IDENTITY, RL_RELU, RL_GELU, RL_GELU_TANH, RL_SILU } rl_activation;

/* C = f(scale * A B + bias) + residual, or C += scale * A B when accumulate is 1.
 * c (..., M, N), a (..., M, K), b (..., K, N) with any strides (so transposes cost no copy); leading axes broadcast to c's.
 * c's last axis must have stride 1.  bias (N,).  residual has c's shape.  f is `activation`, an rl_activation;
 * `pre`, c's shape, receives the argument of f.  row_sum (M,) receives the sums of scale * A's rows over K (2-D only): the bias gradient.
 */
rl_status rl_gemm(rl_ctx *ctx, rl_real *c, const rl_real *a, const rl_real *b, const rl_real *RL_OPTIONAL bias,
                  const rl_real *RL_OPTIONAL residual, rl_real *RL_OPTIONAL pre, rl_real *RL_OPTIONAL row_sum, double scale,
                  int64_t activation, int64_t accumulate);

/* ---- convolution ----------------------------------------------------------------------------------------------------------------- */

/* y (N, O, D', H', W') = f((w (O, C / groups, KD, KH, KW) * x (N, C, D, H, W) + bias (O,)) scale (O,) + residual), all contiguous; D, or D
 * and H, may be missing in all arrays.
 * (w * x)[n, o, i] = sum over c, k of w[o, c, k] * x[n, c of o's group, i * stride + k * dilation - padding], 0 outside of x.
 * geometry (3, 3): rows stride, padding before the first element, dilation; columns depth, height, width.  y's sizes say how much there is
 * behind the last.  residual has y's shape; f is `activation`, an rl_activation, of which RL_IDENTITY is none. */
rl_status rl_conv(rl_ctx *ctx, rl_real *y, const rl_real *x, const rl_real *w, const rl_real *RL_OPTIONAL bias,
                  const rl_real *RL_OPTIONAL scale, const rl_real *RL_OPTIONAL residual, const rl_ints *geometry, int64_t groups,
                  int64_t activation);
/* gradients of rl_conv: gx and gw are set, not added to; gbias (O,) is the sum of g over images and pixels */
rl_status rl_conv_backward_input(rl_ctx *ctx, rl_real *gx, const rl_real *g, const rl_real *w, const rl_ints *geometry, int64_t groups);
rl_status rl_conv_backward_weight(rl_ctx *ctx, rl_real *gw, rl_real *RL_OPTIONAL gbias, const rl_real *g, const rl_real *x,
                                  const rl_ints *geometry, int64_t groups);

/* ---- pooling: x (N, C, D, H, W), y (N, C, D', H', W'), contiguous ----------------------------------------------------------------- */

/* y = largest of each window, NaN wins; index, y's shape, receives its place in x's plane (the last of several NaN, the first of others).
 * geometry (4, 3): rows stride, padding before, dilation, window; what lies outside of x is not looked at. */
rl_status rl_max_pool(rl_ctx *ctx, rl_real *y, rl_ints *RL_OPTIONAL index, const rl_real *x, const rl_ints *geometry);
/* gx = 0, then gx[index] += g plane by plane.  RL_INDEX_ERROR names the first index outside. */
rl_status rl_max_pool_backward(rl_ctx *ctx, rl_real *gx, const rl_real *g, const rl_ints *index);
/* y = sum of each window / divisor (D', H', W') */
rl_status rl_avg_pool(rl_ctx *ctx, rl_real *y, const rl_real *x, const rl_real *divisor, const rl_ints *geometry);
rl_status rl_avg_pool_backward(rl_ctx *ctx, rl_real *gx, const rl_real *g, const rl_real *divisor, const rl_ints *geometry);

/* ---- attention ------------------------------------------------------------------------------------------------------------------ */

/* o = softmax(scale * q k^T + mask) v per head; q, o (B, H, T, K), k (B, G, S, K), v (B, G, S, K), H a multiple of G (query head h
 * reads key head h / (H / G)); last axis of stride 1, other strides free.  causal: key j only where j <= i.  keep / bias (B, H, T, S)
 * with strides of 0 where they broadcast: keep 0 hides a key, bias is added to the score.  A row without any key gives zeros.
 * lse (B, H, T) contiguous receives log(sum(exp(score))), -inf for such a row.  No T x S buffer is made.
 * With p > 0 each weight of the softmax is dropped with probability p (in steps of 2^-32), the others divided by 1 - p; p = 1 gives zeros.
 * state is a generator's (see below), drawn (2,) receives a copy of it for the backward pass.  Weight (b, h, t, s) is kept by word s of row
 * (b, h, t), each row taking ceil(S / 64) * 16 blocks of four, whatever is hidden; state moves behind all rows.  With p = 0 neither is
 * touched. */
rl_status rl_attention(rl_ctx *ctx, rl_real *o, rl_real *lse, const rl_real *q, const rl_real *k, const rl_real *v,
                       const rl_mask *RL_OPTIONAL keep, const rl_real *RL_OPTIONAL bias, double scale, int64_t causal,
                       rl_bits *RL_OPTIONAL state, rl_bits *RL_OPTIONAL drawn, double p);
/* gradients, under the same dropout; gq, gk, gv have the shapes of q, k, v and strides of their own (last axis stride 1) */
rl_status rl_attention_backward(rl_ctx *ctx, rl_real *gq, rl_real *gk, rl_real *gv, const rl_real *g, const rl_real *q, const rl_real *k,
                                const rl_real *v, const rl_real *o, const rl_real *lse, const rl_mask *RL_OPTIONAL keep,
                                const rl_real *RL_OPTIONAL bias, double scale, int64_t causal, const rl_bits *RL_OPTIONAL drawn, double p);

/* ---- losses --------------------------------------------------------------------------------------------------------------------- */

/* Per row r: loss[r] = logsumexp(logits[r]) - logits[r, target[r]], 0 where target[r] == ignore_index.
 * logits (R, V) with contiguous rows, target (R,).  log_total (R, 2): logsumexp as two terms, the largest logit and the rest, so that the
 * gradient loses no digit to a large one.  valid (1,): the number of rows counted.  reduced (1,): the sum of loss in row order, with mean 1
 * over max(valid, 1).  RL_INDEX_ERROR names the first target outside [0, V). */
rl_status rl_cross_entropy(rl_ctx *ctx, rl_real *loss, rl_real *log_total, rl_real *reduced, rl_real *valid, const rl_real *logits,
                           const rl_ints *target, int64_t ignore_index, int64_t mean);
/* glogits[r] = w[r] * (softmax(logits[r]) - onehot(target[r])), 0 for ignored rows; w = g[r] when g has R elements and divide is NULL;
 * with g of one element w = g / max(divide[0], 1), or g when divide is NULL.  glogits may be logits. */
rl_status rl_cross_entropy_backward(rl_ctx *ctx, rl_real *glogits, const rl_real *g, const rl_real *logits, const rl_ints *target,
                                    const rl_real *log_total, const rl_real *RL_OPTIONAL divide, int64_t ignore_index);

/* ---- optimizers: all parameters in one call; every list has the same length, all views contiguous ------------------------------- */

/* step[0] += 1, then per element, with lr and step read from one-element views:
 *   g += weight_decay * p (decoupled 0)  or  p -= lr * weight_decay * p (decoupled 1)
 *   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;  p -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) */
rl_status rl_adam(rl_ctx *ctx, rl_list *p, const rl_list *g, rl_list *m, rl_list *v, rl_list *step, const rl_real *lr, double beta1,
                  double beta2, double eps, double weight_decay, int64_t decoupled, int64_t maximize);
/* g += weight_decay * p;  momentum != 0: on step 1 buffer = g, later buffer = momentum buffer + (1 - dampening) g;
 * g = nesterov ? g + momentum buffer : buffer;  p -= lr g.  step (one element per parameter) counts the calls. */
rl_status rl_sgd(rl_ctx *ctx, rl_list *p, const rl_list *g, rl_list *buffer, rl_list *step, const rl_real *lr, double momentum,
                 double dampening, double weight_decay, int64_t nesterov, int64_t maximize);
/* norm[0] = sqrt(sum of squares over all views), added up in float64; then every g *= max_norm / (norm + 1e-6) if that is below 1.
 * max_norm < 0 only measures.  A norm that is not finite changes nothing. */
rl_status rl_clip_grad_norm(rl_ctx *ctx, rl_real *norm, rl_list *g, double max_norm);

/* ---- random numbers: Philox 4x32-10 --------------------------------------------------------------------------------------------- */

/* state (2,) = seed, offset; a call advances the offset by the blocks of four words it used. */
/* Number i of a call depends on seed, offset and i only, never on the number of threads.  y contiguous. */

/* uniform in [low, high): 24 (float32) or 53 (float64) random bits */
rl_status rl_random_uniform(rl_ctx *ctx, rl_real *y, rl_bits *state, double low, double high);
/* Box-Muller on pairs */
rl_status rl_random_normal(rl_ctx *ctx, rl_real *y, rl_bits *state, double mean, double std);
/* integers in [low, high) by multiplication of 64 random bits */
rl_status rl_random_integers(rl_ctx *ctx, rl_ints *y, rl_bits *state, int64_t low, int64_t high);
/* keep[i] = u >= p;  y = keep ? x / (1 - p) : 0.  x, y, keep contiguous, same shape; p in [0, 1], p = 1 gives zeros */
rl_status rl_dropout(rl_ctx *ctx, rl_real *y, rl_mask *keep, const rl_real *x, rl_bits *state, double p);
rl_status rl_dropout_backward(rl_ctx *ctx, rl_real *gx, const rl_real *g, const rl_mask *keep, double p);

#ifdef __cplusplus
}
#endif
#endif
