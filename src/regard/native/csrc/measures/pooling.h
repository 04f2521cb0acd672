// A matrix of (height, width) for each head: sums over the weights of groups of rows and keys.

#pragma once

#include "base.h"

namespace regard {

// Add the rows from start to stop, each times a factor, to sums over an active block of keys.
inline void add_rows(const Rows& rows, const std::vector<float>& factors, int64_t a, int64_t start, int64_t stop,
                     float* to) {
    for (int64_t j = 0; j < KEY_BLOCK; j += PANEL) {
        const float* from = rows.weights + a * KEY_BLOCK + j;
        Floats sums[TILE_VECTORS] = {};
        for (int64_t r = start; r < stop; r++)
            for (int v = 0; v < TILE_VECTORS; v++) sums[v] += factors[r] * load(from + r * rows.width + v * LANES);
        for (int v = 0; v < TILE_VECTORS; v++) store(to + j + v * LANES, load(to + j + v * LANES) + sums[v]);
    }
}

// The means of square blocks; number: their size.
class BlockMean : public Measure {
  public:
    BlockMean(const MeasureCall& call, const Rows& rows) : Measure(call, rows), factors(rows.scores.max_rows) {}

    // The rows of a block are added up first.
    void forward(const Rows& rows) override {
        const Matrix& matrix = rows.scores.matrix;
        for (int64_t r = 0; r < rows.count(); r++) factors[r] = rows.sums[r].factor;
        for (int64_t start = 0, stop; start < rows.count(); start = stop) {
            const int64_t block = block_of(rows, start);
            stop = std::min((block + 1) * call.number - rows.scores.first, rows.count());
            const float num_rows = size_of(block, matrix.queries);
            float* to = call.result + offset(rows, block);
            for (int64_t a = 0; a < rows.num_blocks(); a++) {
                float sums[KEY_BLOCK] = {};
                add_rows(rows, factors, a, start, stop, sums);
                const int64_t first = rows.first_key(a), last = first + rows.num_keys(a);
                for (int64_t j = first; j < last;) {
                    const int64_t column = j / call.number, end = std::min((column + 1) * call.number, last);
                    float sum = 0;
                    for (; j < end; j++) sum += sums[j - first];
                    to[column] += sum / (num_rows * size_of(column, matrix.keys));
                }
            }
        }
    }

    void gradient(const Rows& rows, float* grad_weights) override {
        const Matrix& matrix = rows.scores.matrix;
        for (int64_t r = 0; r < rows.count(); r++) {
            const int64_t block = block_of(rows, r);
            const float* means = call.gradient + offset(rows, block);
            const float num_rows = size_of(block, matrix.queries);
            for (int64_t a = 0; a < rows.num_blocks(); a++) {
                float* row = grad_weights + r * rows.width + a * KEY_BLOCK;
                const int64_t first = rows.first_key(a), last = first + rows.num_keys(a);
                for (int64_t j = first; j < last;) {
                    const int64_t column = j / call.number, end = std::min((column + 1) * call.number, last);
                    const float mean = means[column] / (num_rows * size_of(column, matrix.keys));
                    for (; j < end; j++) row[j - first] += mean;
                }
            }
        }
    }

  private:
    int64_t block_of(const Rows& rows, int64_t r) const { return (rows.scores.first + r) / call.number; }

    int64_t size_of(int64_t block, int64_t all) const { return std::min(call.number, all - block * call.number); }

    int64_t offset(const Rows& rows, int64_t block) const {
        return ((rows.scores.b * rows.scores.matrix.heads + rows.scores.h) * call.height + block) * call.width;
    }

    std::vector<float> factors;
};

// The sums of groups of rows and keys; row_groups (b, h, i), key_groups (b, h, 0, j): int64, negative in no group;
// values: 1 / the number of rows in the row's group.
class GroupPool : public Measure {
  public:
    GroupPool(const MeasureCall& call, const Rows& rows)
        : Measure(call, rows), sums(call.height * call.width), factors(rows.scores.max_rows) {}

    void start(int64_t, int64_t) override { std::fill(sums.begin(), sums.end(), 0.0); }

    // Consecutive rows of a group are added up first.
    void forward(const Rows& rows) override {
        const int64_t* key_groups = at<int64_t>(call.key_groups, rows.scores.b, 0, 0);
        for (int64_t r = 0; r < rows.count(); r++) factors[r] = rows.sums[r].factor * share_of(rows, r);
        for (int64_t start = 0, stop; start < rows.count(); start = stop) {
            const int64_t row_group = group_of(rows, start);
            stop = start + 1;
            while (stop < rows.count() && group_of(rows, stop) == row_group) stop++;
            if (row_group < 0) continue;
            double* to = sums.data() + row_group * call.width;
            for (int64_t a = 0; a < rows.num_blocks(); a++) {
                float block_sums[KEY_BLOCK] = {};
                add_rows(rows, factors, a, start, stop, block_sums);
                for (int64_t j = 0; j < rows.num_keys(a); j++) {
                    const int64_t key_group = key_groups[(rows.first_key(a) + j) * call.key_groups.column];
                    if (key_group >= 0) to[key_group] += block_sums[j];
                }
            }
        }
    }

    void finish(const Matrix&, int64_t head, int64_t) override {
        std::copy(sums.begin(), sums.end(), call.result + head * call.height * call.width);
    }

    void gradient(const Rows& rows, float* grad_weights) override {
        const int64_t head = rows.scores.b * rows.scores.matrix.heads + rows.scores.h;
        const int64_t* key_groups = at<int64_t>(call.key_groups, rows.scores.b, 0, 0);
        for (int64_t r = 0; r < rows.count(); r++) {
            const int64_t row_group = group_of(rows, r);
            if (row_group < 0) continue;
            const float* gradient = call.gradient + (head * call.height + row_group) * call.width;
            const float share = share_of(rows, r);
            for (int64_t a = 0; a < rows.num_blocks(); a++)
                for (int64_t j = 0; j < rows.num_keys(a); j++) {
                    const int64_t key_group = key_groups[(rows.first_key(a) + j) * call.key_groups.column];
                    if (key_group >= 0) grad_weights[r * rows.width + a * KEY_BLOCK + j] += share * gradient[key_group];
                }
        }
    }

  private:
    int64_t group_of(const Rows& rows, int64_t r) const {
        return *at<int64_t>(call.row_groups, rows.scores.b, 0, rows.scores.first + r);
    }
    float share_of(const Rows& rows, int64_t r) const {
        return *at<float>(call.values, rows.scores.b, 0, rows.scores.first + r);
    }

    std::vector<double> sums;  // over many rows and keys
    std::vector<float> factors;
};

}  // namespace regard
