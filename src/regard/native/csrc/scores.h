// The masked scores of a block of rows, for those blocks of 64 keys that some row may attend to.

#pragma once

#include <cmath>
#include <vector>

#include "gemm.h"
#include "mask.h"
#include "relative.h"
#include "tensor.h"

namespace regard {

class Scores {
  public:
    Scores(const Matrix& matrix, int64_t max_rows)
        : matrix(matrix),
          key_blocks(round_up(matrix.keys, KEY_BLOCK) / KEY_BLOCK),
          max_rows(max_rows),
          is_bf16(HAS_BF16 && matrix.query.dtype == BFLOAT16 && matrix.key.dtype == BFLOAT16),
          is_scaled(HAS_AMX && is_bf16 && is_power_of_two(matrix.scale)),
          key_floats(!is_bf16 ? matrix.head_dim : round_up((matrix.head_dim + 1) / 2, HAS_AMX ? AMX_FLOATS : 1)),
          queries(allocate(max_rows * matrix.head_dim)),
          query_bf16_pairs(allocate(is_bf16 ? max_rows * key_floats : 0)),
          keys(allocate(key_blocks * KEY_BLOCK * key_floats)),
          copy(allocate(LANES * key_floats)),
          is_packed(key_blocks),
          masks(max_rows * key_blocks) {
        if (HAS_AMX && is_bf16) {  // what is packed ends before the tiles do
            std::memset(keys.get(), 0, 4 * key_blocks * KEY_BLOCK * key_floats);
            std::memset(query_bf16_pairs.get(), 0, 4 * max_rows * key_floats);
        }
        for (int64_t s = 0; s < matrix.score_steps; s++) {
            if (!is_relative(matrix.scores[s])) continue;
            relative.emplace_back(matrix.scores[s], matrix.head_dim);
            if (matrix.scores[s].kind == ADD_RELATIVE_QUERY && !key_rows) {
                key_rows = allocate(KEY_BLOCK * matrix.head_dim);
                std::memset(key_rows.get(), 0, 4 * KEY_BLOCK * matrix.head_dim);  // a last block has fewer
            }
        }
    }

    // How many blocks of keys some consecutive rows may attend to at most.
    static int64_t count_blocks(const Matrix& matrix, int64_t rows) {
        const int64_t all = round_up(matrix.keys, KEY_BLOCK) / KEY_BLOCK;
        if (matrix.row_index) return all;  // rows from anywhere
        const int64_t visible = count_visible(matrix.mask, matrix.keys) + rows - 1;
        return std::min(all, round_up(visible - 1, KEY_BLOCK) / KEY_BLOCK + 1);
    }

    // Prepare for the keys of a head, which are copied into panels when a row needs them.
    void pack(int64_t b, int64_t h) {
        for (RelativeVectors& vectors : relative) vectors.read(batch_of_rules(b), head_of_rules(h));
        const int64_t head = b * matrix.kv_heads + matrix.kv_head(h);
        if (packed == head) return;
        packed = head;
        std::fill(is_packed.begin(), is_packed.end(), 0);
    }

