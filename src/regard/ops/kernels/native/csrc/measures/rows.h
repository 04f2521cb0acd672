// Measures of a row that follow from its sums, or from the distances of its keys.

#pragma once

#include "base.h"

namespace regard {

// -sum of P log P, where log P = score - shift - log_total.
class Entropy : public RowMeasure {
  public:
    using RowMeasure::RowMeasure;

    void forward_row(const Rows& rows, int64_t r, float* to) override {
        const RowSums& sums = rows.sums[r];
        const float entropy = (sums.log_total * sums.sum - sums.dot) * sums.factor;
        *to = sums.sum == 0 || entropy < 0 ? 0 : entropy;  // NaN stays NaN
    }

    void gradient_of_sums(const Rows& rows, RowGradient* to) override {
        for (int64_t r = 0; r < rows.count(); r++) to[r].entropy += call.gradient[rows.scores.row_offset(r)];
    }

    bool has_entropy() const override { return true; }
};

class LogSumExp : public RowMeasure {
  public:
    using RowMeasure::RowMeasure;

    void forward_row(const Rows& rows, int64_t r, float* to) override {
        const RowSums& sums = rows.sums[r];
        *to = sums.factor == 0 ? -INFINITY : sums.shift + sums.log_total;
    }

    void gradient_of_sums(const Rows& rows, RowGradient* to) override {
        for (int64_t r = 0; r < rows.count(); r++) to[r].lse += call.gradient[rows.scores.row_offset(r)];
    }
};

class MeanDistance : public RowMeasure {
  public:
    using RowMeasure::RowMeasure;

    void forward_row(const Rows& rows, int64_t r, float* to) override {
        Floats lane;
        for (int l = 0; l < LANES; l++) lane[l] = l;
        const int64_t position = rows.scores.position(r);
        Floats total = {};
        for (int64_t a = 0; a < rows.num_blocks(); a++) {
            const Floats start = lane + static_cast<float>(rows.first_key(a) - position);
            Floats sum = {};
            for (int64_t j = 0; j < KEY_BLOCK; j += LANES) {
                const Floats distance = start + static_cast<float>(j);
                sum += load(rows.row(r) + a * KEY_BLOCK + j) * (distance < 0.0f ? -distance : distance);
            }
            total += sum;
        }
        *to = sum_of(total) * rows.sums[r].factor;
    }

    void gradient_row(const Rows& rows, int64_t r, const float* gradient, float* row) override {
        const int64_t position = rows.scores.position(r);
        add_for_keys(rows, row, [&](int64_t key) { return *gradient * std::abs(key - position); });
    }
};

// The weight at a distance, `number`.
class Diagonal : public RowMeasure {
  public:
    using RowMeasure::RowMeasure;

    void forward_row(const Rows& rows, int64_t r, float* to) override {
        const int64_t column = rows.column_of(rows.scores.position(r) + call.number);
        *to = column < 0 ? 0 : rows.row(r)[column] * rows.sums[r].factor;
    }

    void gradient_row(const Rows& rows, int64_t r, const float* gradient, float* row) override {
        const int64_t column = rows.column_of(rows.scores.position(r) + call.number);
        if (column >= 0) row[column] += *gradient;
    }
};

// The weights at each distance up to `number`; the first and last also have all beyond.
class DistanceHistogram : public RowMeasure {
  public:
    DistanceHistogram(const MeasureCall& call, const Rows& rows) : RowMeasure(call, rows, 2 * call.number + 1) {}

    void forward_row(const Rows& rows, int64_t r, float* to) override {
        const int64_t reach = call.number, position = rows.scores.position(r), keys = rows.scores.matrix.keys;
        const float factor = rows.sums[r].factor;
        if (reach == 0) {
            to[0] = sum_between(rows, r, 0, keys) * factor;
            return;
        }
        to[0] = sum_between(rows, r, 0, position - reach + 1) * factor;
        for (int64_t d = 1 - reach; d < reach; d++) {
            const int64_t column = rows.column_of(position + d);
            to[reach + d] = column < 0 ? 0 : rows.row(r)[column] * factor;
        }
        to[2 * reach] = sum_between(rows, r, position + reach, keys) * factor;
    }

    void gradient_row(const Rows& rows, int64_t r, const float* gradient, float* row) override {
        const int64_t reach = call.number, position = rows.scores.position(r);
        add_for_keys(rows, row,
                     [&](int64_t key) { return gradient[reach + std::clamp(key - position, -reach, reach)]; });
    }

  private:
    static float sum_between(const Rows& rows, int64_t r, int64_t start, int64_t stop) {
        float total = 0;
        rows.for_keys(start, stop, [&](int64_t first, int64_t last, int64_t column) {
            float sum = 0;
            for (int64_t j = 0; j < last - first; j++) sum += rows.row(r)[column + j];
            total += sum;
        });
        return total;
    }
};

// The weights of `width` keys, from `number` on. The result is zero where no block is active.
class Select : public RowMeasure {
  public:
    Select(const MeasureCall& call, const Rows& rows) : RowMeasure(call, rows, call.width) {}

    void forward_row(const Rows& rows, int64_t r, float* to) override {
        rows.for_keys(call.number, call.number + call.width, [&](int64_t first, int64_t last, int64_t column) {
            for (int64_t j = 0; j < last - first; j++)
                to[first - call.number + j] = rows.row(r)[column + j] * rows.sums[r].factor;
        });
    }

    void gradient_row(const Rows& rows, int64_t, const float* gradient, float* row) override {
        rows.for_keys(call.number, call.number + call.width, [&](int64_t first, int64_t last, int64_t column) {
            for (int64_t j = 0; j < last - first; j++) row[column + j] += gradient[first - call.number + j];
        });
    }
};

}  // namespace regard
