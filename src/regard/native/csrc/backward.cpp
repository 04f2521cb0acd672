// The gradients of the output and of all measures, in one pass over blocks of rows.
//
// The weights P of a block are computed again. With dP_ij the gradient that reaches P_ij from the output, (dO V^T)_ij,
// and from the measures, the gradient of the scores is dS_ij = P_ij (dP_ij - sum over k of P_ik dP_ik). Then
// dQ = scale dS K, dK = scale dS^T Q and dV = P^T dO, whose sums over the rows stay in the thread's memory.

#include "dropout.h"
#include "measures/all.h"
#include "score_gradients.h"
#include "tasks.h"

namespace regard {
namespace {

constexpr int64_t BLOCK_ROWS = 96;  // the sums for keys are read and written once for each block of rows

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
          weights(allocate(max_rows * width)),
          row_sums(max_rows),
          row_gradients(max_rows),
          rows{scores, width, weights.get(), row_sums.data()},
          measures(create_measures(call, rows)),
          score_gradients(rows),
          num_factors(count_factors(measures)),
          is_key_in_place(has_whole_vectors(matrix.key, matrix.head_dim, LANES) && matrix.key.row == matrix.head_dim),
          key_rows(is_key_in_place ? 0 : padded_keys, matrix.head_dim, call.query_gradient != nullptr),
          grad_key(padded_keys, matrix.head_dim, call.key_gradient != nullptr),
          grad_value(padded_keys, call.value_dim, call.value_gradient != nullptr && value_dim),
          padded_dim(round_up(matrix.head_dim, PANEL)),
          factor_width(std::max(round_up(value_dim, PANEL), round_up(value_dim + num_factors, LANES))) {
        for (const MeasurePointer& measure : measures) has_entropy |= measure->has_entropy();
        grad_weights = allocate(max_rows * width);
        if (has_entropy && call.dropout > 0) grad_entropy = allocate(max_rows * width);
        key_factors = allocate(padded_keys * (value_dim + num_factors));
        scratch = allocate(LANES * value_dim);
        row_factors = allocate(max_rows * factor_width);
        query_rows = allocate(matrix.head_dim % LANES ? max_rows * padded_dim : 0);
        grad_query = allocate(max_rows * padded_dim);
    }

    void run(int64_t b, int64_t h, int64_t chunk) {
        pack(b, h);
        grad_key.clear();
        grad_value.clear();
        grad_sink = 0;
        score_gradients.start(b, h);
        chunk_index = (b * matrix.heads + h) * call.chunks + chunk;
        const int64_t stop = std::min((chunk + 1) * call.chunk_rows, matrix.queries);
        for (int64_t first = chunk * call.chunk_rows; first < stop; first += max_rows)
            run_block(b, h, first, std::min(max_rows, stop - first));
        if (call.key_gradient)
            grad_key.write(call.key_gradient + chunk_index * matrix.keys * matrix.head_dim, matrix.keys);
        if (call.value_gradient)
            grad_value.write(call.value_gradient + chunk_index * matrix.keys * call.value_dim, matrix.keys);
        score_gradients.finish(chunk_index);
        if (call.sinks_gradient) call.sinks_gradient[chunk_index] = grad_sink;
    }

  private:
    void pack(int64_t b, int64_t h) {
        scores.pack(b, h);
        const int64_t kv_head = matrix.kv_head(h);
        if (!is_key_in_place && packed_key != b * matrix.kv_heads + kv_head) {
            packed_key = b * matrix.kv_heads + kv_head;
            key_rows.read(matrix.key, b, kv_head, matrix.keys);
        }
        const int64_t panel_rows = value_dim + num_factors, head = call.value_head(h);
        if (value_dim && packed_value != b * call.value_heads + head) {
            packed_value = b * call.value_heads + head;
            Scores::pack_panels(call.value, b, head, 0, matrix.keys, value_dim, key_factors.get(), scratch.get(), false,
                                panel_rows);
        }
        int64_t factor = value_dim;
        for (const MeasurePointer& measure : measures) {
            measure->start(b, h);
            if (!measure->num_factors()) continue;
            float* to = key_factors.get() + factor * PANEL;
            measure->read_key_factors(matrix, b * matrix.heads + h, to, panel_rows);
            factor += measure->num_factors();
        }
    }

