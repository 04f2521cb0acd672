// What the gradients of measures add to A, the gradient that reaches the weights P.
//
// A sum over rows, times w_i, sends w_i dr_j to A_ij: so these measures are a product of `row_columns` and
// `key_columns`.

#pragma once

#include <algorithm>

#include "measures.h"

namespace regard {

class MeasureGradients {
  public:
    MeasureGradients(const Call& call, const Scores& scores, int64_t max_rows, int64_t width)
        : call(call), matrix(call.matrix), scores(scores), width(width) {
        for (int64_t m = 0; m < call.measure_count; m++) {
            const Measure& measure = call.measures[m];
            if (measure.gradient == nullptr && measure.second_gradient == nullptr) continue;
            if (measure.kind == RECEIVED || measure.kind == TRANSPOSED) columns += columns_of(measure);
            if (measure.kind == ENTROPY) has_entropy = true;
            if (measure.kind == DIVERGENCE)
                divergences.emplace_back(m, std::make_unique<Divergence>(measure, scores, width));
            if (measure.kind == TOP) tops.resize(max_rows, Top(0));
            if (measure.kind == MAX) strongest.resize(max_rows);
        }
        key_columns = allocate(round_up(matrix.keys, KEY_BLOCK) * columns);
        row_columns = allocate(max_rows * columns);
    }

    // Before the first row of a head.
    void pack(int64_t b, int64_t h) {
        for (auto& [_, divergence] : divergences) divergence->pack(b, h);
        int64_t column = 0;
        for (int64_t m = 0; m < call.measure_count; m++) {
            const Measure& measure = call.measures[m];
            if (!is_sum_over_rows(measure)) continue;
            const float* from = measure.gradient + (b * matrix.heads + h) * matrix.keys * measure.stride;
            for (int64_t c = 0; c < columns_of(measure); c++, column++)
                for (int64_t j = 0; j < round_up(matrix.keys, KEY_BLOCK); j++)
                    key_columns[(j / PANEL * columns + column) * PANEL + j % PANEL] =
                        j < matrix.keys ? from[j * measure.stride + c] : 0;
        }
    }

    // While the cells are scores.
    void before_softmax(const float* cells) {
        find_keys(cells);
        read_row_columns();
        for (auto& [_, divergence] : divergences) divergence->before_softmax(cells);
    }

    // Add the sums over rows to a tile of A, PANEL keys from `key` on.
    void add_sums(int64_t key, int64_t count, float* tile) const {
        if (columns)
            multiply_panel<true>(row_columns.get(), columns, 1, key_columns.get() + key * columns, PANEL, tile, width,
                                 scores.rows, columns, count);
    }

    // Add all other measures but the entropy.
    void add(float* flow, const float* weights, const RowSums* rows) {
        for (int64_t r = 0; r < scores.rows; r++) add_row(r, flow + r * width, weights + r * width, rows[r].factor);
        for (auto& [m, divergence] : divergences) add_divergence(call.measures[m], *divergence, flow, weights, rows);
    }

    // What reaches the scores of a row: the gradient of the largest one.
    void add_to_scores(int64_t r, float* row) const {
        for (int64_t m = 0; m < call.measure_count; m++) {
            const Measure& measure = call.measures[m];
            if (measure.kind == MAX && measure.second_gradient && strongest[r] >= 0)
                row[strongest[r]] += measure.second_gradient[place_of_row(r)];
        }
    }

    // The gradient of a measure of rows, summed over all measures of the kind.
    float of_row(MeasureKind kind, int64_t r) const {
        float sum = 0;
        for (int64_t m = 0; m < call.measure_count; m++)
            if (call.measures[m].kind == kind && call.measures[m].gradient)
                sum += call.measures[m].gradient[place_of_row(r)];
        return sum;
    }

    bool has_entropy = false;

  private:
    int64_t place_of_row(int64_t r) const {
        return (scores.b * matrix.heads + scores.h) * matrix.queries + scores.first + r;
    }

