// The gradients of the output and of all measures, in one pass over blocks of rows.
//
// The weights P of a block are computed again. With A_ij the gradient that reaches P_ij from the output, (dO V^T)_ij,
// and from the measures, the gradient of the scores is dS_ij = P_ij (A_ij - sum over k of P_ik A_ik). Then
// dQ = scale dS K, dK = scale dS^T Q and dV = P^T dO, whose sums over the rows stay in the thread's memory.

#include "dropout.h"
#include "measure_gradients.h"
#include "tasks.h"

namespace regard {
namespace {

constexpr int64_t STEP = 4;         // blocks of keys that stay in the first cache while they are multiplied
constexpr int64_t BLOCK_ROWS = 48;  // the sums for keys are read and written once for each block of rows

// Rows of a head, (keys, features), as panels of PANEL columns.
class Panels {
  public:
    Panels(int64_t keys, int64_t features, bool is_used)
        : keys(keys),
          features(features),
          count(is_used ? round_up(features, PANEL) / PANEL : 0),
          width(count * PANEL),
          data(allocate(keys * width)) {}

    float* at(int64_t panel, int64_t key) { return data.get() + (panel * keys + key) * PANEL; }

    void clear() { std::memset(data.get(), 0, 4 * keys * width); }

    void read(const Strided& tensor, int64_t b, int64_t h, int64_t rows) {
        for (int64_t panel = 0; panel < count; panel++) {
            Strided part = tensor;
            part.data =
                static_cast<const char*>(part.data) + panel * PANEL * part.column * (part.dtype == FLOAT32 ? 4 : 2);
            read_rows(part, b, h, 0, rows, std::min<int64_t>(PANEL, features - panel * PANEL), at(panel, 0), PANEL);
        }
    }

    void write(float* to, int64_t rows) {
        for (int64_t j = 0; j < rows; j++)
            for (int64_t panel = 0; panel < count; panel++) {
                const int64_t start = panel * PANEL;
                std::memcpy(to + j * features + start, at(panel, j), 4 * std::min<int64_t>(PANEL, features - start));
            }
    }

    const int64_t keys, features, count, width;

  private:
    FloatArray data;
};

class Backward {
  public:
    explicit Backward(const Call& call)
        : call(call),
          matrix(call.matrix),
          padded_keys(round_up(matrix.keys, KEY_BLOCK)),
          width(row_width(matrix, BLOCK_ROWS)),
          max_rows(std::min(BLOCK_ROWS, round_up(call.chunk_rows, ROW_UNIT))),
          value_dim(call.output_gradient.data ? call.value_dim : 0),
          scores(matrix, max_rows),
          measures(call, scores, max_rows, width),
          key_rows(padded_keys, matrix.head_dim, call.query_gradient != nullptr),
          of_keys(padded_keys, matrix.head_dim, call.key_gradient != nullptr),
          of_values(padded_keys, call.value_dim, call.value_gradient != nullptr && value_dim),
          padded_dim(round_up(matrix.head_dim, PANEL)),
          padded_value_dim(round_up(value_dim, PANEL)),
          row_sums(max_rows) {
        bool has_soft_cap = false;
        for (int64_t s = 0; s < matrix.score_steps; s++) {
            has_soft_cap |= matrix.scores[s].kind == SOFT_CAP;
            if (matrix.scores[s].kind == ADD_RELATIVE) by_distance.resize(2 * matrix.scores[s].shift + 1);
        }
        weights = allocate(max_rows * width);
        flow = allocate(max_rows * width);
        if (measures.has_entropy && call.dropout > 0) of_entropy = allocate(max_rows * width);
        if (has_soft_cap) slopes = allocate(max_rows * width);
        values = allocate(padded_keys * value_dim);
        scratch = allocate(LANES * value_dim);
        output_rows = allocate(max_rows * padded_value_dim);
        query_rows = allocate(max_rows * padded_dim);
        of_queries = allocate(max_rows * padded_dim);
    }

    void run(int64_t b, int64_t h, int64_t chunk) {
        pack(b, h);
        of_keys.clear();
        of_values.clear();
        of_sink = 0;
        part = (b * matrix.heads + h) * call.chunks + chunk;
        const int64_t stop = std::min((chunk + 1) * call.chunk_rows, matrix.queries);
        for (int64_t first = chunk * call.chunk_rows; first < stop; first += max_rows)
            run_block(b, h, first, std::min(max_rows, stop - first));
        if (call.key_gradient) of_keys.write(call.key_gradient + part * matrix.keys * matrix.head_dim, matrix.keys);
        if (call.value_gradient)
            of_values.write(call.value_gradient + part * matrix.keys * call.value_dim, matrix.keys);
        if (call.sinks_gradient) call.sinks_gradient[part] = of_sink;
    }

