// What all measures have: results of a block of rows, and the gradients that these send to the weights.

#pragma once

#include "../rows.h"

namespace regard {

// The gradients of what is made from the sums of a row.
struct RowGradient {
    float entropy = 0, lse = 0;
};

// A measure of a call on one thread. `call.gradient` is null in a forward pass.
class Measure {
  public:
    Measure(const MeasureCall& call, const Rows&) : call(call) {}
    virtual ~Measure() = default;
    Measure(const Measure&) = delete;

    // Before the first row of a chunk of a head (batch, head).
    virtual void start(int64_t, int64_t) {}

    // While the weights of a block are scores.
    virtual void before_softmax(const Rows&) {}

    // Write the results, or add to them.
    virtual void forward(const Rows&) {}

    // After the last row of a chunk: `head` of (batch, heads), `chunk` of (batch, heads, chunks).
    virtual void finish(const Matrix&, int64_t, int64_t) {}

    // Add to the gradient of the weights P, whose rows have the form of `weights`.
    virtual void gradient(const Rows&, float*) {}

    // Add to the gradient of the scores, which follows from that of the weights.
    virtual void gradient_of_scores(const Rows&, float*) {}

    // Entropy and lse: the gradients of each row.
    virtual void gradient_of_sums(const Rows&, RowGradient*) {}
    virtual bool has_entropy() const { return false; }

    // A sum over rows sends row_factors key_factors^T to P: products of `num_factors` numbers of each row and key.
    // Rows are `stride` apart; the keys of a head are panels of PANEL keys, `panel_rows` rows apart.
    virtual int64_t num_factors() const { return 0; }
    virtual void read_row_factors(const Rows&, float*, int64_t) {}
    virtual void read_key_factors(const Matrix&, int64_t, float*, int64_t) {}

  protected:
    const MeasureCall& call;
};

// A row of a block.
struct Row {
    Row(const Rows& rows, int64_t r)
        : rows(rows),
          r(r),
          sums(rows.sums[r]),
          exponentials(rows.row(r)),
          position(rows.scores.position(r)),
          offset(rows.scores.row_offset(r)) {}

    // The weight in a column, which a key may not have: -1.
    float weight(int64_t column) const { return column < 0 ? 0 : exponentials[column] * sums.factor; }

    // The sum over the keys of a function of weight P and distance j - position, vectors, that is 0 where P is.
    template <typename Function>
    float sum(Function function) const {
        Floats total = {};
        for (int64_t a = 0; a < rows.num_blocks(); a++) {
            Floats sum = {};
            for_vectors(a, [&](int64_t, Floats weights, Floats distances) { sum += function(weights, distances); });
            total += sum;
        }
        return sum_of(total);
    }

    // Add a function of weight and distance to a row of gradients.
    template <typename Function>
    void add(float* to, Function function) const {
        for (int64_t a = 0; a < rows.num_blocks(); a++)
            for_vectors(a, [&](int64_t column, Floats weights, Floats distances) {
                store(to + column, load(to + column) + function(weights, distances));
            });
    }

    const Rows& rows;
    const int64_t r;
    const RowSums& sums;
    const float* exponentials;  // times sums.factor, the weights
    const int64_t position;     // of the query
    const int64_t offset;       // in a contiguous tensor (batch, heads, queries)

  private:
    template <typename Function>
    void for_vectors(int64_t a, Function function) const {
        Floats distances;
        for (int l = 0; l < LANES; l++) distances[l] = static_cast<float>(rows.first_key(a) + l - position);
        for (int64_t column = a * KEY_BLOCK; column < (a + 1) * KEY_BLOCK; column += LANES) {
            function(column, load(exponentials + column) * sums.factor, distances);
            distances += static_cast<float>(LANES);
        }
    }
};

// A measure of each row by itself: `size` numbers, or the one that `value` returns.
class RowMeasure : public Measure {
  public:
    RowMeasure(const MeasureCall& call, const Rows& rows, int64_t size = 1) : Measure(call, rows), size(size) {}

    virtual float value(const Row&) { return 0; }
    virtual void forward_row(const Row& row, float* to) { *to = value(row); }
    virtual void gradient_row(const Row&, const float*, float*) {}

    void forward(const Rows& rows) final {
        for (int64_t r = 0; r < rows.count(); r++) {
            const Row row(rows, r);
            forward_row(row, call.result + row.offset * size);
        }
    }

    void gradient(const Rows& rows, float* grad_weights) final {
        for (int64_t r = 0; r < rows.count(); r++) {
            const Row row(rows, r);
            gradient_row(row, call.gradient + row.offset * size, grad_weights + r * rows.width);
        }
    }

    const int64_t size;
};

}  // namespace regard
