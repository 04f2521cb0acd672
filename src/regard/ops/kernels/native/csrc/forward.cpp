// Attention and what is measured of its weights, a block of rows at a time.
//
// The keys of a head are packed once, so that a tile of rows and keys is one product in registers. Then, for as many
// rows as a core's cache holds: their scores, masked; the exponentials with their sums; the measures and the product
// with the values, while the block is in the cache. Keys that no row of the block may attend to are left out, in steps
// of 64.
//
// The numbers of a row are added up in an order that depends on its own keys only, and those of a column in chunks
// whose size follows from the number of queries: neither the batch nor the number of threads changes a result.

#include "dropout.h"
#include "measures.h"
#include "tasks.h"

namespace regard {
namespace {

constexpr int64_t STEP = 4;  // blocks of keys whose weights stay in the first cache while they are multiplied
constexpr int64_t PART = STEP * KEY_BLOCK;
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
          value_panels(call.value.data ? round_up(call.value_dim, PANEL) / PANEL : 0),
          max_rows(rows_in_cache(call)),
          is_in_place(can_stay(call)),
          is_paired(HAS_PAIRS && call.value.data && call.value.dtype == BFLOAT16),
          scores(matrix, max_rows),
          measures(call, scores, max_rows, width),
          values(allocate(value_panels * (is_in_place ? 0 : key_blocks * KEY_BLOCK) * PANEL)),
          cells(allocate(max_rows * width)),
          remaining(allocate(call.dropout > 0 ? max_rows * PART : 0)),
          pairs(allocate(is_paired ? max_rows * PART / 2 : 0)),
          outputs(allocate(max_rows * value_panels * PANEL)),
          softmax(max_rows),
          row_sums(max_rows) {}

    // The rows of a chunk of a head.
    void run(int64_t b, int64_t h, int64_t chunk) {
        scores.pack(b, h);
        pack_values(b, h);
        measures.start(b, h);
        const int64_t stop = std::min((chunk + 1) * call.chunk_rows, matrix.queries);
        for (int64_t first = chunk * call.chunk_rows; first < stop; first += max_rows)
            run_block(b, h, first, std::min(max_rows, stop - first));
        measures.finish(b, h, chunk);
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
        const int64_t rows = std::min(std::clamp(fit, MIN_ROWS, most), round_up(call.chunk_rows, ROW_UNIT));
        const int64_t blocks = (call.chunk_rows + rows - 1) / rows;
        return std::min(rows, round_up((call.chunk_rows + blocks - 1) / blocks, ROW_UNIT));
    }

    static bool can_stay(const Call& call) {
        const Strided& value = call.value;
        return value.data && value.dtype == FLOAT32 && value.column == 1 && call.value_dim % LANES == 0 &&
               (value.row == call.value_dim || call.matrix.queries <= FEW_ROWS);
    }

    // Copy the values of a head into panels of columns.
    void pack_values(int64_t b, int64_t h) {
        value_head = h / (matrix.heads / call.value_heads);
        if (!value_panels || is_in_place || packed_value == b * call.value_heads + value_head) return;
        packed_value = b * call.value_heads + value_head;
        if (is_paired) return pack_pairs(b);
        for (int64_t panel = 0; panel < value_panels; panel++) {
            Strided part = call.value;
            const int64_t column = panel * PANEL * part.column;
            part.data = static_cast<const char*>(part.data) + column * (part.dtype == FLOAT32 ? 4 : 2);
            read_rows(part, b, value_head, 0, matrix.keys, std::min<int64_t>(PANEL, call.value_dim - panel * PANEL),
                      values.get() + panel * key_blocks * KEY_BLOCK * PANEL, PANEL);
        }
    }

