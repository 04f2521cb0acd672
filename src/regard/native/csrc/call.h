// One call as Python passes it: pointers, sizes and strides. `library.py` has the same structures; keep them in step.

#pragma once

#include <cstdint>

#define REGARD_EXPORT extern "C" __attribute__((visibility("default")))

namespace regard {

enum Dtype : int64_t { FLOAT32, BFLOAT16, FLOAT16 };

// A tensor of up to four axes; strides are in elements, and 0 where it is broadcast.
struct Strided {
    const void* data;
    int64_t batch, head, row, column;
    Dtype dtype;  // of floating-point tensors
};

// The kinds of steps and their numbers. `regard_kinds` returns the names, by which Python checks that it has the same.
#define REGARD_ENUMERATE(NAME) NAME,
#define REGARD_QUOTE(NAME) #NAME " "

#define REGARD_MASK_KINDS(KIND)                                                                     \
    KIND(WINDOW)        /* keys from position - left to position + right; UNLIMITED for no limit */ \
    KIND(RANGES)        /* keys from first[b, h, i] to second[b, h, i], exclusive; no data is 0 */  \
    KIND(SAME_DOCUMENT) /* keys whose second[b, j] is the query's first[b, i] */                    \
    KIND(DENSE)         /* where first[b, h, i, j] is not 0; bool */                                \
    KIND(AND) KIND(OR) KIND(NOT)

#define REGARD_SCORE_KINDS(KIND)                                                                             \
    KIND(ADD_BIAS)           /* + values[b, h, i, j] */                                                      \
    KIND(ADD_DISTANCES)      /* + values[h, j - position + shift] */                                         \
    KIND(ADD_RELATIVE_KEY)   /* + scale * query . values[b, h, clip(j - position, -shift, shift) + shift] */ \
    KIND(ADD_RELATIVE_QUERY) /* + scale * key . values[b, h, clip(j - position, -shift, shift) + shift] */   \
    KIND(SOFT_CAP)           /* cap * tanh(score / cap) */

// A step of a mask, in postfix order; `first` and `second` mean what the kind says.
enum MaskKind : int64_t { REGARD_MASK_KINDS(REGARD_ENUMERATE) };

constexpr int64_t UNLIMITED = INT64_MIN;

struct MaskStep {
    MaskKind kind;
    int64_t left, right;
    Strided first, second;  // int64, except for DENSE
};

struct Mask {
    int64_t count;
    const MaskStep* steps;
};

// A step that changes the scores of a row, in order.
enum ScoreKind : int64_t { REGARD_SCORE_KINDS(REGARD_ENUMERATE) };

struct ScoreStep {
    ScoreKind kind;
    float cap;
    int64_t shift;
    Strided values;                         // float32
    float* gradient;                        // of the values; null if it is not needed
    int64_t gradient_batch, gradient_head;  // ADD_BIAS: its strides, 0 where it is a sum
};

// What the weights are made from.
struct Matrix {
    int64_t kv_head(int64_t head) const { return head / (heads / kv_heads); }

    int64_t batch, heads, kv_heads, queries, keys, head_dim;
    Strided query, key;  // (b, h, i, feature)
    float scale;
    int64_t offset;
    const int64_t *batch_index, *head_index, *row_index;  // of mask and scores; null for all in order
    Mask mask;
    int64_t score_steps;
    const ScoreStep* scores;
    const float* sinks;  // (heads,), or null
};

// A measure, its results and, in a backward pass, what the result's gradient is. Its class in `measures` says what the
// numbers and tensors mean; the kind is the class's place in the list MEASURES of measures/all.h.
struct MeasureCall {
    int64_t kind;
    int64_t number, height, width;
    Strided values, row_groups, key_groups;
    Mask mask;
    const Matrix* other;
    float* result;  // contiguous, except for the sums over rows, which are `stride` apart
    void* second;
    float* by_chunk;  // of sums over rows, where there are several chunks
    int64_t stride;
    // Backward: contiguous, float32.
    const float *gradient, *second_gradient;
    float* values_gradient;  // (b, h, i)
};

struct Call {
    int64_t value_head(int64_t head) const { return head / (matrix.heads / value_heads); }

    Matrix matrix;
    int64_t value_heads, value_dim;
    Strided value, output;  // value.data is null where there is none
    int64_t measure_count;
    const MeasureCall* measures;
    double dropout;  // probability
    uint64_t seed;
    int64_t chunks, chunk_rows;      // the queries of a head are cut into chunks
    int64_t cache_bytes;             // of a core's second-level cache
    int64_t sums_batch, sums_heads;  // whether a gradient is a sum over them, so that a task has them all
    // Backward: the output's gradient; sums of float32 by head and chunk, (b, h, chunks, ...), null if not needed.
    Strided output_gradient;
    const float* saved_lse;  // (b, h, queries), with the sinks, from the forward pass; or null
    float *query_gradient, *key_gradient, *value_gradient, *sinks_gradient;
    float *key_total, *value_total;  // (b, kv_heads or value_heads, keys, ...)
};

constexpr int64_t LINEAR_OUTPUTS = 4;  // features of y in a task

// y = x Wᵀ + b for a few rows of x. Rows are contiguous, and all tensors are float32 or all bfloat16.
struct LinearCall {
    int64_t rows, in_features, out_features;
    const void *x, *weight, *bias;  // bias is null where there is none
    void* y;
    Dtype dtype;
};

constexpr int64_t GELU_ELEMENTS = 4096;  // of a task

// y = GELU(x) with tanh or, where there is a gradient, y = GELU'(x) * gradient. All are contiguous, float32 or
// bfloat16.
struct GeluCall {
    int64_t count;
    const void *x, *gradient;
    void* y;
    Dtype dtype;
};

}  // namespace regard