    // Rows of a tensor from `start` to `rows` as panels of PANEL rows, with a row for each feature: panel[f][row].
    //
    // Rows that are missing are 0, as far as a vector reaches. With `is_bf16`, a float is two features in bfloat16.
    // `copy` has room for LANES rows; a panel has `panel_floats` rows, or as many as there are features.
    static void pack_panels(const Strided& tensor, int64_t b, int64_t h, int64_t start, int64_t rows, int64_t features,
                            float* to, float* copy, bool is_bf16 = false, int64_t panel_floats = 0) {
        const int64_t width = is_bf16 ? (features + 1) / 2 : features;
        const bool is_direct = tensor.column == 1 && (is_bf16 ? features % 2 == 0 : tensor.dtype == FLOAT32);
        for (int64_t first = start; first < rows; first += LANES) {
            float* panel = to + first / PANEL * PANEL * std::max(width, panel_floats) + first % PANEL;
            const int64_t count = std::min<int64_t>(LANES, rows - first);
            const char* from[LANES];
            if (!is_direct && is_bf16) read_bf16_pairs(tensor, b, h, first, first + count, features, copy, width);
            if (!is_direct && !is_bf16) read_rows(tensor, b, h, first, first + count, features, copy, width);
            for (int64_t i = 0; i < count; i++) {
                const int64_t offset = offset_of(tensor, b, h, first + i) * (tensor.dtype == FLOAT32 ? 4 : 2);
                from[i] = is_direct ? static_cast<const char*>(tensor.data) + offset
                                    : reinterpret_cast<const char*>(copy + i * width);
            }
            int64_t f = 0;
            for (; f + LANES <= width; f += LANES) {
                Floats square[LANES];
                for (int64_t i = 0; i < LANES; i++) {
                    square[i] = Floats{};
                    if (i < count) std::memcpy(&square[i], from[i] + 4 * f, sizeof square[i]);
                }
                transpose(square);
                for (int64_t i = 0; i < LANES; i++) store(panel + (f + i) * PANEL, square[i]);
            }
            for (; f < width; f++)
                for (int64_t i = 0; i < LANES; i++) {
                    panel[f * PANEL + i] = 0;
                    if (i < count) std::memcpy(panel + f * PANEL + i, from[i] + 4 * f, 4);
                }
        }
    }

    // Read the queries of some rows, and list the blocks of keys that they may attend to.
    void set_rows(int64_t b, int64_t h, int64_t first, int64_t count) {
        take_rows(b, h, first, count);
        KeyRange range{0, matrix.keys};
        if (matrix.mask.count) {
            range = {matrix.keys, 0};
            for (const MaskRow& row : mask_rows) {
                const KeyRange keys = row.range();
                if (keys.start < keys.stop)
                    range = {std::min(range.start, keys.start), std::max(range.stop, keys.stop)};
            }
        }
        for (int64_t block = range.start / KEY_BLOCK; block * KEY_BLOCK < range.stop; block++) add_block(block, false);
        list_slots();
    }

    // The same with the active blocks of another matrix.
    void set_rows(const Scores& other) {
        take_rows(other.b, other.h, other.first, other.rows);
        for (const int64_t block : other.active) add_block(block, true);
        list_slots();
    }

    // Compute the scores of all rows for one active block, -inf where masked.
    //
    // slopes: where a soft-cap's derivative goes, or null.
    void compute(size_t a, float* to, int64_t width, float* slopes = nullptr) {
        for (int64_t j = 0; j < count_keys(a); j += PANEL) {
            const float* panel = keys.get() + (active[a] * KEY_BLOCK + j) * key_floats;
            const int64_t columns = std::min<int64_t>(PANEL, count_keys(a) - j);
            if (HAS_AMX && is_bf16) {
                multiply_amx(query_bf16_pairs.get(), key_floats, panel, PANEL, to + j, width, rows, key_floats, columns,
                             false);
                for (int64_t r = 0; r < rows && !is_scaled; r++)
                    for (int64_t i = 0; i < columns; i += LANES)
                        store(to + r * width + j + i, load(to + r * width + j + i) * matrix.scale);
            } else if (is_bf16)
                multiply_panel<false, true>(query_bf16_pairs.get(), key_floats, 1, panel, PANEL, to + j, width, rows,
                                            key_floats, columns, matrix.scale);
            else
                multiply_panel<false>(queries.get(), key_floats, 1, panel, PANEL, to + j, width, rows, key_floats,
                                      columns);
        }
        size_t num_relative = 0;
        for (int64_t s = 0; s < matrix.score_steps; s++) {
            if (is_relative(matrix.scores[s])) {
                add_relative(relative[num_relative++], a, to, width);
                continue;
            }
            for (int64_t r = 0; r < rows; r++)
                change(matrix.scores[s], r, active[a] * KEY_BLOCK, to + r * width,
                       slopes ? slopes + r * width : nullptr);
        }
        if (!is_full[a])
            for (int64_t r = 0; r < rows; r++) apply_mask(bits(a, r), to + r * width);
    }