    // The same with two keys in a float.
    void pack_pairs(int64_t b) {
        for (int64_t panel = 0; panel < value_panels; panel++) {  // tiles end where a block of keys does
            const int64_t first = matrix.keys / 2, last = key_blocks * KEY_BLOCK / 2;
            std::memset(values.get() + (panel * last + first) * PANEL, 0, 4 * (last - first) * PANEL);
        }
        for (int64_t j = 0; j < matrix.keys; j += 2) {
            const uint16_t* first = at<uint16_t>(call.value, b, value_head, j);
            const uint16_t* second = j + 1 < matrix.keys ? at<uint16_t>(call.value, b, value_head, j + 1) : nullptr;
            for (int64_t panel = 0; panel < value_panels; panel++) {
                float* to = values.get() + (panel * key_blocks * KEY_BLOCK + j) / 2 * PANEL;
                const int64_t start = panel * PANEL, count = std::min<int64_t>(PANEL, call.value_dim - start);
                uint32_t pairs[PANEL] = {};
                for (int64_t f = 0; f < count; f++) pairs[f] = first[(start + f) * call.value.column];
                if (second)
                    for (int64_t f = 0; f < count; f++)
                        pairs[f] |= static_cast<uint32_t>(second[(start + f) * call.value.column]) << 16;
                std::memcpy(to, pairs, sizeof pairs);
            }
        }
    }

    void run_block(int64_t b, int64_t h, int64_t first, int64_t rows) {
        scores.set_rows(b, h, first, rows);
        const std::vector<int64_t>& active = scores.active;
        const int64_t count = scores.count_cells();
        for (int64_t r = 0; r < rows; r++) softmax[r].clear();
        for (size_t a = 0; a < active.size(); a++) {
            float* block = cells.get() + a * KEY_BLOCK;
            scores.compute(a, block, width);
            const int64_t own = std::min<int64_t>(KEY_BLOCK, count - a * KEY_BLOCK);
            for (int64_t r = 0; r < rows; r++) softmax[r].find_largest(block + r * width, own);
        }
        measures.before_softmax(cells.get());
        const float sink = matrix.sinks ? matrix.sinks[scores.head_of_rules(h)] : -INFINITY;
        for (int64_t r = 0; r < rows; r++) softmax[r].start(cells.get() + r * width, count, sink);
        std::memset(outputs.get(), 0, 4 * rows * value_panels * PANEL);
        for (size_t a = 0, stop; a < active.size(); a = stop) {
            // Blocks that follow each other are one, divided at the same places whatever the other rows see.
            stop = a + 1;
            while (stop < active.size() && active[stop] == active[stop - 1] + 1 && active[stop] % STEP) stop++;
            const int64_t cell = a * KEY_BLOCK, end = stop * KEY_BLOCK;
            const int64_t own = std::min(end, count) - cell, all = end - cell;
            for (int64_t r = 0; r < rows; r++) {
                float* row = cells.get() + r * width + cell;
                if (is_paired && call.dropout == 0)
                    softmax[r].exponentiate<false, true>(row, own, all, nullptr, 0, pairs.get() + r * PART / 2);
                else
                    softmax[r].exponentiate(row, own, all);
            }
            if (value_panels) add_to_output(a, stop);
        }
        bool any_nan = false;
        for (int64_t r = 0; r < rows; r++) {
            row_sums[r] = softmax[r].finish();
            any_nan |= row_sums[r].is_nan;
        }
        if (any_nan) write_nan();
        measures.after_softmax(cells.get(), row_sums.data());
        if (value_panels) write_output();
    }

    // The weights of a row with a score of NaN or infinity: NaN for the keys that it may attend to, else 0.
    void write_nan() {
        const FloatArray again = allocate(max_rows * KEY_BLOCK);
        for (size_t a = 0; a < scores.active.size(); a++) {
            scores.compute(a, again.get(), KEY_BLOCK);
            for (int64_t r = 0; r < scores.rows; r++)
                for (int64_t j = 0; j < KEY_BLOCK && row_sums[r].is_nan; j++)
                    cells[r * width + a * KEY_BLOCK + j] = again[r * KEY_BLOCK + j] == -INFINITY ? 0 : NAN;
        }
        for (int64_t r = 0; r < scores.rows; r++)
            if (row_sums[r].is_nan) row_sums[r].factor = 1;
    }

