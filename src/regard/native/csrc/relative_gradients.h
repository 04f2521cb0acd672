// The gradients of relative positions: of queries or keys, and of the vectors that they are compared with.

#pragma once

#include <vector>

#include "rows.h"

namespace regard {

// With G_id the sum of the scores' gradients of a query (or key) over its cells at a distance, queries get G A and the
// vectors A get G^T Q.
class RelativeGradients {
  public:
    RelativeGradients(const ScoreStep& step, const Rows& rows)
        : step(step),
          rows(rows),
          scores(rows.scores),
          matrix(scores.matrix),
          reach(step.shift),
          distances(2 * reach + 1),
          width(relative_width(distances)),
          padded_dim(round_up(matrix.head_dim, LANES)),
          vectors(distances, matrix.head_dim, true),
          grad_vectors(distances, matrix.head_dim, step.gradient != nullptr),
          sums(allocate(RELATIVE_GROUP * width)),
          group(allocate(RELATIVE_GROUP * padded_dim)) {}

    void start(int64_t b, int64_t h) {
        grad_vectors.clear();
        const int64_t batch = scores.batch_of_rules(b), head = scores.head_of_rules(h);
        const int64_t offset = offset_of(step.values, batch, head, 0);
        if (offset == packed) return;
        packed = offset;
        vectors.read(step.values, batch, head, distances);
    }

    // Add the gradients of a block of rows, whose queries are `query_width` apart.
    void add(const float* grad_scores, float* grad_query, int64_t query_width, Panels& grad_key) {
        const bool is_key = step.kind == ADD_RELATIVE_KEY;
        if (!grad_vectors.count && !(is_key ? grad_query != nullptr : grad_key.count > 0)) return;
        if (is_key) {
            for (int64_t r = 0; r < rows.count(); r += RELATIVE_GROUP)
                add_to_queries(grad_scores, r, grad_query, query_width);
            return;
        }
        for (int64_t a = 0; a < rows.num_blocks(); a++)
            for (int64_t j = 0; j < rows.num_keys(a); j += RELATIVE_GROUP) add_to_keys(grad_scores, a, j, grad_key);
    }

    // `chunk` is that of (batch, heads, chunks).
    void finish(int64_t chunk) {
        if (step.gradient) grad_vectors.write(step.gradient + chunk * distances * matrix.head_dim, distances);
    }

  private:
    void add_to_queries(const float* grad_scores, int64_t first, float* grad_query, int64_t query_width) {
        const int64_t count = std::min(RELATIVE_GROUP, rows.count() - first), last = rows.num_blocks() - 1;
        if (last < 0) return;
        clear(first, count, rows.first_key(0), rows.first_key(last) + rows.num_keys(last) - 1);
        for (int64_t i = 0; i < count; i++) add_up_keys(grad_scores + (first + i) * rows.width, first + i, i);
        if (grad_vectors.count)
            read_rows(matrix.query, scores.b, scores.h, scores.first + first, scores.first + first + count,
                      matrix.head_dim, group.get(), padded_dim, matrix.scale);
        multiply(count, grad_query ? grad_query + first * query_width : nullptr, query_width, PANEL);
    }

    // One distance may collect nearly all keys of a row: they are added up in double.
    void add_up_keys(const float* grad_scores, int64_t r, int64_t i) {
        float* to = sums.get() + i * width;
        double before = 0, after = 0;
        for (int64_t a = 0; a < rows.num_blocks(); a++) {
            const float* from = grad_scores + a * KEY_BLOCK;
            const int64_t distance = rows.first_key(a) - scores.position(r) + reach, keys = rows.num_keys(a);
            const int64_t start = std::clamp<int64_t>(-distance, 0, keys);
            const int64_t stop = std::clamp<int64_t>(distances - distance, start, keys);
            for (int64_t j = 0; j < start; j++) before += from[j];
            for (int64_t j = start; j < stop; j++) to[distance + j] += from[j];
            for (int64_t j = stop; j < keys; j++) after += from[j];
        }
        if (low == 0) to[0] += static_cast<float>(before);
        if (high == distances - 1) to[high] += static_cast<float>(after);
    }

