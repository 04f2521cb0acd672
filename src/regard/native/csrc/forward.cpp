// Attention and what is measured of its weights, a block of rows at a time.
//
// The keys of a head are packed once, so that a tile of rows and keys is one product in registers. Then, for as many
// rows as a core's cache holds: their scores, masked; the exponentials with their sums; the measures and the product
// with the values, while the block is in the cache. Keys that no row of the block may attend to are left out, in steps
// of 64.
//
// The numbers of a row are added up in an order that depends on its own keys only, and those of a column in chunks
// whose size follows from the number of queries: neither the batch nor the number of threads changes a result.

#include <string>

#include "dropout.h"
#include "measures/all.h"
#include "tasks.h"

namespace regard {
namespace {

constexpr int64_t TILE_KEYS = Rows::CONSECUTIVE_BLOCKS * KEY_BLOCK;  // that are multiplied with values at once
constexpr int64_t FEW_ROWS = 8;  // up to as many queries, copying the values takes longer than the product
constexpr int64_t MIN_ROWS = (12 + ROW_UNIT - 1) / ROW_UNIT * ROW_UNIT;
constexpr int64_t FEW_ROWS_FIT = 24, MAX_ROWS = 48, MOST_ROWS = 192;

// What one thread needs for the heads that it computes.
class Forward {
  public:
    explicit Forward(const Call& call)
        : call(call),
          matrix(call.matrix),
          few_rows_fit(fit_few_rows(call)),
          key_blocks(round_up(matrix.keys, KEY_BLOCK) / KEY_BLOCK),
          width(row_width(matrix, few_rows_fit ? MOST_ROWS : MAX_ROWS)),
          max_rows(rows_in_cache(call)),
          is_in_place(can_stay(call)),
          is_bf16(HAS_BF16 && call.value.data && call.value.dtype == BFLOAT16),
          scores(matrix, max_rows),
          values(is_in_place ? 0 : key_blocks * KEY_BLOCK, call.value_dim, call.value.data != nullptr),
          weights(allocate(max_rows * width)),
          kept_weights(allocate(call.dropout > 0 ? max_rows * TILE_KEYS : 0)),
          bf16_pairs(allocate(is_bf16 ? max_rows * TILE_KEYS / 2 : 0)),
          outputs(allocate(max_rows * values.width)),
          softmax(max_rows),
          row_sums(max_rows),
          rows{scores, width, weights.get(), row_sums.data()},
          measures(create_measures(call, rows)) {}

    // The rows of a chunk of a head.
    void run(int64_t b, int64_t h, int64_t chunk) {
        scores.pack(b, h);
        pack_values(b, h);
        for (const MeasurePointer& measure : measures) measure->start(b, h);
        const int64_t stop = std::min((chunk + 1) * call.chunk_rows, matrix.queries);
        for (int64_t first = chunk * call.chunk_rows; first < stop; first += max_rows)
            run_block(b, h, first, std::min(max_rows, stop - first));
        const int64_t head = b * matrix.heads + h;
        for (const MeasurePointer& measure : measures) measure->finish(matrix, head, head * call.chunks + chunk);
    }

  private:
    // Whether the second-level cache holds only a few rows with the keys that are being multiplied. Then reading all
    // keys and values from the third-level cache for each block takes longer than having the block there, too: it gets
    // more rows.
    static bool fit_few_rows(const Call& call) {
        return call.cache_bytes * 4 / 7 / (4 * row_width(call.matrix, MAX_ROWS)) < FEW_ROWS_FIT;
    }

    // Blocks of the same size, as nearly as possible.
    int64_t rows_in_cache(const Call& call) const {
        const int64_t bytes = few_rows_fit ? call.cache_bytes * 16 / 5 : call.cache_bytes * 4 / 7;
        const int64_t fit = bytes / (4 * width) / ROW_UNIT * ROW_UNIT, most = few_rows_fit ? MOST_ROWS : MAX_ROWS;
        const int64_t limit = std::min(std::clamp(fit, MIN_ROWS, most), round_up(call.chunk_rows, ROW_UNIT));
        const int64_t blocks = (call.chunk_rows + limit - 1) / limit;
        return std::min(limit, round_up((call.chunk_rows + blocks - 1) / blocks, ROW_UNIT));
    }

