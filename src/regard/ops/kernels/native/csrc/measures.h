// What is measured of the weights, a block of rows at a time, while they are in the cache.

#pragma once

#include <vector>

#include "divergence.h"

namespace regard {

// The largest scores of a row, in descending order; of equal ones, the first keys.
class Top {
  public:
    explicit Top(int64_t k) : values(k), keys(k) {}

    void find(const Scores& scores, const float* row) {
        count = 0;
        float lowest = -INFINITY;  // a score must be above it
        for (size_t a = 0; a < scores.active.size(); a++) {
            const float* from = row + a * KEY_BLOCK;
            Floats largest = load(from);
            for (int64_t j = LANES; j < KEY_BLOCK; j += LANES) largest = larger(load(from + j), largest);
            if (!(largest_of(largest) > lowest)) continue;
            for (int64_t j = 0; j < KEY_BLOCK; j++)
                if (from[j] > lowest) lowest = insert(from[j], scores.active[a] * KEY_BLOCK + j);
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

class Measures {
  public:
    Measures(const Call& call, const Scores& scores, int64_t max_rows, int64_t width)
        : call(call), scores(scores), width(width), padded_keys(scores.key_blocks * KEY_BLOCK) {
        int64_t columns = 0, most = 0;
        for (int64_t m = 0; m < call.measure_count; m++) {
            const Measure& measure = call.measures[m];
            states.push_back({columns, 0, nullptr, {}});
            if (measure.kind == GROUPS) states.back().groups.resize(measure.height * measure.width);
            if (measure.kind == RECEIVED) columns += padded_keys;
            if (measure.kind == TRANSPOSED) {
                states.back().panels = round_up(measure.width, PANEL) / PANEL;
                columns += padded_keys * states.back().panels * PANEL;
                most = std::max(most, states.back().panels * PANEL);
            }
            if (measure.kind == DIVERGENCE)
                states.back().divergence = std::make_unique<Divergence>(measure, scores, width);
        }
        sums = allocate(columns);
        column_count = columns;
        rows_of_y = allocate(max_rows * most);
        pooled = allocate(padded_keys);
        factors.resize(max_rows);
    }

    // Before the first row of a chunk.
    void start(int64_t b, int64_t h) {
        std::memset(sums.get(), 0, 4 * column_count);
        for (State& state : states) {
            if (state.divergence) state.divergence->pack(b, h);
            std::fill(state.groups.begin(), state.groups.end(), 0.0);
        }
    }

    // While the cells are scores.
    void before_softmax(const float* cells) {
        for (int64_t m = 0; m < call.measure_count; m++) {
            const Measure& measure = call.measures[m];
            if (measure.kind == DIVERGENCE) states[m].divergence->before_softmax(cells);
            if (measure.kind != TOP) continue;
            Top top(measure.number);
            for (int64_t r = 0; r < scores.rows; r++) {
                top.find(scores, cells + r * width);
                const int64_t place = place_of_row(r) * measure.number;
                for (int64_t k = 0; k < measure.number; k++) {
                    measure.result[place + k] = k < top.count ? top.values[k] : -INFINITY;
                    static_cast<int64_t*>(measure.second)[place + k] = k < top.count ? top.keys[k] : -1;
                }
            }
        }
    }

    // When they are weights, not yet divided by their sum.
    void after_softmax(const float* cells, const RowSums* rows) {
        for (int64_t m = 0; m < call.measure_count; m++) {
            const Measure& measure = call.measures[m];
            switch (measure.kind) {
                case RECEIVED:
                    add_received(measure, states[m], cells, rows);
                    break;
                case TRANSPOSED:
                    add_transposed(measure, states[m], cells, rows);
                    break;
                case BLOCK_MEANS:
                    add_block_means(measure, cells, rows);
                    break;
                case GROUPS:
                    add_groups(measure, states[m], cells, rows);
                    break;
                case DIVERGENCE:
                    measure_divergence(measure, *states[m].divergence, cells, rows);
                    break;
                default:
                    for (int64_t r = 0; r < scores.rows; r++) measure_row(measure, r, cells + r * width, rows[r]);
            }
        }
    }

    // After the last row of a chunk.
    void finish(int64_t b, int64_t h, int64_t number) {
        for (int64_t m = 0; m < call.measure_count; m++) {
            const Measure& measure = call.measures[m];
            const int64_t head = b * scores.matrix.heads + h;
            if (measure.kind == GROUPS)
                std::copy(states[m].groups.begin(), states[m].groups.end(),
                          measure.result + head * measure.height * measure.width);
            if (measure.kind != RECEIVED && measure.kind != TRANSPOSED) continue;
            const int64_t columns = measure.kind == RECEIVED ? 1 : measure.width, keys = scores.matrix.keys;
            const bool is_part = call.chunks > 1;
            float* to = is_part ? measure.by_chunk + (head * call.chunks + number) * keys * columns
                                : measure.result + head * keys * measure.stride;
            const int64_t stride = is_part ? columns : measure.stride;
            for (int64_t c = 0; c < columns; c++) {
                const float* from = sums.get() + states[m].offset + c / PANEL * padded_keys * PANEL + c % PANEL;
                const int64_t step = measure.kind == RECEIVED ? 1 : PANEL;
                for (int64_t j = 0; j < keys; j++) to[j * stride + c] = from[j * step];
            }
        }
    }

  private:
    struct State {
        int64_t offset, panels;  // of sums over rows
        std::unique_ptr<Divergence> divergence;
        std::vector<double> groups;  // sums over many rows and keys
    };

    int64_t place_of_row(int64_t r) const {
        return (scores.b * scores.matrix.heads + scores.h) * scores.matrix.queries + scores.first + r;
    }

    void measure_row(const Measure& measure, int64_t r, const float* row, const RowSums& sums) {
        const int64_t place = place_of_row(r);
        float* to = measure.result;
        switch (measure.kind) {
            case ENTROPY:  // -sum of P log P, where log P = s - shift - log_total
                to[place] = sums.sum == 0 ? 0 : larger_or_nan((sums.log_total * sums.sum - sums.dot) * sums.factor);
                break;
            case LSE:
                to[place] = sums.factor == 0 ? -INFINITY : sums.shift + sums.log_total;
                break;
            case MAX: {
                const float weight = sums.largest == -INFINITY ? 0 : std::exp(sums.largest - sums.shift) * sums.factor;
                to[place] = sums.is_nan ? NAN : weight;
                static_cast<float*>(measure.second)[place] = sums.is_nan ? NAN : sums.largest;
                break;
            }
            case MEAN_DISTANCE:
                to[place] = mean_distance(r, row) * sums.factor;
                break;
            case MASS:
                to[place] = mass(measure, r, row) * sums.factor;
                break;
            case DIAGONAL:
                to[place] = cell(row, scores.position(r) + measure.number) * sums.factor;
                break;
            case HISTOGRAM:
                measure_histogram(measure, r, row, sums.factor, to + place * (2 * measure.number + 1));
                break;
            case TOP:
                for (int64_t k = place * measure.number; k < (place + 1) * measure.number; k++) {
                    to[k] = sums.is_nan ? NAN : to[k] == -INFINITY ? 0 : std::exp(to[k] - sums.shift) * sums.factor;
                    if (sums.is_nan) static_cast<int64_t*>(measure.second)[k] = -1;
                }
                break;
            case CELLS_OF_ROWS:
                copy_cells(measure, row, sums.factor, to + place * measure.width);
                break;
            default:
                break;
        }
    }

    static float larger_or_nan(float value) { return value < 0 ? 0 : value; }

    float cell(const float* row, int64_t key) const {
        if (key < 0 || key >= scores.matrix.keys) return 0;
        const int64_t slot = scores.slot_of(key / KEY_BLOCK);
        return slot < 0 ? 0 : row[slot * KEY_BLOCK + key % KEY_BLOCK];
    }

    float mean_distance(int64_t r, const float* row) const {
        Floats lane;
        for (int l = 0; l < LANES; l++) lane[l] = l;
        const int64_t position = scores.position(r);
        Floats total = {};
        for (size_t a = 0; a < scores.active.size(); a++) {
            const Floats start = lane + static_cast<float>(scores.active[a] * KEY_BLOCK - position);
            Floats part = {};
            for (int64_t j = 0; j < KEY_BLOCK; j += LANES) {
                const Floats distance = start + static_cast<float>(j);
                part += load(row + a * KEY_BLOCK + j) * (distance < 0.0f ? -distance : distance);
            }
            total += part;
        }
        return sum_of(total);
    }

    float mass(const Measure& measure, int64_t r, const float* row) const {
        const MaskRow mask(measure.mask, scores.matrix.keys, scores.b, scores.h, scores.first + r, scores.position(r));
        Ints lane;
        for (int l = 0; l < LANES; l++) lane[l] = 1 << l;
        Floats total = {};
        for (size_t a = 0; a < scores.active.size(); a++) {
            const uint64_t bits = mask.bits(scores.active[a] * KEY_BLOCK);
            if (!bits) continue;
            Floats part = {};
            for (int64_t j = 0; j < KEY_BLOCK; j += LANES) {
                const Ints own = (static_cast<int32_t>(bits >> j) & lane);
                part += own != 0 ? load(row + a * KEY_BLOCK + j) : Floats{};
            }
            total += part;
        }
        return sum_of(total);
    }

    // The sum of the cells from key start to stop.
    float sum_between(const float* row, int64_t start, int64_t stop) const {
        float total = 0;
        for (size_t a = 0; a < scores.active.size(); a++) {
            const int64_t first = scores.active[a] * KEY_BLOCK;
            const int64_t low = std::max(start, first), high = std::min(stop, first + KEY_BLOCK);
            if (low >= high) continue;
            float part = 0;
            for (int64_t j = low; j < high; j++) part += row[a * KEY_BLOCK + j - first];
            total += part;
        }
        return total;
    }

    void measure_histogram(const Measure& measure, int64_t r, const float* row, float factor, float* to) const {
        const int64_t reach = measure.number, position = scores.position(r), keys = scores.matrix.keys;
        if (reach == 0) {
            to[0] = sum_between(row, 0, keys) * factor;
            return;
        }
        to[0] = sum_between(row, 0, position - reach + 1) * factor;
        for (int64_t d = 1 - reach; d < reach; d++) to[reach + d] = cell(row, position + d) * factor;
        to[2 * reach] = sum_between(row, position + reach, keys) * factor;
    }

    void copy_cells(const Measure& measure, const float* row, float factor, float* to) const {
        const int64_t start = measure.number, stop = start + measure.width;
        for (size_t a = 0; a < scores.active.size(); a++) {
            const int64_t first = scores.active[a] * KEY_BLOCK;
            const int64_t low = std::max(start, first), high = std::min(stop, first + KEY_BLOCK);
            for (int64_t j = low; j < high; j++) to[j - start] = row[a * KEY_BLOCK + j - first] * factor;
        }
    }

    // Σ P (log P - log Q)
    void measure_divergence(const Measure& measure, Divergence& divergence, const float* cells, const RowSums* rows) {
        for (int64_t r = 0; r < scores.rows; r++) measure.result[place_of_row(r)] = 0;
        for (size_t a = 0; a < scores.active.size(); a++) {
            const float* terms = divergence.compute(a, cells, rows);
            for (int64_t r = 0; r < scores.rows; r++) {
                Floats part = {};
                for (int64_t j = 0; j < KEY_BLOCK; j += LANES)
                    part += load(cells + r * width + a * KEY_BLOCK + j) * load(terms + r * KEY_BLOCK + j);
                measure.result[place_of_row(r)] += sum_of(part) * rows[r].factor;
            }
        }
    }

    // Add the rows from start to stop, each times a factor, to sums over an active block of keys.
    void add_rows(const float* cells, size_t a, int64_t start, int64_t stop, float* to) const {
        for (int64_t j = 0; j < KEY_BLOCK; j += PANEL) {
            const float* from = cells + a * KEY_BLOCK + j;
            Floats sums[TILE_VECTORS] = {};
            for (int64_t r = start; r < stop; r++)
                for (int v = 0; v < TILE_VECTORS; v++) sums[v] += factors[r] * load(from + r * width + v * LANES);
            for (int v = 0; v < TILE_VECTORS; v++) store(to + j + v * LANES, load(to + j + v * LANES) + sums[v]);
        }
    }

    void add_received(const Measure& measure, const State& state, const float* cells, const RowSums* rows) {
        for (int64_t r = 0; r < scores.rows; r++) {
            const Strided& weights = measure.values;
            factors[r] =
                rows[r].factor * (weights.data ? *at<float>(weights, scores.b, scores.h, scores.first + r) : 1);
        }
        for (size_t a = 0; a < scores.active.size(); a++)
            add_rows(cells, a, 0, scores.rows, sums.get() + state.offset + scores.active[a] * KEY_BLOCK);
    }

    void add_transposed(const Measure& measure, const State& state, const float* cells, const RowSums* rows) {
        const int64_t padded = state.panels * PANEL;
        read_rows(measure.values, scores.b, scores.h, scores.first, scores.first + scores.rows, measure.width,
                  rows_of_y.get(), padded);
        for (int64_t r = 0; r < scores.rows; r++)
            for (int64_t c = 0; c < padded; c++) rows_of_y[r * padded + c] *= rows[r].factor;
        for (size_t a = 0; a < scores.active.size(); a++)
            for (int64_t panel = 0; panel < state.panels; panel++)
                multiply_panel<true>(
                    cells + a * KEY_BLOCK, 1, width, rows_of_y.get() + panel * PANEL, padded,
                    sums.get() + state.offset + (panel * padded_keys + scores.active[a] * KEY_BLOCK) * PANEL, PANEL,
                    KEY_BLOCK, scores.rows);
    }

    // The rows of a block are added up first.
    void add_block_means(const Measure& measure, const float* cells, const RowSums* rows) {
        const int64_t size = measure.number, queries = scores.matrix.queries, keys = scores.matrix.keys;
        for (int64_t r = 0; r < scores.rows; r++) factors[r] = rows[r].factor;
        for (int64_t start = 0; start < scores.rows;) {
            const int64_t block = (scores.first + start) / size;
            const int64_t stop = std::min((block + 1) * size - scores.first, scores.rows);
            const float count = std::min(size, queries - block * size);
            float* to =
                measure.result + ((scores.b * scores.matrix.heads + scores.h) * measure.height + block) * measure.width;
            for (size_t a = 0; a < scores.active.size(); a++) {
                std::memset(pooled.get(), 0, 4 * KEY_BLOCK);
                add_rows(cells, a, start, stop, pooled.get());
                const int64_t first = scores.active[a] * KEY_BLOCK, last = std::min(first + KEY_BLOCK, keys);
                for (int64_t j = first; j < last;) {
                    const int64_t column = j / size, end = std::min((column + 1) * size, last);
                    float sum = 0;
                    for (; j < end; j++) sum += pooled[j - first];
                    to[column] += sum / (count * std::min(size, keys - column * size));
                }
            }
            start = stop;
        }
    }

    // So are consecutive rows of a group; `values` are 1 / the number of the group's rows.
    void add_groups(const Measure& measure, State& state, const float* cells, const RowSums* rows) {
        const Strided& groups = measure.key_groups;
        const int64_t* of_keys = at<int64_t>(groups, scores.b, 0, 0);
        auto group_of = [&](int64_t r) { return *at<int64_t>(measure.row_groups, scores.b, 0, scores.first + r); };
        for (int64_t r = 0; r < scores.rows; r++)
            factors[r] = rows[r].factor * *at<float>(measure.values, scores.b, 0, scores.first + r);
        for (int64_t start = 0; start < scores.rows;) {
            const int64_t group = group_of(start);
            int64_t stop = start + 1;
            while (stop < scores.rows && group_of(stop) == group) stop++;
            if (group >= 0) {
                double* to = state.groups.data() + group * measure.width;
                for (size_t a = 0; a < scores.active.size(); a++) {
                    std::memset(pooled.get(), 0, 4 * KEY_BLOCK);
                    add_rows(cells, a, start, stop, pooled.get());
                    const int64_t first = scores.active[a] * KEY_BLOCK,
                                  last = std::min(first + KEY_BLOCK, scores.matrix.keys);
                    for (int64_t j = first; j < last; j++) {
                        const int64_t own = of_keys[j * groups.column];
                        if (own >= 0) to[own] += pooled[j - first];
                    }
                }
            }
            start = stop;
        }
    }

    const Call& call;
    const Scores& scores;
    const int64_t width, padded_keys;
    int64_t column_count = 0;
    std::vector<State> states;
    FloatArray sums, rows_of_y, pooled;
    std::vector<float> factors;
};

}  // namespace regard