  private:
    void pack(int64_t b, int64_t h) {
        scores.pack(b, h);
        const int64_t kv_head = h / (matrix.heads / matrix.kv_heads);
        if (packed_key != b * matrix.kv_heads + kv_head) {
            packed_key = b * matrix.kv_heads + kv_head;
            key_rows.read(matrix.key, b, kv_head, matrix.keys);
        }
        if (value_dim) {
            const int64_t head = h / (matrix.heads / call.value_heads);
            if (packed_value != b * call.value_heads + head) {
                packed_value = b * call.value_heads + head;
                Scores::pack_panels(call.value, b, head, 0, matrix.keys, value_dim, values.get(), scratch.get());
            }
        }
        measures.pack(b, h);
    }

    void run_block(int64_t b, int64_t h, int64_t first, int64_t rows) {
        scores.set_rows(b, h, first, rows);
        const int64_t count = scores.count_cells(), padded = scores.active.size() * KEY_BLOCK;
        for (size_t a = 0; a < scores.active.size(); a++)
            scores.compute(a, weights.get() + a * KEY_BLOCK, width, slopes ? slopes.get() + a * KEY_BLOCK : nullptr);
        measures.before_softmax(weights.get());
        const float sink = matrix.sinks ? matrix.sinks[scores.head_of_rules(h)] : -INFINITY;
        for (int64_t r = 0; r < rows; r++) {
            float* row = weights.get() + r * width;
            Softmax softmax;
            softmax.clear();
            softmax.find_largest(row, count);
            softmax.start(row, count, sink);
            if (measures.has_entropy)
                softmax.exponentiate<true>(row, count, padded, (of_entropy ? of_entropy : flow).get() + r * width,
                                           -measures.of_row(ENTROPY, r));
            else
                softmax.exponentiate(row, count, padded);
            row_sums[r] = softmax.finish();
        }
        if (value_dim)
            read_rows(call.output_gradient, b, h, first, first + rows, value_dim, output_rows.get(), padded_value_dim);
        compute_flow();
        measures.add(flow.get(), weights.get(), row_sums.data());
        for (int64_t r = 0; r < rows; r++) differentiate_softmax(r);
        if (of_values.count) add_to_values();
        for (int64_t s = matrix.score_steps - 1; s >= 0; s--)
            for (int64_t r = 0; r < rows; r++) differentiate_step(matrix.scores[s], r);
        if (of_keys.count) add_to_keys();
        if (call.query_gradient) write_queries();
    }

    int64_t place_of_row(int64_t r) const {
        return (scores.b * matrix.heads + scores.h) * matrix.queries + scores.first + r;
    }

    // A = dO V^T, with dropout, and the sums over rows.
    void compute_flow() {
        const int64_t rows = scores.rows;
        const bool adds = measures.has_entropy && !of_entropy;
        for (size_t a = 0; a < scores.active.size(); a++) {
            const int64_t count = scores.count_keys(a);
            for (int64_t j = 0; j < KEY_BLOCK; j += PANEL) {
                const int64_t key = scores.active[a] * KEY_BLOCK + j, columns = std::min<int64_t>(PANEL, count - j);
                float* to = flow.get() + a * KEY_BLOCK + j;
                if (!adds)
                    for (int64_t r = 0; r < rows; r++) std::memset(to + r * width, 0, 4 * PANEL);
                if (columns <= 0) continue;
                if (value_dim)
                    multiply_panel<true>(output_rows.get(), padded_value_dim, 1, values.get() + key * value_dim, PANEL,
                                         to, width, rows, value_dim, columns);
                if (call.dropout > 0) drop(to, key);
                measures.add_sums(key, columns, to);
            }
        }
        if (!of_entropy) return;
        for (int64_t r = 0; r < rows; r++)
            for (size_t j = r * width; j < r * width + scores.active.size() * KEY_BLOCK; j += LANES)
                store(flow.get() + j, load(flow.get() + j) + load(of_entropy.get() + j));
    }

    // Dropout of a tile of A, from a key on.
    void drop(float* tile, int64_t key) const {
        const float scale = 1 / keep_probability(call);
        for (int64_t r = 0; r < scores.rows; r++) {
            const DropoutRow dropout(call, scores.b, scores.h, scores.first + r);
            for (int64_t j = 0; j < PANEL; j += LANES)
                store(tile + r * width + j, dropout.keep(load(tile + r * width + j) * scale, key + j));
        }
    }