    static bool can_stay(const Call& call) {
        return has_whole_vectors(call.value, call.value_dim, LANES) &&
               (call.value.row == call.value_dim || call.matrix.queries <= FEW_ROWS);
    }

    // Copy the values of a head into panels of columns.
    void pack_values(int64_t b, int64_t h) {
        value_head = call.value_head(h);
        if (!values.count || is_in_place || packed_value == b * call.value_heads + value_head) return;
        packed_value = b * call.value_heads + value_head;
        if (is_bf16)
            values.read_bf16_pairs(call.value, b, value_head, matrix.keys);
        else
            values.read(call.value, b, value_head, matrix.keys);
    }

    void run_block(int64_t b, int64_t h, int64_t first, int64_t count) {
        scores.set_rows(b, h, first, count);
        const int64_t num_columns = scores.count_columns();
        for (int64_t r = 0; r < count; r++) softmax[r].clear();
        for (int64_t a = 0; a < rows.num_blocks(); a++) {
            float* block = weights.get() + a * KEY_BLOCK;
            scores.compute(a, block, width);
            const int64_t block_columns = std::min<int64_t>(KEY_BLOCK, num_columns - a * KEY_BLOCK);
            for (int64_t r = 0; r < count; r++) softmax[r].find_largest(block + r * width, block_columns);
        }
        for (const MeasurePointer& measure : measures) measure->before_softmax(rows);
        const float sink = matrix.sinks ? matrix.sinks[scores.head_of_rules(h)] : -INFINITY;
        for (int64_t r = 0; r < count; r++) softmax[r].start(rows.row(r), num_columns, sink);
        std::memset(outputs.get(), 0, 4 * count * values.width);
        rows.for_consecutive_blocks([&](int64_t a, int64_t stop) {
            const int64_t column = a * KEY_BLOCK, end = stop * KEY_BLOCK;
            const int64_t used = std::min(end, num_columns) - column, all = end - column;
            for (int64_t r = 0; r < count; r++) {
                float* row = weights.get() + r * width + column;
                if (is_bf16 && call.dropout == 0)
                    softmax[r].exponentiate<false, true>(row, used, all, nullptr, 0,
                                                         bf16_pairs.get() + r * TILE_KEYS / 2);
                else
                    softmax[r].exponentiate(row, used, all);
            }
            if (values.count) add_to_output(a, stop);
        });
        bool any_nan = false;
        for (int64_t r = 0; r < count; r++) {
            row_sums[r] = softmax[r].finish();
            any_nan |= row_sums[r].is_nan;
        }
        if (any_nan) write_nan();
        for (const MeasurePointer& measure : measures) measure->forward(rows);
        if (values.count) write_output();
    }

    // The weights of a row with a score of NaN or infinity: NaN for the keys that it may attend to, else 0.
    void write_nan() {
        const FloatArray again = allocate(max_rows * KEY_BLOCK);
        for (int64_t a = 0; a < rows.num_blocks(); a++) {
            scores.compute(a, again.get(), KEY_BLOCK);
            for (int64_t r = 0; r < rows.count(); r++)
                for (int64_t j = 0; j < KEY_BLOCK && row_sums[r].is_nan; j++)
                    weights[r * width + a * KEY_BLOCK + j] = again[r * KEY_BLOCK + j] == -INFINITY ? 0 : NAN;
        }
        for (int64_t r = 0; r < rows.count(); r++)
            if (row_sums[r].is_nan) row_sums[r].factor = 1;
    }

