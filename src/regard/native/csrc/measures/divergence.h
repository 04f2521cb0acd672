// sum of P (log P - log Q), where Q are the weights of another matrix of the same shape, and `values` its lse.

#pragma once

#include "base.h"

namespace regard {

class KLDivergence : public Measure {
  public:
    KLDivergence(const MeasureCall& call, const Rows& rows)
        : Measure(call, rows),
          other(*call.other, rows.scores.max_rows),
          scores_of_rows(allocate(rows.scores.max_rows * rows.width)),
          terms(allocate(rows.scores.max_rows * KEY_BLOCK)) {}

    void start(int64_t b, int64_t h) override { other.pack(b, h); }

    void before_softmax(const Rows& rows) override {
        std::memcpy(scores_of_rows.get(), rows.weights, 4 * rows.count() * rows.width);
        other.set_rows(rows.scores);
    }

    void forward(const Rows& rows) override {
        for (int64_t r = 0; r < rows.count(); r++) call.result[rows.scores.row_offset(r)] = 0;
        for (int64_t a = 0; a < rows.num_blocks(); a++) {
            compute_terms(rows, a);
            for (int64_t r = 0; r < rows.count(); r++) {
                Floats sum = {};
                for (int64_t j = 0; j < KEY_BLOCK; j += LANES)
                    sum += load(rows.row(r) + a * KEY_BLOCK + j) * load(terms.get() + r * KEY_BLOCK + j);
                call.result[rows.scores.row_offset(r)] += sum_of(sum) * rows.sums[r].factor;
            }
        }
    }

    // log P - log Q + 1, 0 where P is 0.
    void gradient(const Rows& rows, float* grad_weights) override {
        for (int64_t a = 0; a < rows.num_blocks(); a++) {
            compute_terms(rows, a);
            for (int64_t r = 0; r < rows.count(); r++) {
                const float gradient = call.gradient[rows.scores.row_offset(r)];
                if (gradient == 0) continue;  // a row that is left out may have infinite terms
                for (int64_t j = 0; j < KEY_BLOCK; j += LANES) {
                    float* to = grad_weights + r * rows.width + a * KEY_BLOCK + j;
                    store(to, load(to) + gradient * (load(terms.get() + r * KEY_BLOCK + j) + 1.0f));
                }
            }
        }
    }

  private:
    // log P - log Q for an active block of keys: rows of KEY_BLOCK numbers, 0 where P is 0.
    void compute_terms(const Rows& rows, int64_t a) {
        other.compute(a, terms.get(), KEY_BLOCK);
        for (int64_t r = 0; r < rows.count(); r++) {
            const float lse = *at<float>(call.values, rows.scores.b, rows.scores.h, rows.scores.first + r);
            const float other_lse = lse == -INFINITY ? 0 : lse;  // a row without keys: all its scores are -inf
            const float *weights = rows.row(r) + a * KEY_BLOCK,
                        *scores = scores_of_rows.get() + r * rows.width + a * KEY_BLOCK;
            float* to = terms.get() + r * KEY_BLOCK;
            for (int64_t j = 0; j < KEY_BLOCK; j += LANES) {
                const Floats log = load(scores + j) - rows.sums[r].shift - rows.sums[r].log_total;
                store(to + j, load(weights + j) == 0.0f ? Floats{} : log - (load(to + j) - other_lse));
            }
        }
    }

    Scores other;
    FloatArray scores_of_rows, terms;
};

}  // namespace regard
