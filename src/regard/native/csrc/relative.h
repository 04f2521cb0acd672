// Relative positions: a vector for each distance from a query to a key, compared with the query or with the key.
//
// Rows that follow each other share most of their distances. The products of a few of them with the vectors of
// consecutive distances are one product of small matrices, of which each row reads a diagonal.

#pragma once

#include "gemm.h"
#include "mask.h"
#include "tensor.h"

namespace regard {

constexpr int64_t RELATIVE_GROUP = 16;  // queries or keys of a product
constexpr int64_t RELATIVE_ROWS = 48;   // queries that a group of keys is compared with: fills the columns of a tile

inline bool is_relative(const ScoreStep& step) {
    return step.kind == ADD_RELATIVE_KEY || step.kind == ADD_RELATIVE_QUERY;
}

// Floats from a row of numbers by distance to the next: not a power of two, so that rows do not share the cache's sets.
inline int64_t relative_width(int64_t distances) {
    return round_up(distances, 32) + 16;
}

// The vectors of a head, one after another in each feature: panels cannot start at any distance.
class RelativeVectors {
  public:
    RelativeVectors(const ScoreStep& step, int64_t features)
        : step(step),
          reach(step.shift),
          features(features),
          distances(round_up(2 * reach + 1 + 2 * COLUMNS, LANES)),
          width(relative_width(distances)),
          vectors(allocate(features * width)),
          products(allocate(RELATIVE_GROUP * COLUMNS)) {}

    // Read the vectors of a head; the first and the last one are repeated for the distances beyond.
    void read(int64_t b, int64_t h) {
        const int64_t offset = offset_of(step.values, b, h, 0);
        if (offset == packed) return;
        packed = offset;
        for (int64_t d = 0; d < distances; d += LANES) {
            const float* from[LANES];
            for (int64_t i = 0; i < LANES; i++)
                from[i] = at<float>(step.values, b, h, std::clamp<int64_t>(d + i - COLUMNS, 0, 2 * reach));
            int64_t f = 0;
            for (; f + LANES <= features; f += LANES) {
                Floats square[LANES];
                for (int64_t i = 0; i < LANES; i++) square[i] = load(from[i] + f);
                transpose(square);
                for (int64_t i = 0; i < LANES; i++) store(vectors.get() + (f + i) * width + d, square[i]);
            }
            for (; f < features; f++)
                for (int64_t i = 0; i < LANES; i++) vectors[f * width + d + i] = from[i][f];
        }
    }

    // Add the products of queries to their scores for a block of keys.
    //
    // distance: of the last query to the first key; each query before it is one further away.
    void add_to_rows(const float* queries, int64_t rows, int64_t distance, float* scores, int64_t stride) {
        multiply(queries, rows, distance, KEY_BLOCK + rows - 1);
        for (int64_t r = 0; r < rows; r++) {
            const float* from = products.get() + r * COLUMNS + rows - 1 - r;
            float* to = scores + r * stride;
            for (int64_t j = 0; j < KEY_BLOCK; j += LANES) store(to + j, load(to + j) + load(from + j));
        }
    }

    // Add the products of a group of keys to their scores for some rows, up to RELATIVE_ROWS.
    void add_to_columns(const float* keys, int64_t rows, int64_t distance, float* scores, int64_t stride) {
        multiply(keys, RELATIVE_GROUP, distance, rows + RELATIVE_GROUP - 1);
        for (int64_t i = 0; i < rows; i += LANES)
            for (int64_t j = 0; j < RELATIVE_GROUP; j += LANES) {
                Floats square[LANES];
                for (int64_t l = 0; l < LANES; l++)
                    square[l] = load(products.get() + (j + l) * COLUMNS + j + l + i);  // from the last row on
                transpose(square);
                for (int64_t l = 0; l < std::min<int64_t>(LANES, rows - i); l++) {
                    float* to = scores + (rows - 1 - i - l) * stride + j;
                    store(to, load(to) + square[l]);
                }
            }
    }

    const ScoreStep& step;

  private:
    static constexpr int64_t COLUMNS = KEY_BLOCK + RELATIVE_GROUP;  // of the products
    static_assert(COLUMNS >= RELATIVE_ROWS + RELATIVE_GROUP && RELATIVE_GROUP % LANES == 0);

    // The products of some rows with the vectors of `count` distances from the first on.
    void multiply(const float* rows, int64_t num_rows, int64_t first, int64_t count) {
        const bool is_clipped = first + count - 1 <= -reach || first >= reach;  // all to the same distance
        const float* from = vectors.get() + COLUMNS + reach + std::clamp(first, -reach - COLUMNS, reach);
        const int64_t columns = is_clipped ? LANES : count;
        for (int64_t c = 0; c < columns; c += PANEL)
            multiply_panel<false>(rows, features, 1, from + c, width, products.get() + c, COLUMNS, num_rows, features,
                                  std::min<int64_t>(PANEL, columns - c));
        for (int64_t r = 0; r < num_rows; r++)
            for (int64_t c = columns; c < count; c += LANES)
                store(products.get() + r * COLUMNS + c, load(products.get() + r * COLUMNS));
    }

    const int64_t reach, features, distances, width;
    int64_t packed = -1;
    FloatArray vectors, products;
};

}  // namespace regard
