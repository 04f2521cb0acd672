// Measures of a row that follow from its sums, or from the distances of its keys.

#pragma once

#include "base.h"

namespace regard {

// -sum of P log P, where log P = score - shift - log_total.
class Entropy : public RowMeasure {
  public:
    using RowMeasure::RowMeasure;

    float value(const Row& row) override {
        const float entropy = (row.sums.log_total * row.sums.sum - row.sums.dot) * row.sums.factor;
        return row.sums.sum == 0 || entropy < 0 ? 0 : entropy;  // NaN stays NaN
    }

    void gradient_of_sums(const Rows& rows, RowGradient* to) override {
        for (int64_t r = 0; r < rows.count(); r++) to[r].entropy += call.gradient[rows.scores.row_offset(r)];
    }

    bool has_entropy() const override { return true; }
};

class LogSumExp : public RowMeasure {
  public:
    using RowMeasure::RowMeasure;

    float value(const Row& row) override {
        return row.sums.factor == 0 ? -INFINITY : row.sums.shift + row.sums.log_total;
    }

    void gradient_of_sums(const Rows& rows, RowGradient* to) override {
        for (int64_t r = 0; r < rows.count(); r++) to[r].lse += call.gradient[rows.scores.row_offset(r)];
    }
};

class MeanDistance : public RowMeasure {
  public:
    using RowMeasure::RowMeasure;

    float value(const Row& row) override {
        return row.sum([](Floats weights, Floats distances) { return weights * absolute(distances); });
    }

    void gradient_row(const Row& row, const float* gradient, float* to) override {
        row.add(to, [&](Floats, Floats distances) { return *gradient * absolute(distances); });
    }
};

// The weight at a distance, `number`.
class Diagonal : public RowMeasure {
  public:
    using RowMeasure::RowMeasure;

    float value(const Row& row) override { return row.weight(column_of(row)); }

    void gradient_row(const Row& row, const float* gradient, float* to) override {
        if (column_of(row) >= 0) to[column_of(row)] += *gradient;
    }

  private:
    int64_t column_of(const Row& row) const { return row.rows.column_of(row.position + call.number); }
};

// The weights at each distance up to `number`; the first and last also have all beyond.
class DistanceHistogram : public RowMeasure {
  public:
    DistanceHistogram(const MeasureCall& call, const Rows& rows) : RowMeasure(call, rows, 2 * call.number + 1) {}

    void forward_row(const Row& row, float* to) override {
        const int64_t reach = call.number, keys = row.rows.scores.matrix.keys;
        for (int64_t d = 1 - reach; d < reach; d++) to[reach + d] = row.weight(row.rows.column_of(row.position + d));
        to[2 * reach] = sum_between(row, reach ? row.position + reach : 0, keys);
        if (reach) to[0] = sum_between(row, 0, row.position - reach + 1);
    }

    void gradient_row(const Row& row, const float* gradient, float* to) override {
        const int64_t reach = call.number;
        row.rows.for_keys(0, row.rows.scores.matrix.keys, [&](int64_t first, int64_t last, int64_t column) {
            for (int64_t j = first; j < last; j++)
                to[column + j - first] += gradient[reach + std::clamp(j - row.position, -reach, reach)];
        });
    }

  private:
    static float sum_between(const Row& row, int64_t start, int64_t stop) {
        float total = 0;
        row.rows.for_keys(start, stop, [&](int64_t first, int64_t last, int64_t column) {
            float sum = 0;
            for (int64_t j = 0; j < last - first; j++) sum += row.exponentials[column + j];
            total += sum;
        });
        return total * row.sums.factor;
    }
};

// The weights of `width` keys, from `number` on. The result is zero where no block is active.
class Select : public RowMeasure {
  public:
    Select(const MeasureCall& call, const Rows& rows) : RowMeasure(call, rows, call.width) {}

    void forward_row(const Row& row, float* to) override {
        for_keys(row, [&](int64_t i, int64_t column) { to[i] = row.weight(column); });
    }

    void gradient_row(const Row& row, const float* gradient, float* to) override {
        for_keys(row, [&](int64_t i, int64_t column) { to[column] += gradient[i]; });
    }

  private:
    template <typename Function>
    void for_keys(const Row& row, Function function) const {
        row.rows.for_keys(call.number, call.number + call.width, [&](int64_t first, int64_t last, int64_t column) {
            for (int64_t j = first; j < last; j++) function(j - call.number, column + j - first);
        });
    }
};

}  // namespace regard
