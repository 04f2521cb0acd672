// The softmax of a row, and the sums that it leaves behind.

#pragma once

#include <cmath>
#include <cstring>

#include "simd.h"

namespace regard {

// With e_j = exp(s_j - shift), the weight of a key is e_j * factor.
struct RowSums {
    float largest;    // score; -inf in a row without keys
    float shift;      // the larger one of it and the sink
    float log_total;  // of the sum of all e_j, and of the sink's
    float factor;     // 1 / that sum; 0 in a row without keys
    float sum, dot;   // of e_j, and of e_j * (s_j - shift)
    float sink;       // weight of the sink
};

inline bool has_nan(const float* row, int64_t count) {
    for (int64_t j = 0; j < count; j++)
        if (row[j] != row[j]) return true;
    return false;
}

constexpr float LOWEST = -100.0f;  // below it the exponential is 0

// Replace the scores of a row by their exponentials, those of the cells from `count` to `padded` by 0.
//
// shifted: where s_j - shift goes, times `slope`; null if it is not needed.
template <bool SHIFTED = false>
RowSums softmax(float* row, int64_t count, int64_t padded, float sink, float* shifted = nullptr, float slope = 0) {
    Floats most = broadcast(-INFINITY), more = most;
    for (int64_t j = 0; j < count; j += 2 * LANES) {
        most = larger(load(row + j), most);
        more = larger(load(row + j + LANES), more);
    }
    if (count < padded) {
        std::memset(row + count, 0, 4 * (padded - count));
        if (SHIFTED) std::memset(shifted + count, 0, 4 * (padded - count));
    }
    RowSums sums{};
    sums.largest = largest_of(larger(most, more));
    sums.shift = sums.largest > sink ? sums.largest : sink;
    if (sums.largest == -INFINITY && !has_nan(row, count)) {
        std::memset(row, 0, 4 * count);
        if (SHIFTED) std::memset(shifted, 0, 4 * count);
    } else {
        Floats totals[2] = {}, dots[2] = {};
        const Floats lowest = broadcast(LOWEST);
        for (int64_t j = 0; j < count; j += 2 * LANES) {
            for (int v = 0; v < 2; v++) {
                const Floats x = load(row + j + v * LANES) - sums.shift, e = exp(x), bounded = larger(x, lowest);
                store(row + j + v * LANES, e);
                if (SHIFTED) store(shifted + j + v * LANES, bounded * slope);
                totals[v] += e;
                dots[v] += e * bounded;
            }
        }
        sums.sum = sum_of(totals[0] + totals[1]);
        sums.dot = sum_of(dots[0] + dots[1]);
    }
    const float of_sink = sink == -INFINITY ? 0.0f : std::exp(sink - sums.shift);
    const float total = sums.sum + of_sink;
    sums.factor = total == 0 ? 0 : 1 / total;
    sums.log_total = std::log(total);
    sums.sink = of_sink * sums.factor;
    return sums;
}

}  // namespace regard
