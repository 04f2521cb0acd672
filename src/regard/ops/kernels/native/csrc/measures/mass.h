// The sum of the weights that a mask allows.

#pragma once

#include "base.h"

namespace regard {

class Mass : public RowMeasure {
  public:
    using RowMeasure::RowMeasure;

    void forward_row(const Rows& rows, int64_t r, float* to) override {
        const MaskRow mask = mask_of(rows.scores, r);
        Floats total = {};
        for (int64_t a = 0; a < rows.num_blocks(); a++) {
            const uint64_t bits = mask.bits(rows.first_key(a));
            if (!bits) continue;
            Floats sum = {};
            for (int64_t j = 0; j < KEY_BLOCK; j += LANES)
                sum += select(bits >> j, load(rows.row(r) + a * KEY_BLOCK + j), Floats{});
            total += sum;
        }
        *to = sum_of(total) * rows.sums[r].factor;
    }

    void gradient_row(const Rows& rows, int64_t r, const float* gradient, float* row) override {
        const MaskRow mask = mask_of(rows.scores, r);
        for (int64_t a = 0; a < rows.num_blocks(); a++) {
            const uint64_t bits = mask.bits(rows.first_key(a));
            for (int64_t j = 0; j < KEY_BLOCK; j += LANES) {
                float* to = row + a * KEY_BLOCK + j;
                store(to, load(to) + select(bits >> j, broadcast(*gradient), Floats{}));
            }
        }
    }

  private:
    MaskRow mask_of(const Scores& scores, int64_t r) const {
        return MaskRow(call.mask, scores.matrix.keys, scores.b, scores.h, scores.first + r, scores.position(r));
    }
};

}  // namespace regard