    // Multiply the weights of active blocks, whose keys follow each other, with the values.
    void add_to_output(size_t a, size_t stop) {
        const int64_t rows = scores.rows, padded = value_panels * PANEL;
        const int64_t key = scores.active[a] * KEY_BLOCK, count = (stop - a) * KEY_BLOCK;
        const int64_t keys = std::min<int64_t>(count, matrix.keys - key);
        const float* weights = cells.get() + a * KEY_BLOCK;
        int64_t stride = width;
        if (call.dropout > 0) {
            weights = remaining.get(), stride = PART;
            for (int64_t r = 0; r < rows; r++) {
                float* to = remaining.get() + r * PART;
                drop(cells.get() + r * width + a * KEY_BLOCK, key, count, r, to);
                if (is_paired) to_pairs(to, count, pairs.get() + r * PART / 2);
            }
        }
        if (is_paired) weights = pairs.get(), stride = PART / 2;
        for (int64_t panel = 0; panel < value_panels; panel++) {
            const float* from =
                is_in_place ? at<float>(call.value, scores.b, value_head, key) + panel * PANEL
                            : values.get() + (panel * key_blocks * KEY_BLOCK + key) * PANEL / (is_paired ? 2 : 1);
            const int64_t columns = std::min<int64_t>(PANEL, call.value_dim - panel * PANEL);
            float* to = outputs.get() + panel * PANEL;
            if (HAS_AMX && is_paired)
                multiply_amx(weights, stride, from, PANEL, to, padded, rows, count / 2, columns, true);
            else if (is_paired)
                multiply_panel<true, true>(weights, stride, 1, from, PANEL, to, padded, rows, (keys + 1) / 2, columns);
            else
                multiply_panel<true>(weights, stride, 1, from, is_in_place ? call.value.row : PANEL, to, padded, rows,
                                     keys, columns);
        }
    }

    void drop(const float* weights, int64_t key, int64_t count, int64_t r, float* to) const {
        const DropoutRow dropout(call, scores.b, scores.h, scores.first + r);
        for (int64_t j = 0; j < count; j += LANES) store(to + j, dropout.keep(load(weights + j), key + j));
    }

    void write_output() {
        const int64_t rows = scores.rows, padded = value_panels * PANEL;
        with_dtype(call.output.dtype, [&](auto* type) {
            using T = std::remove_pointer_t<decltype(type)>;
            for (int64_t r = 0; r < rows; r++) {
                T* to = const_cast<T*>(at<T>(call.output, scores.b, scores.h, scores.first + r));
                const float factor = row_sums[r].is_nan ? NAN : row_sums[r].factor / keep_probability(call);
                write_row(outputs.get() + r * padded, call.value_dim, factor, to, call.output.column);
            }
        });
    }

    const Call& call;
    const Matrix& matrix;
    const bool few_rows_fit;
    const int64_t key_blocks, width, value_panels, max_rows;
    const bool is_in_place;  // the values are multiplied where they are
    const bool is_paired;    // in bfloat16
    Scores scores;
    Measures measures;
    FloatArray values, cells;
    FloatArray remaining;  // weights after dropout
    FloatArray pairs;      // weights in bfloat16
    FloatArray outputs;
    std::vector<Softmax> softmax;
    std::vector<RowSums> row_sums;
    int64_t packed_value = -1, value_head = 0;
};

// Add up the chunks of a head, in order.
void add_chunks(const Call& call, const Measure& measure) {
    const Matrix& matrix = call.matrix;
    const int64_t columns = measure.kind == RECEIVED ? 1 : measure.width, stride = measure.stride;
    const int64_t count = matrix.keys * columns;
    for (int64_t head = 0; head < matrix.batch * matrix.heads; head++) {
        const float* from = measure.by_chunk + head * call.chunks * count;
        float* to = measure.result + head * matrix.keys * stride;
        for (int64_t j = 0; j < matrix.keys; j++)
            for (int64_t c = 0; c < columns; c++) to[j * stride + c] = from[j * columns + c];
        for (int64_t chunk = 1; chunk < call.chunks; chunk++)
            for (int64_t j = 0; j < matrix.keys; j++)
                for (int64_t c = 0; c < columns; c++) to[j * stride + c] += from[chunk * count + j * columns + c];
    }
}

}  // namespace
}  // namespace regard

extern "C" int regard_forward(const regard::Call* call, int64_t first, int64_t last) {
    return regard::run_tasks<regard::Forward>(*call, first, last);
}

// Add up what the chunks of each head have left, after all tasks.
extern "C" void regard_finish_forward(const regard::Call* call) {
    if (call->chunks == 1) return;
    for (int64_t m = 0; m < call->measure_count; m++) {
        const regard::Measure& measure = call->measures[m];
        if (measure.kind == regard::RECEIVED || measure.kind == regard::TRANSPOSED) regard::add_chunks(*call, measure);
    }
}