    // How many keys an active block has.
    int64_t count_keys(size_t a) const { return std::min(KEY_BLOCK, matrix.keys - active[a] * KEY_BLOCK); }

    // How many columns of a row have a key, rounded up to two vectors; the others are 0 or -inf.
    int64_t count_columns() const {
        if (active.empty()) return 0;
        return (active.size() - 1) * KEY_BLOCK + round_up(count_keys(active.size() - 1), 2 * LANES);
    }

    // Bit j is whether row r may attend to key j of an active block.
    uint64_t bits(size_t a, int64_t r) const { return masks[a * max_rows + r]; }

    // Where a block of keys is in `active`; -1 if it is not.
    int64_t slot_of(int64_t block) const {
        return block >= first_block && block < first_block + static_cast<int64_t>(slots.size())
                   ? slots[block - first_block]
                   : -1;
    }

    // Of a row in a contiguous tensor (batch, heads, queries).
    int64_t row_offset(int64_t r) const { return (b * matrix.heads + h) * matrix.queries + first + r; }

    int64_t batch_of_rules(int64_t batch) const { return matrix.batch_index ? matrix.batch_index[batch] : batch; }
    int64_t head_of_rules(int64_t head) const { return matrix.head_index ? matrix.head_index[head] : head; }
    int64_t row_of_rules(int64_t r) const { return matrix.row_index ? matrix.row_index[first + r] : first + r; }
    int64_t position(int64_t r) const { return row_of_rules(r) + matrix.offset; }

    // How many rows from one on have consecutive positions, up to a limit.
    int64_t count_consecutive(int64_t r, int64_t most) const {
        int64_t count = 1;
        while (count < most && r + count < rows && position(r + count) == position(r) + count) count++;
        return count;
    }

    const Matrix& matrix;
    const int64_t key_blocks, max_rows;
    int64_t b = 0, h = 0, first = 0, rows = 0;
    const bool is_bf16;    // keys and queries are multiplied in bfloat16
    const bool is_scaled;  // so are the pairs of queries
    const int64_t key_floats;
    FloatArray queries;  // times the scale
    FloatArray query_bf16_pairs;
    FloatArray keys;
    std::vector<int64_t> active;
    std::vector<char> is_full;

  private:
    // Products with one are exact in bfloat16.
    static bool is_power_of_two(float number) {
        int exponent;
        return std::frexp(number, &exponent) == 0.5f;
    }

    void take_rows(int64_t batch, int64_t head, int64_t start, int64_t count) {
        b = batch, h = head, first = start, rows = count;
        read_rows(matrix.query, b, h, first, first + rows, matrix.head_dim, queries.get(), matrix.head_dim,
                  matrix.scale);
        if (is_bf16)
            read_bf16_pairs(matrix.query, b, h, first, first + rows, matrix.head_dim, query_bf16_pairs.get(),
                            key_floats);
        if (is_scaled)
            for (int64_t r = 0; r < rows; r++)
                for (int64_t f = 0; f < matrix.head_dim; f++) {
                    uint16_t half;
                    from_float(queries[r * matrix.head_dim + f], half);
                    std::memcpy(reinterpret_cast<char*>(query_bf16_pairs.get() + r * key_floats) + 2 * f, &half, 2);
                }
        active.clear();
        is_full.clear();
        mask_rows.clear();
        if (!matrix.mask.count) return;
        for (int64_t r = 0; r < rows; r++)
            mask_rows.emplace_back(matrix.mask, matrix.keys, batch_of_rules(b), head_of_rules(h), row_of_rules(r),
                                   position(r));
    }