    static int64_t columns_of(const Measure& measure) { return measure.kind == RECEIVED ? 1 : measure.width; }

    static bool is_sum_over_rows(const Measure& measure) {
        return measure.gradient && (measure.kind == RECEIVED || measure.kind == TRANSPOSED);
    }

    // The keys that `Max` and `TopK` have chosen.
    void find_keys(const float* cells) {
        int64_t k = 0;
        for (int64_t m = 0; m < call.measure_count; m++)
            if (call.measures[m].kind == TOP) k = std::max(k, call.measures[m].number);
        for (size_t r = 0; r < tops.size() && static_cast<int64_t>(r) < scores.rows; r++) {
            tops[r] = Top(k);
            tops[r].find(scores, cells + r * width);
        }
        for (size_t r = 0; r < strongest.size() && static_cast<int64_t>(r) < scores.rows; r++) {
            const float* row = cells + r * width;
            const int64_t count = scores.active.size() * KEY_BLOCK;
            strongest[r] = count ? std::max_element(row, row + count) - row : -1;
            if (count && row[strongest[r]] == -INFINITY) strongest[r] = -1;
        }
    }

    void read_row_columns() {
        int64_t column = 0;
        for (int64_t m = 0; m < call.measure_count; m++) {
            const Measure& measure = call.measures[m];
            if (!is_sum_over_rows(measure)) continue;
            const int64_t own = columns_of(measure);
            for (int64_t r = 0; r < scores.rows; r++) {
                float* to = row_columns.get() + r * columns + column;
                if (measure.values.data)
                    read_rows(measure.values, scores.b, scores.h, scores.first + r, scores.first + r + 1, own, to, own);
                else
                    *to = 1;
            }
            column += own;
        }
    }

    void add_row(int64_t r, float* row, const float* weights, float factor) {
        const int64_t place = place_of_row(r), position = scores.position(r), keys = matrix.keys;
        const int64_t head = scores.b * matrix.heads + scores.h, query = scores.first + r;
        for (int64_t m = 0; m < call.measure_count; m++) {
            const Measure& measure = call.measures[m];
            const float* gradient = measure.gradient;
            if (measure.kind == RECEIVED && measure.values_gradient && gradient)
                measure.values_gradient[place * measure.stride] =
                    dot(weights, gradient + head * keys * measure.stride, measure.stride) * factor;
            if (gradient == nullptr) continue;
            if (measure.kind == MAX && strongest[r] >= 0) {
                row[strongest[r]] += gradient[place];
            } else if (measure.kind == MEAN_DISTANCE) {
                each_key(row, [&](int64_t j) { return gradient[place] * std::abs(j - position); });
            } else if (measure.kind == MASS) {
                add_mass(measure, r, row, gradient[place]);
            } else if (measure.kind == DIAGONAL) {
                add_cell(row, position + measure.number, gradient[place]);
            } else if (measure.kind == HISTOGRAM) {
                const int64_t reach = measure.number;
                const float* bins = gradient + place * (2 * reach + 1) + reach;
                each_key(row, [&](int64_t j) { return bins[std::clamp(j - position, -reach, reach)]; });
            } else if (measure.kind == TOP) {
                const float* of_values = gradient + place * measure.number;
                for (int64_t k = 0; k < std::min(measure.number, tops[r].count); k++)
                    add_cell(row, tops[r].keys[k], of_values[k]);
            } else if (measure.kind == CELLS_OF_ROWS) {
                const int64_t start = measure.number, stop = start + measure.width;
                const float* cells = gradient + place * measure.width - start;
                each_key(row, [&](int64_t j) { return j >= start && j < stop ? cells[j] : 0; });
            } else if (measure.kind == BLOCK_MEANS) {
                const int64_t size = measure.number, block = query / size;
                const float* means = gradient + (head * measure.height + block) * measure.width;
                const float count = std::min(size, matrix.queries - block * size);
                int64_t column = -1, stop = 0;
                float mean = 0;
                each_key(row, [&](int64_t j) {
                    if (j / KEY_BLOCK * KEY_BLOCK == j || j >= stop) {  // blocks may have been left out
                        column = j / size, stop = (column + 1) * size;
                        mean = means[column] / (count * std::min(size, keys - column * size));
                    }
                    return mean;
                });
            } else if (measure.kind == GROUPS) {
                const int64_t group = *at<int64_t>(measure.row_groups, scores.b, 0, query);
                if (group < 0) continue;
                const float* sums = gradient + (head * measure.height + group) * measure.width;
                const float share = *at<float>(measure.values, scores.b, 0, query);
                const int64_t* groups = at<int64_t>(measure.key_groups, scores.b, 0, 0);
                each_key(row, [&](int64_t j) {
                    const int64_t own = groups[j * measure.key_groups.column];
                    return own < 0 ? 0 : share * sums[own];
                });
            }
        }
    }

