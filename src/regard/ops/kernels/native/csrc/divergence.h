// The logarithms of weights, less those of another matrix of the same shape.

#pragma once

#include "scores.h"
#include "softmax.h"

namespace regard {

class Divergence {
  public:
    Divergence(const Measure& measure, const Scores& scores, int64_t width)
        : measure(measure),
          scores(scores),
          width(width),
          other(*measure.other, scores.max_rows),
          own(allocate(scores.max_rows * width)),
          terms(allocate(scores.max_rows * KEY_BLOCK)) {}

    void pack(int64_t b, int64_t h) { other.pack(b, h); }

    // While the cells are scores.
    void before_softmax(const float* cells) {
        std::memcpy(own.get(), cells, 4 * scores.rows * width);
        other.set_rows(scores.b, scores.h, scores.first, scores.rows, scores.active);
    }

    // log P - log Q for an active block of keys: rows of KEY_BLOCK numbers, 0 where P is 0.
    const float* compute(size_t a, const float* weights, const RowSums* rows) {
        other.compute(a, terms.get(), KEY_BLOCK);
        for (int64_t r = 0; r < scores.rows; r++) {
            const float lse = *at<float>(measure.values, scores.b, scores.h, scores.first + r);
            const float other_lse = lse == -INFINITY ? 0 : lse;  // a row without keys: all its scores are -inf
            for (int64_t j = 0; j < KEY_BLOCK; j += LANES) {
                const int64_t cell = r * width + a * KEY_BLOCK + j;
                float* term = terms.get() + r * KEY_BLOCK + j;
                const Floats log = load(own.get() + cell) - rows[r].shift - rows[r].log_total;
                store(term, load(weights + cell) == 0.0f ? Floats{} : log - (load(term) - other_lse));
            }
        }
        return terms.get();
    }

  private:
    const Measure& measure;
    const Scores& scores;
    const int64_t width;
    Scores other;
    FloatArray own, terms;
};

}  // namespace regard
