// A block of rows of a head while it is in the cache, and products with all rows of a tensor.

#pragma once

#include "scores.h"
#include "softmax.h"

namespace regard {

// The rows of `scores` for its active blocks of keys, one after another.
struct Rows {
    const Scores& scores;
    const int64_t width;  // floats from a row to the next
    float* weights;       // first the scores, then their exponentials, which are not yet divided by their sum
    const RowSums* sums;  // of the exponentials

    int64_t count() const { return scores.rows; }
    int64_t num_blocks() const { return scores.active.size(); }
    int64_t first_key(int64_t a) const { return scores.active[a] * KEY_BLOCK; }  // of an active block
    int64_t num_keys(int64_t a) const { return scores.count_keys(a); }
    int64_t padded_keys() const { return scores.key_blocks * KEY_BLOCK; }  // of the head

    // Rows of another matrix of the same form.
    const float* row(int64_t r) const { return weights + r * width; }

    // Where a key is in a row; -1 if it is not in an active block.
    int64_t column_of(int64_t key) const {
        if (key < 0 || key >= scores.matrix.keys) return -1;
        const int64_t slot = scores.slot_of(key / KEY_BLOCK);
        return slot < 0 ? -1 : slot * KEY_BLOCK + key % KEY_BLOCK;
    }

    // Call a function with the first and last key from start to stop that an active block has, and where they are.
    template <typename Function>
    void for_keys(int64_t start, int64_t stop, Function function) const {
        for (int64_t a = 0; a < num_blocks(); a++) {
            const int64_t first = first_key(a);
            const int64_t low = std::max(start, first), high = std::min(stop, first + num_keys(a));
            if (low < high) function(low, high, a * KEY_BLOCK + low - first);
        }
    }

    // Call a function with the first and last (exclusive) of active blocks whose keys follow each other. They are
    // divided at the same places whatever the other rows see, and stay in the first cache while they are multiplied.
    template <typename Function>
    void for_consecutive_blocks(Function function) const {
        for (int64_t a = 0, stop; a < num_blocks(); a = stop) {
            stop = a + 1;
            while (stop < num_blocks() && scores.active[stop] == scores.active[stop - 1] + 1 &&
                   scores.active[stop] % CONSECUTIVE_BLOCKS)
                stop++;
            function(a, stop);
        }
    }

    static constexpr int64_t CONSECUTIVE_BLOCKS = 4;
};

// The rows of a head, (keys, features), as panels of PANEL columns.
class Panels {
  public:
    Panels(int64_t keys, int64_t features, bool is_used)
        : keys(keys),
          features(features),
          count(is_used ? round_up(features, PANEL) / PANEL : 0),
          width(count * PANEL),
          data(allocate(keys * width)) {}

    float* at(int64_t panel, int64_t key) { return data.get() + (panel * keys + key) * PANEL; }

    int64_t columns(int64_t panel) const { return std::min<int64_t>(PANEL, features - panel * PANEL); }

    void clear() { std::memset(data.get(), 0, 4 * keys * width); }

    void read(const Strided& tensor, int64_t b, int64_t h, int64_t rows) {
        for (int64_t panel = 0; panel < count; panel++) {
            Strided features_of_panel = tensor;
            features_of_panel.data = static_cast<const char*>(tensor.data) +
                                     panel * PANEL * tensor.column * (tensor.dtype == FLOAT32 ? 4 : 2);
            read_rows(features_of_panel, b, h, 0, rows, columns(panel), at(panel, 0), PANEL);
        }
    }

    // The same with two keys in a float; those from `rows` to the end are 0.
    void read_bf16_pairs(const Strided& tensor, int64_t b, int64_t h, int64_t rows) {
        for (int64_t panel = 0; panel < count; panel++)
            std::memset(at_bf16(panel, rows / 2 * 2), 0, 4 * (keys / 2 - rows / 2) * PANEL);
        for (int64_t j = 0; j < rows; j += 2) {
            const uint16_t* first = regard::at<uint16_t>(tensor, b, h, j);
            const uint16_t* second = j + 1 < rows ? regard::at<uint16_t>(tensor, b, h, j + 1) : nullptr;
            for (int64_t panel = 0; panel < count; panel++) {
                uint32_t pairs[PANEL] = {};
                for (int64_t f = 0; f < columns(panel); f++) {
                    const int64_t column = (panel * PANEL + f) * tensor.column;
                    pairs[f] = first[column] | (second ? static_cast<uint32_t>(second[column]) << 16 : 0);
                }
                std::memcpy(at_bf16(panel, j), pairs, sizeof pairs);
            }
        }
    }

    float* at_bf16(int64_t panel, int64_t key) { return data.get() + (panel * keys + key / 2) * PANEL; }

    void write(float* to, int64_t rows) {
        for (int64_t j = 0; j < rows; j++)
            for (int64_t panel = 0; panel < count; panel++)
                std::memcpy(to + j * features + panel * PANEL, at(panel, j), 4 * columns(panel));
    }

    const int64_t keys, features, count, width;

  private:
    FloatArray data;
};

// How far apart the rows of a block are: not a power of two, so that they do not share the cache's sets.
inline int64_t row_width(const Matrix& matrix, int64_t rows) {
    return Scores::count_blocks(matrix, rows) * KEY_BLOCK + LANES;
}

}  // namespace regard
