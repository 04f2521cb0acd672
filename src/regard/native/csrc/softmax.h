// The softmax of a row, and the sums that it leaves behind.

#pragma once

#include <cmath>
#include <cstring>

#include "simd.h"

namespace regard {

// With e_j = exp(s_j - shift), the weight of a key is e_j * factor; all are NaN where a score is.
struct RowSums {
    float largest;    // score; -inf in a row without keys; 0 where the log-sum-exp was known
    float shift;      // the larger one of it and the sink, or the known log-sum-exp
    float log_total;  // of the sum of all e_j, and of the sink's
    float factor;     // 1 / that sum; 0 in a row without keys
    float sum, dot;   // of e_j, and of e_j * (s_j - shift)
    float sink;       // weight of the sink
    bool is_nan;      // whether a score is NaN or infinity
};

inline bool has_nan(const float* row, int64_t count) {
    for (int64_t j = 0; j < count; j++)
        if (row[j] != row[j]) return true;
    return false;
}

constexpr float LOWEST = -100.0f;  // below it the exponential is 0

// Three steps: find the largest of all scores, `start`, `exponentiate` all scores, in any number of blocks of whole
// pairs of vectors.
class Softmax {
  public:
    void clear() { most[0] = most[1] = broadcast(-INFINITY); }

    void find_largest(const float* scores, int64_t count) {
        Floats a = most[0], b = most[1];
        for (int64_t j = 0; j < count; j += 2 * LANES) {
            a = larger(load(scores + j), a);
            b = larger(load(scores + j + LANES), b);
        }
        most[0] = a, most[1] = b;
    }

    // `row` has all scores.
    void start(const float* row, int64_t count, float sink) {
        const float largest = largest_of(larger(most[0], most[1]));
        start(largest > sink ? largest : sink, largest == -INFINITY && !has_nan(row, count), sink);
        sums.largest = largest;
    }

    // The same where the log-sum-exp is known: it takes the place of the largest score, which is not needed.
    void start(float lse, float sink) { start(lse, lse == -INFINITY, sink); }

    // Replace scores by their exponentials, and those from `count` to `padded` by 0.
    //
    // shifted: where s_j - shift goes, times `slope`; null if it is not needed.
    // bf16_pairs: where the exponentials go in bfloat16, too; null if they are not needed.
    template <bool SHIFTED = false, bool BF16 = false>
    void exponentiate(float* scores, int64_t count, int64_t padded, float* shifted = nullptr, float slope = 0,
                      float* bf16_pairs = nullptr) {
        const Floats lowest = broadcast(LOWEST), shift = broadcast(subtracted);
        Floats total[2] = {totals[0], totals[1]}, dot[2] = {dots[0], dots[1]};  // in registers
        for (int64_t j = 0; j < count; j += 2 * LANES) {
            Floats e[2];
            for (int v = 0; v < 2; v++) {
                const Floats x = larger(lowest, load(scores + j + v * LANES) - shift);  // NaN stays NaN
                e[v] = exp(x);
                store(scores + j + v * LANES, e[v]);
                if (SHIFTED) store(shifted + j + v * LANES, x * slope);
                total[v] += e[v];
                dot[v] += e[v] * x;
            }
            if (BF16) store_bf16_pairs(bf16_pairs + j / 2, e[0], e[1]);
        }
        for (int v = 0; v < 2; v++) totals[v] = total[v], dots[v] = dot[v];
        if (count >= padded) return;
        std::memset(scores + count, 0, 4 * (padded - count));
        if (SHIFTED) std::memset(shifted + count, 0, 4 * (padded - count));
        if (BF16) std::memset(bf16_pairs + count / 2, 0, 2 * (padded - count));
    }

    RowSums finish() {
        sums.dot = sum_of(dots[0] + dots[1]);
        sums.sum = sums.dot != sums.dot ? NAN : sum_of(totals[0] + totals[1]);  // exp(NaN) is any number
        const float sink_exponential = sink == -INFINITY ? 0.0f : std::exp(sink - sums.shift);
        const float total = sums.sum + sink_exponential;
        sums.factor = total == 0 ? 0 : 1 / total;
        sums.log_total = std::log(total);
        sums.sink = sink_exponential * sums.factor;
        sums.is_nan = total != total;
        return sums;
    }

  private:
    // Subtracting infinity from all scores of a row without keys makes their exponentials 0.
    void start(float shift, bool is_empty, float sink) {
        sums = {};
        sums.shift = shift;
        subtracted = is_empty ? INFINITY : shift;
        this->sink = sink;
        for (int v = 0; v < 2; v++) totals[v] = dots[v] = Floats{};
    }

    Floats most[2], totals[2], dots[2];
    float subtracted, sink;
    RowSums sums;
};

}  // namespace regard