    // A becomes dS.
    void differentiate_softmax(int64_t r) {
        const RowSums& sums = row_sums[r];
        float* row = flow.get() + r * width;
        const float* weight = weights.get() + r * width;
        const int64_t count = scores.active.size() * KEY_BLOCK;
        if (sums.factor == 0) {
            std::memset(row, 0, 4 * count);
            return;
        }
        // The entropy sends -dH (log P + 1), of which A has what depends on the key.
        const float entropy_gradient = measures.of_row(ENTROPY, r);
        const float constant = entropy_gradient == 0 ? 0 : entropy_gradient * (sums.log_total - 1);
        Floats dots[2] = {};
        for (int64_t j = 0; j < count; j += 2 * LANES)
            for (int v = 0; v < 2; v++) dots[v] += load(weight + j + v * LANES) * load(row + j + v * LANES);
        const float mean = sums.factor * (sum_of(dots[0] + dots[1]) + constant * sums.sum);
        const float of_lse = measures.of_row(LSE, r), shift = constant - mean + of_lse;
        for (int64_t j = 0; j < count; j += LANES)
            store(row + j, sums.factor * load(weight + j) * (load(row + j) + shift));
        of_sink += sums.sink * (of_lse - mean);
        measures.add_to_scores(r, row);
    }

    // What a step passes on, and the gradient of its values.
    void differentiate_step(const ScoreStep& step, int64_t r) {
        float* row = flow.get() + r * width;
        const int64_t position = scores.position(r);
        if (step.kind == SOFT_CAP) {
            const float* slope = slopes.get() + r * width;
            for (size_t j = 0; j < scores.active.size() * KEY_BLOCK; j += LANES)
                store(row + j, load(row + j) * load(slope + j));
            return;
        }
        if (step.gradient == nullptr && step.kind != ADD_RELATIVE) return;
        float* to = nullptr;
        if (step.kind == ADD_CELLS) {
            to = step.gradient + scores.b * step.gradient_batch + scores.h * step.gradient_head +
                 (scores.first + r) * matrix.keys;
        } else if (step.kind == ADD_DISTANCES) {
            to = step.gradient + part * (matrix.queries + matrix.keys - 1) - position + step.shift;
        } else {
            std::fill(by_distance.begin(), by_distance.end(), 0.0f);
        }
        for (size_t a = 0; a < scores.active.size(); a++) {
            const int64_t first = scores.active[a] * KEY_BLOCK, count = std::min(KEY_BLOCK, matrix.keys - first);
            const float* from = row + a * KEY_BLOCK;
            if (to)
                for (int64_t j = 0; j < count; j++) to[first + j] += from[j];
            else
                for (int64_t j = 0; j < count; j++)
                    by_distance[std::clamp(first + j - position, -step.shift, step.shift) + step.shift] += from[j];
        }
        if (step.kind == ADD_RELATIVE) differentiate_relative(step, r);
    }

    // Shaw's relative positions; what they send to the query waits until its gradient is written.
    void differentiate_relative(const ScoreStep& step, int64_t r) {
        const int64_t distances = by_distance.size(), dim = matrix.head_dim;
        const float* query = scores.queries.get() + r * dim;
        float* of_query = relative_rows(r);
        std::memset(of_query, 0, 4 * dim);
        for (int64_t d = 0; d < distances; d++) {
            if (by_distance[d] == 0) continue;
            const float* vector = at<float>(step.values, 0, scores.head_of_rules(scores.h), d);
            for (int64_t f = 0; f < dim; f++) of_query[f] += by_distance[d] * vector[f * step.values.column];
            if (step.gradient) {
                float* to = step.gradient + (part * distances + d) * dim;
                for (int64_t f = 0; f < dim; f++) to[f] += by_distance[d] * query[f];
            }
        }
    }

    float* relative_rows(int64_t r) {
        if (!relative) relative = allocate(max_rows * matrix.head_dim);
        return relative.get() + r * matrix.head_dim;
    }

    // dV += P^T dO
    void add_to_values() {
        const int64_t rows = scores.rows;
        for (int64_t r = 0; r < rows; r++) {
            float* row = output_rows.get() + r * padded_value_dim;
            const float factor = row_sums[r].factor / keep_probability(call);
            for (int64_t f = 0; f < padded_value_dim; f++) row[f] *= factor;
            if (call.dropout == 0) continue;
            const DropoutRow dropout(call, scores.b, scores.h, scores.first + r);
            for (size_t a = 0; a < scores.active.size(); a++)
                for (int64_t j = 0; j < KEY_BLOCK; j += LANES) {
                    float* cell = weights.get() + r * width + a * KEY_BLOCK + j;
                    store(cell, dropout.keep(load(cell), scores.active[a] * KEY_BLOCK + j));
                }
        }
        multiply_transposed(weights.get(), output_rows.get(), of_values);
    }