    void add_to_keys(const float* grad_scores, int64_t a, int64_t j, Panels& grad_key) {
        const int64_t count = std::min(RELATIVE_GROUP, rows.num_keys(a) - j), key = rows.first_key(a) + j;
        clear(0, rows.count(), key, key + count - 1);
        for (int64_t r = 0; r < rows.count();) {
            const float* from = grad_scores + r * rows.width + a * KEY_BLOCK + j;
            if (add_up_rows(from, r, key, count)) {
                r += LANES;
                continue;
            }
            const int64_t distance = key - scores.position(r) + reach;
            for (int64_t i = 0; i < count; i++)
                sums[i * width + std::clamp<int64_t>(distance + i, 0, distances - 1)] += matrix.scale * from[i];
            r++;
        }
        if (grad_vectors.count)
            read_rows(matrix.key, scores.b, matrix.kv_head(scores.h), key, key + count, matrix.head_dim, group.get(),
                      padded_dim);
        multiply(count, grad_key.count ? grad_key.at(0, key) : nullptr, PANEL, grad_key.keys * PANEL);
    }

    // Add LANES rows at once to the sums of a group of keys, if they have consecutive positions and no cell is clipped.
    bool add_up_rows(const float* from, int64_t r, int64_t key, int64_t count) {
        const int64_t distance = key - scores.position(r) - (LANES - 1) + reach;  // from the last row on
        if (distance < 0 || distance + LANES + RELATIVE_GROUP > distances) return false;
        if (scores.count_consecutive(r, LANES) < LANES) return false;
        for (int64_t j = 0; j < count; j += LANES) {
            Floats square[LANES];
            for (int64_t l = 0; l < LANES; l++) square[l] = load(from + (LANES - 1 - l) * rows.width + j);
            transpose(square);
            for (int64_t i = 0; i < std::min<int64_t>(LANES, count - j); i++) {
                float* to = sums.get() + (j + i) * width + distance + j + i;
                store(to, load(to) + matrix.scale * square[i]);
            }
        }
        return true;
    }

    // Set the sums to 0 for all distances from some rows to some keys.
    void clear(int64_t first, int64_t count, int64_t first_key, int64_t last_key) {
        int64_t nearest = INT64_MAX, farthest = INT64_MIN;
        for (int64_t r = first; r < first + count; r++) {
            nearest = std::min(nearest, scores.position(r));
            farthest = std::max(farthest, scores.position(r));
        }
        low = std::clamp(first_key - farthest, -reach, reach) + reach;
        high = std::clamp(last_key - nearest, -reach, reach) + reach;
        for (int64_t i = 0; i < RELATIVE_GROUP; i++) std::memset(sums.get() + i * width + low, 0, 4 * (high - low + 1));
    }

    // Multiply the sums with the vectors, and their transpose with the group.
    //
    // to: the gradient of the group, whose rows are `row` and whose panels are `panel` apart; or null.
    void multiply(int64_t count, float* to, int64_t row, int64_t panel) {
        const float* from = sums.get() + low;
        for (int64_t p = 0; p < vectors.count && to; p++)
            multiply_panel<true>(from, width, 1, vectors.at(p, low), PANEL, to + p * panel, row, count, high - low + 1,
                                 vectors.columns(p));
        for (int64_t p = 0; p < grad_vectors.count; p++)
            multiply_panel<true>(from, 1, width, group.get() + p * PANEL, padded_dim, grad_vectors.at(p, low), PANEL,
                                 high - low + 1, count, vectors.columns(p));
    }

    const ScoreStep& step;
    const Rows& rows;
    const Scores& scores;
    const Matrix& matrix;
    const int64_t reach, distances, width, padded_dim;
    Panels vectors, grad_vectors;
    FloatArray sums;   // (group, width)
    FloatArray group;  // its queries or keys
    int64_t packed = -1, low = 0, high = 0;
};

}  // namespace regard