    // Make a block of keys active, unless no row sees one of them and it must not be; read its masks and pack its keys.
    void add_block(int64_t block, bool must) {
        uint64_t* bits = masks.data() + active.size() * max_rows;  // of the rows
        uint64_t any = 0, every = ~uint64_t{0};
        if (!matrix.mask.count) {
            any = every = bits_of_range(0, matrix.keys - block * KEY_BLOCK);
            std::fill_n(bits, rows, any);
        } else {
            for (int64_t r = 0; r < rows; r++) {
                bits[r] = mask_rows[r].bits(block * KEY_BLOCK);
                any |= bits[r];
                every &= bits[r];
            }
        }
        if (!any && !must) return;
        active.push_back(block);
        is_full.push_back(every == ~uint64_t{0});
        if (is_packed[block]) return;
        is_packed[block] = 1;
        const int64_t start = block * KEY_BLOCK, stop = std::min(start + KEY_BLOCK, matrix.keys);
        pack_panels(matrix.key, b, matrix.kv_head(h), start, stop, matrix.head_dim, keys.get(), copy.get(), is_bf16,
                    key_floats);
    }

    void list_slots() {
        slots.clear();
        if (active.empty()) return;
        first_block = active.front();
        slots.assign(active.back() - first_block + 1, -1);
        for (size_t a = 0; a < active.size(); a++) slots[active[a] - first_block] = a;
    }

    void change(const ScoreStep& step, int64_t r, int64_t start, float* scores, float* slopes) {
        const int64_t count = std::min(KEY_BLOCK, matrix.keys - start), head = head_of_rules(h);
        if (step.kind == ADD_BIAS) {
            const float* from =
                at<float>(step.values, batch_of_rules(b), head, row_of_rules(r)) + start * step.values.column;
            if (step.values.column == 1)
                for (int64_t j = 0; j < count; j++) scores[j] += from[j];
            else
                for (int64_t j = 0; j < count; j++) scores[j] += from[j * step.values.column];
        } else if (step.kind == ADD_DISTANCES) {
            const float* from = at<float>(step.values, 0, head, 0) + start - position(r) + step.shift;
            for (int64_t j = 0; j < count; j++) scores[j] += from[j];
        } else {
            for (int64_t j = 0; j < KEY_BLOCK; j += LANES) {
                const Floats t = tanh(load(scores + j) / step.cap);
                store(scores + j, step.cap * t);
                if (slopes) store(slopes + j, 1.0f - t * t);
            }
        }
    }

    void add_relative(RelativeVectors& vectors, size_t a, float* to, int64_t width) {
        const int64_t start = active[a] * KEY_BLOCK, keys = count_keys(a);
        const bool is_key = vectors.step.kind == ADD_RELATIVE_KEY;
        if (!is_key)
            read_rows(matrix.key, b, matrix.kv_head(h), start, start + keys, matrix.head_dim, key_rows.get(),
                      matrix.head_dim, matrix.scale);
        for (int64_t r = 0, count; r < rows; r += count) {
            count = count_consecutive(r, is_key ? RELATIVE_GROUP : RELATIVE_ROWS);
            const int64_t distance = start - position(r + count - 1);
            if (is_key) {
                const float* from = queries.get() + r * matrix.head_dim;
                vectors.add_to_rows(from, count, distance, to + r * width, width);
            } else {
                for (int64_t j = 0; j < keys; j += RELATIVE_GROUP)
                    vectors.add_to_columns(key_rows.get() + j * matrix.head_dim, count, distance + j,
                                           to + r * width + j, width);
            }
        }
    }

    static void apply_mask(uint64_t bits, float* scores) {
        if (bits == ~uint64_t{0}) return;
        for (int64_t j = 0; j < KEY_BLOCK; j += LANES)
            store(scores + j, select(bits >> j, load(scores + j), broadcast(-INFINITY)));
    }

    int64_t packed = -1, first_block = 0;
    FloatArray copy;
    std::vector<char> is_packed;  // of each block of keys
    std::vector<uint64_t> masks;  // of each row, by active block
    std::vector<MaskRow> mask_rows;
    std::vector<int64_t> slots;
    std::vector<RelativeVectors> relative;  // of the steps that have some, in order
    FloatArray key_rows;                    // of a block, times the scale
};

}  // namespace regard
