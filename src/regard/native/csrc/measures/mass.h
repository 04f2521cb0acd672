// The sum of the weights that a mask allows.

#pragma once

#include "base.h"

namespace regard {

class Mass : public RowMeasure {
  public:
    using RowMeasure::RowMeasure;

    float value(const Row& row) override {
        Floats total = {};
        for_allowed(row, [&](int64_t column, uint64_t bits) {
            Floats sum = {};
            for (int64_t j = 0; j < KEY_BLOCK; j += LANES)
                sum += select(bits >> j, load(row.exponentials + column + j), Floats{});
            total += sum;
        });
        return sum_of(total) * row.sums.factor;
    }

    void gradient_row(const Row& row, const float* gradient, float* to) override {
        for_allowed(row, [&](int64_t column, uint64_t bits) {
            for (int64_t j = column; j < column + KEY_BLOCK; j += LANES)
                store(to + j, load(to + j) + select(bits >> (j - column), broadcast(*gradient), Floats{}));
        });
    }

  private:
    // Call a function with the column of each block and its mask, unless that is 0.
    template <typename Function>
    void for_allowed(const Row& row, Function function) const {
        const Scores& scores = row.rows.scores;
        const MaskRow mask(call.mask, scores.matrix.keys, scores.b, scores.h, scores.first + row.r, row.position);
        for (int64_t a = 0; a < row.rows.num_blocks(); a++)
            if (const uint64_t bits = mask.bits(row.rows.first_key(a))) function(a * KEY_BLOCK, bits);
    }
};

}  // namespace regard
