// Sums over the rows of a head, for each key: of the weights, or of their products with the rows of a tensor.

#pragma once

#include "pooling.h"

namespace regard {

// `width` sums for each key, `stride` apart. Where a head has several chunks, each has sums of its own in `by_chunk`.
class ColumnMeasure : public Measure {
  public:
    // panel: how many columns of the sums are next to each other.
    ColumnMeasure(const MeasureCall& call, const Rows& rows, int64_t panel)
        : Measure(call, rows),
          panel(panel),
          num_panels(round_up(call.width, panel) / panel),
          padded_keys(rows.padded_keys()),
          sums(allocate(call.gradient ? 0 : num_panels * padded_keys * panel)) {}

    void start(int64_t, int64_t) override {
        if (!call.gradient) std::memset(sums.get(), 0, 4 * num_panels * padded_keys * panel);
    }

    void finish(const Matrix& matrix, int64_t head, int64_t chunk) override {
        const int64_t stride = call.by_chunk ? call.width : call.stride;
        float* to =
            call.by_chunk ? call.by_chunk + chunk * matrix.keys * stride : call.result + head * matrix.keys * stride;
        for (int64_t c = 0; c < call.width; c++) {
            const float* from = sums_at(c / panel, 0) + c % panel;
            for (int64_t j = 0; j < matrix.keys; j++) to[j * stride + c] = from[j * panel];
        }
    }

    int64_t num_factors() const override { return call.width; }

    void read_row_factors(const Rows& rows, float* to, int64_t stride) override {
        const Scores& scores = rows.scores;
        for (int64_t r = 0; r < rows.count(); r++, to += stride)
            if (call.values.data)
                read_rows(call.values, scores.b, scores.h, scores.first + r, scores.first + r + 1, call.width, to,
                          call.width);
            else
                *to = 1;
    }

    void read_key_factors(const Matrix& matrix, int64_t head, float* to, int64_t panel_rows) override {
        const float* gradient = call.gradient + head * matrix.keys * call.stride;
        for (int64_t j = 0; j < padded_keys; j++)
            for (int64_t c = 0; c < call.width; c++)
                to[(j / PANEL * panel_rows + c) * PANEL + j % PANEL] =
                    j < matrix.keys ? gradient[j * call.stride + c] : 0;
    }

  protected:
    float* sums_at(int64_t number, int64_t key) { return sums.get() + (number * padded_keys + key) * panel; }

    const int64_t panel, num_panels, padded_keys;

  private:
    FloatArray sums;
};

// The sums of the rows, each times a weight; values: float32 weights of the rows, no data is 1. `width` is 1.
class Received : public ColumnMeasure {
  public:
    Received(const MeasureCall& call, const Rows& rows) : ColumnMeasure(call, rows, 1), factors(rows.scores.max_rows) {}

    void forward(const Rows& rows) override {
        const Scores& scores = rows.scores;
        for (int64_t r = 0; r < rows.count(); r++)
            factors[r] = rows.sums[r].factor *
                         (call.values.data ? *at<float>(call.values, scores.b, scores.h, scores.first + r) : 1);
        for (int64_t a = 0; a < rows.num_blocks(); a++)
            add_rows(rows, factors, a, 0, rows.count(), sums_at(0, rows.first_key(a)));
    }

    // Of the weights of the rows.
    void gradient(const Rows& rows, float*) override {
        if (!call.values_gradient) return;
        const Scores& scores = rows.scores;
        const float* numbers =
            call.gradient + (scores.b * scores.matrix.heads + scores.h) * scores.matrix.keys * call.stride;
        for (int64_t r = 0; r < rows.count(); r++) {
            float total = 0;
            for (int64_t a = 0; a < rows.num_blocks(); a++) {
                float sum = 0;
                for (int64_t j = 0; j < rows.num_keys(a); j++)
                    sum += rows.row(r)[a * KEY_BLOCK + j] * numbers[(rows.first_key(a) + j) * call.stride];
                total += sum;
            }
            call.values_gradient[scores.row_offset(r) * call.stride] = total * rows.sums[r].factor;
        }
    }

  private:
    std::vector<float> factors;
};

// W^T y; values: y (b, h, i, column).
class TransposedProduct : public ColumnMeasure {
  public:
    TransposedProduct(const MeasureCall& call, const Rows& rows)
        : ColumnMeasure(call, rows, PANEL), y(allocate(rows.scores.max_rows * num_panels * PANEL)) {}

    void forward(const Rows& rows) override {
        const Scores& scores = rows.scores;
        const int64_t width = num_panels * PANEL;
        read_rows(call.values, scores.b, scores.h, scores.first, scores.first + rows.count(), call.width, y.get(),
                  width);
        for (int64_t r = 0; r < rows.count(); r++)
            for (int64_t c = 0; c < width; c++) y[r * width + c] *= rows.sums[r].factor;
        for (int64_t a = 0; a < rows.num_blocks(); a++)
            for (int64_t p = 0; p < num_panels; p++)
                multiply_panel<true>(rows.weights + a * KEY_BLOCK, 1, rows.width, y.get() + p * PANEL, width,
                                     sums_at(p, rows.first_key(a)), PANEL, KEY_BLOCK, rows.count());
    }

  private:
    FloatArray y;
};

}  // namespace regard
