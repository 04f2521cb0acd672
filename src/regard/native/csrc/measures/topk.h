// The largest weights of a row. They are found among the scores, which do not round to the same number.

#pragma once

#include "base.h"

namespace regard {

// The largest scores of a row, in descending order; of equal ones, the first keys.
class LargestScores {
  public:
    explicit LargestScores(int64_t k) : values(k), keys(k) {}

    void find(const Rows& rows, int64_t r) {
        count = 0;
        float lowest = -INFINITY;  // a score must be above it
        for (int64_t a = 0; a < rows.num_blocks(); a++) {
            const float* from = rows.row(r) + a * KEY_BLOCK;
            Floats largest = load(from);
            for (int64_t j = LANES; j < KEY_BLOCK; j += LANES) largest = larger(load(from + j), largest);
            if (!(largest_of(largest) > lowest)) continue;
            for (int64_t j = 0; j < KEY_BLOCK; j++)
                if (from[j] > lowest) lowest = insert(from[j], rows.first_key(a) + j);
        }
    }

    std::vector<float> values;
    std::vector<int64_t> keys;
    int64_t count = 0;

  private:
    float insert(float value, int64_t key) {
        const int64_t k = values.size();
        int64_t at = count < k ? count++ : k - 1;
        for (; at > 0 && values[at - 1] < value; at--) {
            values[at] = values[at - 1];
            keys[at] = keys[at - 1];
        }
        values[at] = value;
        keys[at] = key;
        return count < k ? -INFINITY : values[k - 1];
    }
};

// The `number` largest weights; second: their keys, int64, -1 where there are fewer.
class TopK : public RowMeasure {
  public:
    TopK(const MeasureCall& call, const Rows& rows)
        : RowMeasure(call, rows, call.number), largest(rows.scores.max_rows, LargestScores(call.number)) {}

    void before_softmax(const Rows& rows) override {
        for (int64_t r = 0; r < rows.count(); r++) largest[r].find(rows, r);
    }

    void forward_row(const Row& row, float* to) override {
        const RowSums& sums = row.sums;
        const LargestScores& scores = largest[row.r];
        int64_t* keys = static_cast<int64_t*>(call.second) + row.offset * size;
        for (int64_t k = 0; k < size; k++) {
            const bool is_found = k < scores.count && !sums.is_nan;
            keys[k] = is_found ? scores.keys[k] : -1;
            to[k] = sums.is_nan ? NAN : is_found ? std::exp(scores.values[k] - sums.shift) * sums.factor : 0;
        }
    }

    void gradient_row(const Row& row, const float* gradient, float* to) override {
        const LargestScores& scores = largest[row.r];
        for (int64_t k = 0; k < scores.count; k++) to[row.rows.column_of(scores.keys[k])] += gradient[k];
    }

  private:
    std::vector<LargestScores> largest;
};

// The largest weight; second: its score.
class Max : public RowMeasure {
  public:
    Max(const MeasureCall& call, const Rows& rows)
        : RowMeasure(call, rows), columns(call.gradient ? rows.scores.max_rows : 0) {}

    void before_softmax(const Rows& rows) override {
        if (columns.empty()) return;
        const int64_t count = rows.num_blocks() * KEY_BLOCK;
        for (int64_t r = 0; r < rows.count(); r++) {
            const float* row = rows.row(r);
            columns[r] = count ? std::max_element(row, row + count) - row : -1;
            if (count && row[columns[r]] == -INFINITY) columns[r] = -1;
        }
    }

    float value(const Row& row) override {
        const RowSums& sums = row.sums;
        static_cast<float*>(call.second)[row.offset] = sums.is_nan ? NAN : sums.largest;
        if (sums.is_nan) return NAN;
        return sums.largest == -INFINITY ? 0 : std::exp(sums.largest - sums.shift) * sums.factor;
    }

    void gradient_row(const Row& row, const float* gradient, float* to) override {
        if (columns[row.r] >= 0) to[columns[row.r]] += *gradient;
    }

    void gradient_of_scores(const Rows& rows, float* grad_scores) override {
        for (int64_t r = 0; r < rows.count(); r++)
            if (columns[r] >= 0)
                grad_scores[r * rows.width + columns[r]] += call.second_gradient[rows.scores.row_offset(r)];
    }

  private:
    std::vector<int64_t> columns;  // of the largest score; backward
};

}  // namespace regard