    void run_block(int64_t b, int64_t h, int64_t first, int64_t count) {
        scores.set_rows(b, h, first, count);
        for (int64_t a = 0; a < rows.num_blocks(); a++)
            scores.compute(a, weights.get() + a * KEY_BLOCK, width, score_gradients.slopes_at(a));
        std::fill_n(row_gradients.begin(), count, RowGradient{});
        for (const MeasurePointer& measure : measures) {
            measure->before_softmax(rows);
            measure->gradient_of_sums(rows, row_gradients.data());
        }
        for (int64_t r = 0; r < count; r++) compute_weights(r);
        read_row_factors();
        compute_grad_weights();
        for (const MeasurePointer& measure : measures) measure->gradient(rows, grad_weights.get());
        for (int64_t r = 0; r < count; r++) differentiate_softmax(r);
        for (const MeasurePointer& measure : measures) measure->gradient_of_scores(rows, grad_weights.get());
        if (grad_value.count) add_to_values();
        if (call.query_gradient) std::memset(grad_query.get(), 0, 4 * count * padded_dim);
        score_gradients.compute(grad_weights.get(), chunk_index, call.query_gradient ? grad_query.get() : nullptr,
                                padded_dim, grad_key);
        if (grad_key.count) add_to_keys();
        if (call.query_gradient) write_queries();
    }

    // The exponentials of a row, and their sums; with them, what the entropy sends to each weight.
    void compute_weights(int64_t r) {
        const int64_t num_columns = scores.count_columns(), padded = rows.num_blocks() * KEY_BLOCK;
        const float sink = matrix.sinks ? matrix.sinks[scores.head_of_rules(scores.h)] : -INFINITY;
        float* row = weights.get() + r * width;
        Softmax softmax;
        if (call.saved_lse) {
            softmax.start(call.saved_lse[scores.row_offset(r)], sink);
        } else {
            softmax.clear();
            softmax.find_largest(row, num_columns);
            softmax.start(row, num_columns, sink);
        }
        if (has_entropy)
            softmax.exponentiate<true>(row, num_columns, padded,
                                       (grad_entropy ? grad_entropy : grad_weights).get() + r * width,
                                       -row_gradients[r].entropy);
        else
            softmax.exponentiate(row, num_columns, padded);
        row_sums[r] = softmax.finish();
    }

    // The gradient of the output, followed by what measures multiply with their sums over rows.
    void read_row_factors() {
        if (value_dim)
            read_rows(call.output_gradient, scores.b, scores.h, scores.first, scores.first + rows.count(), value_dim,
                      row_factors.get(), factor_width);
        int64_t factor = value_dim;
        for (const MeasurePointer& measure : measures) {
            if (!measure->num_factors()) continue;
            measure->read_row_factors(rows, row_factors.get() + factor, factor_width);
            factor += measure->num_factors();
        }
    }

