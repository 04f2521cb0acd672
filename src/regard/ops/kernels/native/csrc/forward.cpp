// Attention and what is measured of its weights, a block of rows at a time.
//
// The keys of a head are packed once, so that a tile of rows and keys is one product in registers. Then, for as many
// rows as a core's cache holds: their scores, masked; the exponentials with their sums; the product with the values;
// and the sums over the columns, while the block is in the cache. Keys that no row of the block may attend to are left
// out, in steps of 64.
//
// The numbers of a row are added up in an order that depends on its own keys only, and those of a column in chunks
// whose size follows from the number of queries: neither the batch nor the number of threads changes a result.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "gemm.h"
#include "mask.h"

namespace regard {
namespace {

constexpr int64_t STEP = 256;  // keys whose values stay in the first cache while they are multiplied

int64_t round_up(int64_t number, int64_t unit) { return (number + unit - 1) / unit * unit; }

struct Free {
    void operator()(float* memory) const { std::free(memory); }
};

std::unique_ptr<float, Free> allocate(int64_t floats) {
    void* memory = std::aligned_alloc(64, round_up(4 * std::max<int64_t>(floats, 1), 64));
    if (memory == nullptr) throw std::bad_alloc();
    return std::unique_ptr<float, Free>(static_cast<float*>(memory));
}

float to_float(float value) { return value; }
float to_float(uint16_t bits) {  // bfloat16
    uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}
float to_float(_Float16 value) { return static_cast<float>(value); }

void from_float(float value, float& to) { to = value; }
void from_float(float value, uint16_t& to) {  // to the nearest, and to even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    to = value != value ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
void from_float(float value, _Float16& to) { to = static_cast<_Float16>(value); }

template <typename T>
const T* at(const Strided& tensor, int64_t b, int64_t h, int64_t i) {
    return static_cast<const T*>(tensor.data) + b * tensor.batch + h * tensor.head + i * tensor.row;
}

// What one thread needs for the heads that it computes.
template <typename T>
class Worker {
  public:
    explicit Worker(const Call& call)
        : call(call),
          key_blocks(round_up(call.keys, KEY_BLOCK) / KEY_BLOCK),
          width(key_blocks * KEY_BLOCK + LANES),  // not a power of two, so that rows do not share the cache's sets
          value_panels(call.value.data ? round_up(call.value_dim, PANEL) / PANEL : 0),
          chunk((call.queries + call.chunks - 1) / call.chunks) {
        int64_t rows = std::max<int64_t>(call.cache_bytes / (4 * width) / TILE_ROWS * TILE_ROWS, TILE_ROWS);
        rows = std::min({rows, int64_t{96}, round_up(chunk, TILE_ROWS)});
        const int64_t blocks = (chunk + rows - 1) / rows;  // of the same size, as nearly as possible
        block_rows = std::min(rows, round_up((chunk + blocks - 1) / blocks, TILE_ROWS));
        keys = allocate(key_blocks * KEY_BLOCK * call.head_dim);
        values = allocate(value_panels * key_blocks * KEY_BLOCK * PANEL);
        queries = allocate(block_rows * call.head_dim);
        cells = allocate(block_rows * width);
        outputs = allocate(block_rows * value_panels * PANEL);
        columns = allocate(call.column_sums * key_blocks * KEY_BLOCK);
        factors = allocate(block_rows);
        masks.resize(block_rows * key_blocks);
        row_factors.resize(block_rows);
    }

    // The rows of a chunk of a head.
    void run(int64_t b, int64_t h, int64_t number) {
        pack(b, h);
        std::memset(columns.get(), 0, 4 * call.column_sums * key_blocks * KEY_BLOCK);
        const int64_t stop = std::min((number + 1) * chunk, call.queries);
        for (int64_t first = number * chunk; first < stop; first += block_rows)
            run_block(b, h, first, std::min(block_rows, stop - first));
        for (int64_t s = 0; s < call.column_sums; s++) {
            const ColumnSums& own = call.columns[s];
            const int64_t head = b * call.heads + h;
            float* to = call.chunks > 1 ? own.by_chunk + (head * call.chunks + number) * call.keys
                                        : own.sums + head * call.keys;
            std::memcpy(to, columns.get() + s * key_blocks * KEY_BLOCK, 4 * call.keys);
        }
    }

  private:
    // Copy the keys of a head into panels with a row for each feature, and its values into panels of columns.
    void pack(int64_t b, int64_t h) {
        const int64_t kv_head = h / (call.heads / call.kv_heads);
        if (packed_key != b * call.kv_heads + kv_head) {
            packed_key = b * call.kv_heads + kv_head;
            const int64_t column = call.key.column;
            for (int64_t first = 0; first < key_blocks * KEY_BLOCK; first += PANEL) {
                float* panel = keys.get() + first * call.head_dim;
                for (int64_t j = 0; j < PANEL; j++) {
                    if (first + j < call.keys) {
                        const T* from = at<T>(call.key, b, kv_head, first + j);
                        for (int64_t f = 0; f < call.head_dim; f++) panel[f * PANEL + j] = to_float(from[f * column]);
                    } else {
                        for (int64_t f = 0; f < call.head_dim; f++) panel[f * PANEL + j] = 0;
                    }
                }
            }
        }
        if (!value_panels) return;
        const int64_t value_head = h / (call.heads / call.value_heads);
        if (packed_value == b * call.value_heads + value_head) return;
        packed_value = b * call.value_heads + value_head;
        const int64_t column = call.value.column;
        for (int64_t j = 0; j < key_blocks * KEY_BLOCK; j++) {
            const T* from = j < call.keys ? at<T>(call.value, b, value_head, j) : nullptr;
            for (int64_t panel = 0; panel < value_panels; panel++) {
                float* to = values.get() + (panel * key_blocks * KEY_BLOCK + j) * PANEL;
                const int64_t count = from ? std::min<int64_t>(PANEL, call.value_dim - panel * PANEL) : 0;
                for (int64_t f = 0; f < count; f++) to[f] = to_float(from[(panel * PANEL + f) * column]);
                for (int64_t f = count; f < PANEL; f++) to[f] = 0;
            }
        }
    }

    void run_block(int64_t b, int64_t h, int64_t first, int64_t rows) {
        for (int64_t r = 0; r < rows; r++) {
            const T* from = at<T>(call.query, b, h, first + r);
            for (int64_t f = 0; f < call.head_dim; f++)
                queries.get()[r * call.head_dim + f] = to_float(from[f * call.query.column]) * call.scale;
        }
        find_active(b, h, first, rows);
        compute_scores(b, h, first, rows);
        for (int64_t r = 0; r < rows; r++) softmax(b, h, first + r, r);
        if (value_panels) compute_output(b, h, first, rows);
        for (int64_t s = 0; s < call.column_sums; s++) add_columns(s, b, h, first, rows);
    }

    // List the blocks of keys that some row may attend to, with the mask of each row.
    void find_active(int64_t b, int64_t h, int64_t first, int64_t rows) {
        active.clear();
        is_full.clear();
        KeyRange range{call.keys, 0};
        rows_of_mask.clear();
        for (int64_t r = 0; r < rows; r++) {
            rows_of_mask.emplace_back(call, b, h, first + r);
            if (!call.mask_steps) break;
            const KeyRange own = rows_of_mask.back().range();
            if (own.start < own.stop) range = {std::min(range.start, own.start), std::max(range.stop, own.stop)};
        }
        if (!call.mask_steps) range = {0, call.keys};
        for (int64_t block = range.start / KEY_BLOCK; block * KEY_BLOCK < range.stop; block++) {
            const uint64_t all = bits_of_range(0, call.keys - block * KEY_BLOCK);
            uint64_t any = 0, every = all;
            uint64_t* masks_of_block = masks.data() + active.size() * block_rows;
            if (!call.mask_steps) {
                any = all;
            } else {
                for (int64_t r = 0; r < rows; r++) {
                    const uint64_t bits = rows_of_mask[r].bits(block * KEY_BLOCK);
                    masks_of_block[r] = bits;
                    any |= bits;
                    every &= bits;
                }
            }
            if (!any) continue;
            active.push_back(block);
            is_full.push_back(every == ~uint64_t{0});
            if (!call.mask_steps && !is_full.back()) std::fill_n(masks_of_block, rows, all);
        }
    }

    void compute_scores(int64_t b, int64_t h, int64_t first, int64_t rows) {
        for (size_t a = 0; a < active.size(); a++) {
            float* to = cells.get() + a * KEY_BLOCK;
            const float* panel = keys.get() + active[a] * KEY_BLOCK * call.head_dim;
            for (int64_t j = 0; j < KEY_BLOCK; j += PANEL)
                multiply_panel<false>(queries.get(), call.head_dim, 1, panel + j * call.head_dim, PANEL, to + j, width,
                                      rows, call.head_dim);
            for (int64_t s = 0; s < call.score_steps; s++)
                for (int64_t r = 0; r < rows; r++)
                    change_scores(call.scores[s], b, h, first + r, active[a] * KEY_BLOCK, to + r * width);
            if (!is_full[a])
                for (int64_t r = 0; r < rows; r++) mask_scores(masks[a * block_rows + r], to + r * width);
        }
    }

    void change_scores(const ScoreStep& step, int64_t b, int64_t h, int64_t i, int64_t first, float* scores) {
        const int64_t count = std::min(KEY_BLOCK, call.keys - first);
        const int64_t batch = call.batch_index ? call.batch_index[b] : b, head = call.head_index ? call.head_index[h] : h;
        const int64_t row = call.row_index ? call.row_index[i] : i;
        if (step.kind == ADD_CELLS) {
            const float* from = at<float>(step.values, batch, head, row) + first * step.values.column;
            for (int64_t j = 0; j < count; j++) scores[j] += from[j * step.values.column];
        } else if (step.kind == ADD_DISTANCES) {
            const float* from = at<float>(step.values, 0, head, 0) + first - (row + call.offset) + step.shift;
            for (int64_t j = 0; j < count; j++) scores[j] += from[j];
        } else {
            for (int64_t j = 0; j < count; j++) scores[j] = step.cap * std::tanh(scores[j] / step.cap);
        }
    }

    static void mask_scores(uint64_t bits, float* scores) {
        if (bits == ~uint64_t{0}) return;
        Ints lane;
        for (int l = 0; l < LANES; l++) lane[l] = 1 << l;
        for (int64_t j = 0; j < KEY_BLOCK; j += LANES) {
            const Ints own = (static_cast<int32_t>(bits >> j) & lane);
            store(scores + j, own != 0 ? load(scores + j) : broadcast(-INFINITY));
        }
    }

    // Replace the scores of a row by their exponentials, which `factors` divides by their sum.
    void softmax(int64_t b, int64_t h, int64_t i, int64_t r) {
        float* row = cells.get() + r * width;
        const int64_t count = active.size() * KEY_BLOCK;
        Floats most = broadcast(-INFINITY), more = most;
        for (int64_t j = 0; j < count; j += 2 * LANES) {
            most = larger(load(row + j), most);
            more = larger(load(row + j + LANES), more);
        }
        const float largest = largest_of(larger(most, more));
        const float sink = call.sinks ? call.sinks[call.head_index ? call.head_index[h] : h] : -INFINITY;
        const float shift = std::max(largest, sink);
        float sum = 0, dot = 0;
        if (largest == -INFINITY && !has_nan(row, count)) {
            std::memset(row, 0, 4 * count);
        } else {
            Floats sums[2] = {}, dots[2] = {};
            const Floats lowest = broadcast(-100.0f);  // below it the exponential is 0
            for (int64_t j = 0; j < count; j += 2 * LANES) {
                for (int v = 0; v < 2; v++) {
                    const Floats x = load(row + j + v * LANES) - shift, e = exp(x);
                    store(row + j + v * LANES, e);
                    sums[v] += e;
                    dots[v] += e * larger(x, lowest);
                }
            }
            sum = sum_of(sums[0] + sums[1]);
            dot = sum_of(dots[0] + dots[1]);
        }
        const float total = sum + (sink == -INFINITY ? 0.0f : std::exp(sink - shift));
        const float factor = total == 0 ? 0 : 1 / total, log = std::log(total);
        factors.get()[r] = factor;
        const int64_t place = (b * call.heads + h) * call.queries + i;
        if (call.lse) call.lse[place] = total == 0 ? -INFINITY : shift + log;
        // -sum of P log P, where log P = x - log(total)
        if (call.entropy) call.entropy[place] = sum == 0 ? 0 : std::max((log * sum - dot) * factor, 0.0f);
    }

    static bool has_nan(const float* row, int64_t count) {
        for (int64_t j = 0; j < count; j++)
            if (row[j] != row[j]) return true;
        return false;
    }

    void compute_output(int64_t b, int64_t h, int64_t first, int64_t rows) {
        std::memset(outputs.get(), 0, 4 * rows * value_panels * PANEL);
        for (size_t a = 0; a < active.size();) {
            size_t stop = a + 1;  // blocks that follow each other are one
            while (stop < active.size() && active[stop] == active[stop - 1] + 1 && (stop - a) * KEY_BLOCK < STEP) stop++;
            for (int64_t panel = 0; panel < value_panels; panel++)
                multiply_panel<true>(cells.get() + a * KEY_BLOCK, width, 1,
                                     values.get() + (panel * key_blocks + active[a]) * KEY_BLOCK * PANEL, PANEL,
                                     outputs.get() + panel * PANEL, value_panels * PANEL, rows,
                                     (stop - a) * KEY_BLOCK);
            a = stop;
        }
        for (int64_t r = 0; r < rows; r++) {
            T* to = const_cast<T*>(at<T>(call.output, b, h, first + r));
            const float* from = outputs.get() + r * value_panels * PANEL;
            for (int64_t f = 0; f < call.value_dim; f++)
                from_float(from[f] * factors.get()[r], to[f * call.output.column]);
        }
    }

    void add_columns(int64_t s, int64_t b, int64_t h, int64_t first, int64_t rows) {
        const Strided& weights = call.columns[s].weights;
        float* whole = columns.get() + s * key_blocks * KEY_BLOCK;
        for (int64_t r = 0; r < rows; r++)
            row_factors[r] = factors.get()[r] * (weights.data ? *at<float>(weights, b, h, first + r) : 1);
        for (size_t a = 0; a < active.size(); a++) {
            for (int64_t j = 0; j < KEY_BLOCK; j += PANEL) {
                float* to = whole + active[a] * KEY_BLOCK + j;
                const float* from = cells.get() + a * KEY_BLOCK + j;
                Floats sums[TILE_VECTORS] = {};
                for (int64_t r = 0; r < rows; r++) {
                    const float factor = row_factors[r];
                    for (int v = 0; v < TILE_VECTORS; v++) sums[v] += factor * load(from + r * width + v * LANES);
                }
                for (int v = 0; v < TILE_VECTORS; v++) store(to + v * LANES, load(to + v * LANES) + sums[v]);
            }
        }
    }

    const Call& call;
    const int64_t key_blocks, width, value_panels, chunk;
    int64_t block_rows, packed_key = -1, packed_value = -1;
    std::unique_ptr<float, Free> keys, values, queries, cells, outputs, columns, factors;
    std::vector<uint64_t> masks;  // of each row, by active block
    std::vector<int64_t> active;
    std::vector<char> is_full;
    std::vector<float> row_factors;  // of a column sum
    std::vector<MaskRow> rows_of_mask;
};

template <typename T>
void run_tasks(const Call& call, int64_t first, int64_t last) {
    Worker<T> worker(call);
    for (int64_t task = first; task < last; task++) {
        const int64_t head = task / call.chunks;
        worker.run(head / call.heads, head % call.heads, task % call.chunks);
    }
}

// Add up the chunks of a head, in order.
void add_chunks(const Call& call, int64_t head) {
    for (int64_t s = 0; s < call.column_sums; s++) {
        const ColumnSums& own = call.columns[s];
        float* to = own.sums + head * call.keys;
        const float* from = own.by_chunk + head * call.chunks * call.keys;
        std::memcpy(to, from, 4 * call.keys);
        for (int64_t chunk = 1; chunk < call.chunks; chunk++)
            for (int64_t j = 0; j < call.keys; j++) to[j] += from[chunk * call.keys + j];
    }
}

}  // namespace
}  // namespace regard

// Compute the tasks from first to last of a call; there are batch * heads * chunks, the chunks of a head in a row.
// Returns 0, or 1 if there is not enough memory.
extern "C" int regard_forward(const regard::Call* call, int64_t first, int64_t last) {
    try {
        switch (call->dtype) {
            case regard::FLOAT32: regard::run_tasks<float>(*call, first, last); break;
            case regard::BFLOAT16: regard::run_tasks<uint16_t>(*call, first, last); break;
            case regard::FLOAT16: regard::run_tasks<_Float16>(*call, first, last); break;
        }
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}

// Add up what the chunks of each head have left, after all tasks.
extern "C" void regard_finish(const regard::Call* call) {
    if (call->chunks > 1)
        for (int64_t head = 0; head < call->batch * call->heads; head++) regard::add_chunks(*call, head);
}