    // dK += dS^T Q
    void add_to_keys() {
        for (int64_t r = 0; r < scores.rows; r++) {
            std::memcpy(query_rows.get() + r * padded_dim, scores.queries.get() + r * matrix.head_dim,
                        4 * matrix.head_dim);
            std::memset(query_rows.get() + r * padded_dim + matrix.head_dim, 0, 4 * (padded_dim - matrix.head_dim));
        }
        multiply_transposed(flow.get(), query_rows.get(), of_keys);
    }

    void multiply_transposed(const float* cells, const float* rows, Panels& sums) {
        for (size_t a = 0; a < scores.active.size(); a++)
            for (int64_t panel = 0; panel < sums.count; panel++)
                multiply_panel<true>(cells + a * KEY_BLOCK, 1, width, rows + panel * PANEL, sums.width,
                                     sums.at(panel, scores.active[a] * KEY_BLOCK), PANEL, scores.count_keys(a),
                                     scores.rows, sums.features - panel * PANEL);
    }

    // dQ = scale dS K
    void write_queries() {
        const int64_t rows = scores.rows;
        const std::vector<int64_t>& active = scores.active;
        std::memset(of_queries.get(), 0, 4 * rows * padded_dim);
        for (size_t a = 0; a < active.size();) {
            // Blocks that follow each other are one, divided at the same places whatever the other rows see.
            size_t stop = a + 1;
            while (stop < active.size() && active[stop] == active[stop - 1] + 1 && active[stop] % STEP) stop++;
            const int64_t key = active[a] * KEY_BLOCK;
            const int64_t keys = std::min<int64_t>((stop - a) * KEY_BLOCK, matrix.keys - key);
            for (int64_t panel = 0; panel < key_rows.count; panel++)
                multiply_panel<true>(flow.get() + a * KEY_BLOCK, width, 1, key_rows.at(panel, key), PANEL,
                                     of_queries.get() + panel * PANEL, padded_dim, rows, keys,
                                     matrix.head_dim - panel * PANEL);
            a = stop;
        }
        for (int64_t r = 0; r < rows; r++) {
            float* to = call.query_gradient + place_of_row(r) * matrix.head_dim;
            const float* from = of_queries.get() + r * padded_dim;
            for (int64_t f = 0; f < matrix.head_dim; f++)
                to[f] = matrix.scale * (from[f] + (relative ? relative[r * matrix.head_dim + f] : 0));
        }
    }

    const Call& call;
    const Matrix& matrix;
    const int64_t padded_keys, width, max_rows, value_dim;
    Scores scores;
    MeasureGradients measures;
    Panels key_rows, of_keys, of_values;
    const int64_t padded_dim, padded_value_dim;
    int64_t part = 0;  // of the call: the head and chunk
    int64_t packed_key = -1, packed_value = -1;
    float of_sink = 0;
    FloatArray weights;     // not divided by their sums
    FloatArray flow;        // A, then dS
    FloatArray of_entropy;  // its part of A, where dropout must not touch it
    FloatArray slopes;      // of the soft-cap
    FloatArray values, scratch, output_rows, query_rows, of_queries, relative;
    std::vector<RowSums> row_sums;
    std::vector<float> by_distance;
};

// Add up the parts of each key-value head, in order.
void add_parts(const float* parts, float* total, int64_t groups, int64_t parts_per_group, int64_t size) {
    for (int64_t group = 0; group < groups; group++, total += size) {
        std::memcpy(total, parts, 4 * size);
        parts += size;
        for (int64_t part = 1; part < parts_per_group; part++, parts += size)
            for (int64_t i = 0; i < size; i++) total[i] += parts[i];
    }
}

}  // namespace
}  // namespace regard

extern "C" int regard_backward(const regard::Call* call, int64_t first, int64_t last) {
    return regard::run_tasks<regard::Backward>(*call, first, last);
}

// Add up the gradients of keys and values over the heads that share them, and over chunks.
extern "C" void regard_finish_backward(const regard::Call* call) {
    const regard::Matrix& matrix = call->matrix;
    const int64_t parts = matrix.heads * call->chunks;
    if (call->key_gradient && call->key_total != call->key_gradient)
        regard::add_parts(call->key_gradient, call->key_total, matrix.batch * matrix.kv_heads, parts / matrix.kv_heads,
                          matrix.keys * matrix.head_dim);
    if (call->value_gradient && call->value_total != call->value_gradient)
        regard::add_parts(call->value_gradient, call->value_total, matrix.batch * call->value_heads,
                          parts / call->value_heads, matrix.keys * call->value_dim);
}