    // dP = dO V^T, with dropout, and the sums over rows, in one product if they can be.
    void compute_grad_weights() {
        const bool adds = has_entropy && !grad_entropy, is_one = call.dropout == 0;
        const int64_t count = rows.count(), panel_rows = value_dim + num_factors;
        for (int64_t a = 0; a < rows.num_blocks(); a++) {
            for (int64_t j = 0; j < KEY_BLOCK; j += PANEL) {
                const int64_t key = rows.first_key(a) + j, columns = std::min<int64_t>(PANEL, rows.num_keys(a) - j);
                const float* factors = key_factors.get() + key * panel_rows;
                float* to = grad_weights.get() + a * KEY_BLOCK + j;
                if (!adds && columns < PANEL)
                    for (int64_t r = 0; r < count; r++) std::memset(to + r * width, 0, 4 * PANEL);
                if (columns <= 0) continue;
                const int64_t steps = is_one ? panel_rows : value_dim;
                if (adds)
                    multiply_panel<true>(row_factors.get(), factor_width, 1, factors, PANEL, to, width, count, steps,
                                         columns);
                else
                    multiply_panel<false>(row_factors.get(), factor_width, 1, factors, PANEL, to, width, count, steps,
                                          columns);
                if (is_one) continue;
                drop(to, key);
                multiply_panel<true>(row_factors.get() + value_dim, factor_width, 1, factors + value_dim * PANEL, PANEL,
                                     to, width, count, num_factors, columns);
            }
        }
        if (!grad_entropy) return;
        for (int64_t r = 0; r < count; r++)
            for (int64_t j = r * width; j < r * width + rows.num_blocks() * KEY_BLOCK; j += LANES)
                store(grad_weights.get() + j, load(grad_weights.get() + j) + load(grad_entropy.get() + j));
    }

    // Dropout of a tile of dP, from a key on.
    void drop(float* tile, int64_t key) const {
        const float scale = 1 / keep_probability(call);
        for (int64_t r = 0; r < scores.rows; r++) {
            const DropoutRow dropout(call, scores.b, scores.h, scores.first + r);
            for (int64_t j = 0; j < PANEL; j += LANES)
                store(tile + r * width + j, dropout.keep(load(tile + r * width + j) * scale, key + j));
        }
    }

    // dP becomes dS.
    void differentiate_softmax(int64_t r) {
        const RowSums& sums = row_sums[r];
        float* row = grad_weights.get() + r * width;
        const float* weight = rows.row(r);
        const int64_t count = rows.num_blocks() * KEY_BLOCK;
        if (sums.factor == 0) {
            std::memset(row, 0, 4 * count);
            return;
        }
        // The entropy sends -dH (log P + 1), of which dP has what depends on the key.
        const RowGradient& gradient = row_gradients[r];
        const float constant = gradient.entropy == 0 ? 0 : gradient.entropy * (sums.log_total - 1);
        Floats dots[2] = {};
        for (int64_t j = 0; j < count; j += 2 * LANES)
            for (int v = 0; v < 2; v++) dots[v] += load(weight + j + v * LANES) * load(row + j + v * LANES);
        const float mean = sums.factor * (sum_of(dots[0] + dots[1]) + constant * sums.sum);
        const float shift = constant - mean + gradient.lse;
        for (int64_t j = 0; j < count; j += LANES)
            store(row + j, sums.factor * load(weight + j) * (load(row + j) + shift));
        grad_sink += sums.sink * (gradient.lse - mean);
    }

    // dV += P^T dO
    void add_to_values() {
        for (int64_t r = 0; r < rows.count(); r++) {
            float* row = row_factors.get() + r * factor_width;
            const float factor = row_sums[r].factor / keep_probability(call);
            for (int64_t f = 0; f < value_dim; f++) row[f] *= factor;
            if (call.dropout == 0) continue;
            const DropoutRow dropout(call, scores.b, scores.h, scores.first + r);
            for (int64_t a = 0; a < rows.num_blocks(); a++)
                for (int64_t j = 0; j < KEY_BLOCK; j += LANES) {
                    float* weight = weights.get() + r * width + a * KEY_BLOCK + j;
                    store(weight, dropout.keep(load(weight), rows.first_key(a) + j));
                }
        }
        multiply_transposed(weights.get(), row_factors.get(), factor_width, grad_value);
    }

    // dK += dS^T Q
    void add_to_keys() {
        if (matrix.head_dim % LANES == 0)
            return multiply_transposed(grad_weights.get(), scores.queries.get(), matrix.head_dim, grad_key);
        for (int64_t r = 0; r < rows.count(); r++) {
            std::memcpy(query_rows.get() + r * padded_dim, scores.queries.get() + r * matrix.head_dim,
                        4 * matrix.head_dim);
            std::memset(query_rows.get() + r * padded_dim + matrix.head_dim, 0, 4 * (padded_dim - matrix.head_dim));
        }
        multiply_transposed(grad_weights.get(), query_rows.get(), padded_dim, grad_key);
    }

