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
};

// A step of a mask, in postfix order; `first` and `second` mean what the kind says.
enum MaskKind : int64_t {
    WINDOW,  // keys from position - left to position + right; UNLIMITED for no limit
    RANGES,  // keys from first[b, h, i] to second[b, h, i], exclusive; int64; no data is 0
    SAME,    // keys whose second[b, j] is the query's first[b, i]; int64
    CELLS,   // where first[b, h, i, j] is 1; bool
    AND,
    OR,
    NOT,
};

constexpr int64_t UNLIMITED = INT64_MIN;

struct MaskStep {
    MaskKind kind;
    int64_t left, right;
    Strided first, second;
};

// A step that changes the scores of a row, in order.
enum ScoreKind : int64_t {
    ADD_CELLS,      // + values[b, h, i, j]; float32
    ADD_DISTANCES,  // + values[h, j - position + shift]; float32
    SOFT_CAP,       // cap * tanh(score / cap)
};

struct ScoreStep {
    ScoreKind kind;
    float cap;
    int64_t shift;
    Strided values;
};

// Sums over the rows of a head: sums[b, h, j] = sum over i of weights[b, h, i] P[b, h, i, j].
struct ColumnSums {
    Strided weights;  // float32; no data is 1
    float* sums;      // (b, h, keys), contiguous
    float* by_chunk;  // (b, h, chunks, keys), where there are several chunks
};

struct Call {
    int64_t batch, heads, kv_heads, value_heads, queries, keys, head_dim, value_dim;
    Dtype dtype;
    Strided query, key, value, output;  // (b, h, i, feature); value.data is null where there is none
    float scale;
    int64_t offset;
    const int64_t *batch_index, *head_index, *row_index;  // of masks and scores; null for all in order
    int64_t mask_steps, score_steps;
    const MaskStep* mask;
    const ScoreStep* scores;
    const float* sinks;  // (heads,), or null
    float *lse, *entropy;  // (b, h, i), contiguous; null where not requested
    int64_t column_sums;
    const ColumnSums* columns;
    int64_t chunks;       // into which the queries of a head are cut
    int64_t cache_bytes;  // of a core, for a block of rows
};

}  // namespace regard