    // The gradient of P log (P / Q) is log P - log Q + 1, 0 where P is 0.
    void add_divergence(const Measure& measure, Divergence& divergence, float* flow, const float* weights,
                        const RowSums* rows) {
        for (size_t a = 0; a < scores.active.size(); a++) {
            const float* terms = divergence.compute(a, weights, rows);
            for (int64_t r = 0; r < scores.rows; r++) {
                const float gradient = measure.gradient[place_of_row(r)];
                if (gradient == 0) continue;  // a row that is left out may have infinite terms
                for (int64_t j = 0; j < KEY_BLOCK; j += LANES) {
                    float* to = flow + r * width + a * KEY_BLOCK + j;
                    store(to, load(to) + gradient * (load(terms + r * KEY_BLOCK + j) + 1.0f));
                }
            }
        }
    }

    // Add a function of the key to the cells of a row.
    template <typename Function>
    void each_key(float* row, Function function) const {
        for (size_t a = 0; a < scores.active.size(); a++) {
            const int64_t first = scores.active[a] * KEY_BLOCK, count = std::min(KEY_BLOCK, matrix.keys - first);
            for (int64_t j = 0; j < count; j++) row[a * KEY_BLOCK + j] += function(first + j);
        }
    }

    void add_cell(float* row, int64_t key, float value) const {
        if (key < 0 || key >= matrix.keys) return;
        const int64_t slot = scores.slot_of(key / KEY_BLOCK);
        if (slot >= 0) row[slot * KEY_BLOCK + key % KEY_BLOCK] += value;
    }

    void add_mass(const Measure& measure, int64_t r, float* row, float gradient) const {
        const MaskRow mask(measure.mask, matrix.keys, scores.b, scores.h, scores.first + r, scores.position(r));
        for (size_t a = 0; a < scores.active.size(); a++) {
            const uint64_t bits = mask.bits(scores.active[a] * KEY_BLOCK);
            for (int64_t j = 0; j < KEY_BLOCK; j++) row[a * KEY_BLOCK + j] += bits >> j & 1 ? gradient : 0;
        }
    }

    // The sum over the keys of weights times numbers that are `stride` apart.
    float dot(const float* row, const float* numbers, int64_t stride) const {
        float total = 0;
        for (size_t a = 0; a < scores.active.size(); a++) {
            const int64_t first = scores.active[a] * KEY_BLOCK, count = std::min(KEY_BLOCK, matrix.keys - first);
            float part = 0;
            for (int64_t j = 0; j < count; j++) part += row[a * KEY_BLOCK + j] * numbers[(first + j) * stride];
            total += part;
        }
        return total;
    }

    const Call& call;
    const Matrix& matrix;
    const Scores& scores;
    const int64_t width;
    int64_t columns = 0;  // of sums over rows
    FloatArray key_columns, row_columns;
    std::vector<std::pair<int64_t, std::unique_ptr<Divergence>>> divergences;  // by number of the measure
    std::vector<Top> tops;
    std::vector<int64_t> strongest;  // cell of each row
};

}  // namespace regard
