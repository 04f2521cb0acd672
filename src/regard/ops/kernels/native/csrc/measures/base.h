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

    // After the last row of a chunk: `head` of (batch, heads), `part` of (batch, heads, chunks).
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

// A measure of each row by itself: `size` numbers.
class RowMeasure : public Measure {
  public:
    RowMeasure(const MeasureCall& call, const Rows& rows, int64_t size = 1) : Measure(call, rows), size(size) {}

    virtual void forward_row(const Rows&, int64_t r, float* to) = 0;
    virtual void gradient_row(const Rows&, int64_t, const float*, float*) {}

    void forward(const Rows& rows) final {
        for (int64_t r = 0; r < rows.count(); r++) forward_row(rows, r, call.result + rows.scores.row_offset(r) * size);
    }

    void gradient(const Rows& rows, float* grad_weights) final {
        for (int64_t r = 0; r < rows.count(); r++)
            gradient_row(rows, r, call.gradient + rows.scores.row_offset(r) * size, grad_weights + r * rows.width);
    }

    const int64_t size;

  protected:
    // Add a function of the key to a row.
    template <typename Function>
    static void add_for_keys(const Rows& rows, float* row, Function function) {
        for (int64_t a = 0; a < rows.num_blocks(); a++)
            for (int64_t j = 0; j < rows.num_keys(a); j++) row[a * KEY_BLOCK + j] += function(rows.first_key(a) + j);
    }
};

}  // namespace regard