    // Multiply the weights of active blocks, whose keys follow each other, with the values.
    void add_to_output(int64_t a, int64_t stop) {
        const int64_t key = rows.first_key(a), count = (stop - a) * KEY_BLOCK;
        const int64_t keys = std::min<int64_t>(count, matrix.keys - key);
        const float* factors = weights.get() + a * KEY_BLOCK;
        int64_t stride = width;
        if (call.dropout > 0) {
            for (int64_t r = 0; r < rows.count(); r++) {
                float* to = kept_weights.get() + r * TILE_KEYS;
                drop(factors + r * width, key, count, r, to);
                if (is_bf16) to_bf16_pairs(to, count, bf16_pairs.get() + r * TILE_KEYS / 2);
            }
            factors = kept_weights.get(), stride = TILE_KEYS;
        }
        if (is_bf16) factors = bf16_pairs.get(), stride = TILE_KEYS / 2;
        for (int64_t panel = 0; panel < values.count; panel++) {
            const float* from = is_in_place ? at<float>(call.value, scores.b, value_head, key) + panel * PANEL
                                : is_bf16   ? values.at_bf16(panel, key)
                                            : values.at(panel, key);
            const int64_t columns = values.columns(panel);
            float* to = outputs.get() + panel * PANEL;
            if (HAS_AMX && is_bf16)
                multiply_amx(factors, stride, from, PANEL, to, values.width, rows.count(), count / 2, columns, true);
            else if (is_bf16)
                multiply_panel<true, true>(factors, stride, 1, from, PANEL, to, values.width, rows.count(),
                                           (keys + 1) / 2, columns);
            else
                multiply_panel<true>(factors, stride, 1, from, is_in_place ? call.value.row : PANEL, to, values.width,
                                     rows.count(), keys, columns);
        }
    }

    void drop(const float* from, int64_t key, int64_t count, int64_t r, float* to) const {
        const DropoutRow dropout(call, scores.b, scores.h, scores.first + r);
        for (int64_t j = 0; j < count; j += LANES) store(to + j, dropout.keep(load(from + j), key + j));
    }

    void write_output() {
        with_dtype(call.output.dtype, [&](auto* type) {
            using T = std::remove_pointer_t<decltype(type)>;
            for (int64_t r = 0; r < rows.count(); r++) {
                T* to = const_cast<T*>(at<T>(call.output, scores.b, scores.h, scores.first + r));
                const float factor = row_sums[r].is_nan ? NAN : row_sums[r].factor / keep_probability(call);
                write_row(outputs.get() + r * values.width, call.value_dim, factor, to, call.output.column);
            }
        });
    }

    const Call& call;
    const Matrix& matrix;
    const bool few_rows_fit;
    const int64_t key_blocks, width, max_rows;
    const bool is_in_place;  // the values are multiplied where they are
    const bool is_bf16;      // the values are multiplied in bfloat16
    Scores scores;
    Panels values;
    FloatArray weights;       // scores, then weights that are not divided by their sums
    FloatArray kept_weights;  // after dropout
    FloatArray bf16_pairs;    // weights in bfloat16
    FloatArray outputs;
    std::vector<Softmax> softmax;
    std::vector<RowSums> row_sums;
    const Rows rows;
    std::vector<MeasurePointer> measures;
    int64_t packed_value = -1, value_head = 0;
};

}  // namespace
}  // namespace regard

extern "C" int regard_forward(const regard::Call* call, int64_t first, int64_t last) {
    return regard::run_tasks<regard::Forward>(*call, first, last);
}

// Add up what the chunks of each head have left, after all tasks.
extern "C" void regard_finish_forward(const regard::Call* call) {
    const regard::Matrix& matrix = call->matrix;
    for (int64_t m = 0; m < call->measure_count; m++) {
        const regard::MeasureCall& measure = call->measures[m];
        if (measure.by_chunk)
            regard::add_chunks(measure.by_chunk, matrix.batch * matrix.heads, call->chunks, matrix.keys, measure.width,
                               measure.result, measure.stride);
    }
}

// The names of all kinds in the order of their numbers, each followed by a space: masks, scores and measures.
REGARD_EXPORT const char* regard_kinds() {
    static const std::string kinds = [] {
        std::string names = REGARD_MASK_KINDS(REGARD_QUOTE) REGARD_SCORE_KINDS(REGARD_QUOTE);
        for (const regard::MeasureClass& measure : regard::MEASURES) names += std::string(measure.name) + " ";
        return names;
    }();
    return kinds.c_str();
}
