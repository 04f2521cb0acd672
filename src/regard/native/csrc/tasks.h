// The tasks of a call on one thread.

#pragma once

#include <new>

#include "amx.h"
#include "call.h"

namespace regard {

// A task is a chunk of a head, or of several, one after another, where they add to the same sums.
inline int64_t batch_tasks(const Call& call) {
    return call.sums_batch ? 1 : call.matrix.batch;
}
inline int64_t head_tasks(const Call& call) {
    return call.sums_heads ? 1 : call.matrix.heads;
}
inline int64_t count_tasks(const Call& call) {
    return batch_tasks(call) * head_tasks(call) * call.chunks;
}

// Add up the chunks of each head, (heads, chunks, rows, columns), in order; the total's rows are `stride` apart.
inline void add_chunks(const float* from, int64_t heads, int64_t chunks, int64_t rows, int64_t columns, float* total,
                       int64_t stride) {
    for (int64_t head = 0; head < heads; head++, total += rows * stride)
        for (int64_t chunk = 0; chunk < chunks; chunk++)
            for (int64_t row = 0; row < rows; row++, from += columns)
                for (int64_t c = 0; c < columns; c++) {
                    float* to = total + row * stride + c;
                    *to = chunk ? *to + from[c] : from[c];
                }
}

// Compute the tasks from first to last with `Forward` or `Backward`, the chunks of a head in a row.
// Returns 0, or 1 if there is not enough memory.
template <typename Pass>
int run_tasks(const Call& call, int64_t first, int64_t last) {
    try {
        const AmxTiles tiles;
        Pass pass(call);
        for (int64_t task = first; task < last; task++) {
            const int64_t head = task / call.chunks;
            for (int64_t b = head / head_tasks(call); b < call.matrix.batch; b += batch_tasks(call))
                for (int64_t h = head % head_tasks(call); h < call.matrix.heads; h += head_tasks(call))
                    pass.run(b, h, task % call.chunks);
        }
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}

}  // namespace regard