    // sums += left^T right
    void multiply_transposed(const float* left, const float* right, int64_t right_width, Panels& sums) {
        for (int64_t a = 0; a < rows.num_blocks(); a++)
            for (int64_t panel = 0; panel < sums.count; panel++)
                multiply_panel<true>(left + a * KEY_BLOCK, 1, width, right + panel * PANEL, right_width,
                                     sums.at(panel, rows.first_key(a)), PANEL, rows.num_keys(a), rows.count(),
                                     sums.columns(panel));
    }

    // dQ = scale dS K, beside what the steps of the score have added
    void write_queries() {
        rows.for_consecutive_blocks([&](int64_t a, int64_t stop) {
            const int64_t key = rows.first_key(a);
            const int64_t keys = std::min<int64_t>((stop - a) * KEY_BLOCK, matrix.keys - key);
            const int64_t kv_head = matrix.kv_head(scores.h);
            for (int64_t panel = 0; panel < key_rows.count; panel++) {
                const float* from = is_key_in_place ? at<float>(matrix.key, scores.b, kv_head, key) + panel * PANEL
                                                    : key_rows.at(panel, key);
                multiply_panel<true>(grad_weights.get() + a * KEY_BLOCK, width, 1, from,
                                     is_key_in_place ? matrix.head_dim : PANEL, grad_query.get() + panel * PANEL,
                                     padded_dim, rows.count(), keys, key_rows.columns(panel));
            }
        });
        for (int64_t r = 0; r < rows.count(); r++) {
            float* to = call.query_gradient + scores.row_offset(r) * matrix.head_dim;
            const float* from = grad_query.get() + r * padded_dim;
            for (int64_t f = 0; f < matrix.head_dim; f++) to[f] = matrix.scale * from[f];
        }
    }

    const Call& call;
    const Matrix& matrix;
    const int64_t padded_keys, width, max_rows, value_dim;
    Scores scores;
    FloatArray weights;  // not divided by their sums
    std::vector<RowSums> row_sums;
    std::vector<RowGradient> row_gradients;
    const Rows rows;
    std::vector<MeasurePointer> measures;
    ScoreGradients score_gradients;
    const int64_t num_factors;   // of measures, after those of the values
    const bool is_key_in_place;  // the keys are multiplied where they are
    Panels key_rows, grad_key, grad_value;
    const int64_t padded_dim, factor_width;
    bool has_entropy = false;
    int64_t chunk_index = 0;  // in (batch, heads, chunks)
    int64_t packed_key = -1, packed_value = -1;
    float grad_sink = 0;
    FloatArray grad_weights;  // dP, then dS
    FloatArray grad_entropy;  // its part of dP, where dropout must not touch it
    FloatArray row_factors, key_factors;
    FloatArray scratch, query_rows, grad_query;
};

// Add up the gradients of the heads and chunks that share keys or values.
void add_sharing(const Call& call, const float* sums, int64_t shared_heads, int64_t features, float* total) {
    const Matrix& matrix = call.matrix;
    if (sums && total != sums)
        add_chunks(sums, matrix.batch * shared_heads, matrix.heads / shared_heads * call.chunks, matrix.keys, features,
                   total, features);
}

}  // namespace
}  // namespace regard

extern "C" int regard_backward(const regard::Call* call, int64_t first, int64_t last) {
    return regard::run_tasks<regard::Backward>(*call, first, last);
}

// Add up the gradients of keys and values over the heads that share them, and over chunks.
extern "C" void regard_finish_backward(const regard::Call* call) {
    regard::add_sharing(*call, call->key_gradient, call->matrix.kv_heads, call->matrix.head_dim, call->key_total);
    regard::add_sharing(*call, call->value_gradient, call->value_heads, call->value_dim, call->value_total);
}
